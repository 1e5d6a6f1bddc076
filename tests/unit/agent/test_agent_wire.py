from __future__ import annotations

import struct
from collections.abc import Callable

import pytest

from heddle.v1 import agent_pb2 as pb
from heddle.v1 import common_pb2
from heddle_agent.fib import Count, Link, NextHop, Nic, Reason
from heddle_agent.session import encode
from heddle_agent.session.decode import MalformedPushError, decode_push
from heddle_agent.session.names import ReceivedNames
from heddle_agent.table import (
    DELETE,
    LinkObservation,
    Mode,
    OperationFailure,
    Receipt,
    Status,
)
from tests.support.agent_controllers import numbers

NAMES = ["a", "b", "s0", "s1", "l9", "z", "0", "1", "2", "10.0.0.1", "10.1.0.1"]


def named(*texts: str) -> bytes:
    """Return a column with the indexes of these names."""
    return numbers(*map(NAMES.index, texts))


def message() -> pb.Push:
    """Return a push of two sets, a delete, and a set that shares its next hops with the first."""
    return pb.Push(
        mode=pb.PUSH_MODE_FULL_SYNC,
        epoch=3,
        generation=14,
        nonce=15,
        sweep_stale=True,
        operations=pb.OperationBatch(
            names=NAMES,
            nics=named("a"),
            nic_addresses=named("10.0.0.1"),
            hop_nodes=named("s0", "s1"),
            hop_keys=named("0", "2"),
            hop_addresses=numbers(NAMES.index("10.1.0.1") + 1, 0),
            link_sources=named("z", "s0"),
            link_targets=named("s0", "l9"),
            link_keys=named("0", "1"),
            risk_ends=numbers(3, 4),
            risk_links=numbers(0, 1, 0, 1),
            way_primaries=numbers(0, 1),
            way_backups=numbers(2, 0),
            way_risks=numbers(1, 0),
            way_backup_risks=numbers(2, 0),
            sources=named("a", "a", "b", "a"),
            destinations=named("b", "b", "a", "b"),
            source_ports=numbers(0, 49152, 7, 49153),
            destination_ports=numbers(0, 4791, 0, 4791),
            ways=numbers(1, 2, 0, 1),
        ),
    )


def test_a_push_is_decoded_to_columns() -> None:
    """Names replace indexes, shared next hops have one row, and a delete has DELETE."""
    push = decode_push(message())
    assert (push.mode, push.version, push.nonce) == (Mode.FULL_SYNC, (3, 14), 15)
    assert push.sweep_stale
    assert not push.completes_generation
    operations = push.operations
    assert operations.matches == [
        ("a", "b", 0, 0),
        ("a", "b", 49152, 4791),
        ("b", "a", 7, 0),
        ("a", "b", 49153, 4791),
    ]
    first, second = NextHop("s0", "0", "10.1.0.1"), NextHop("s1", "2")
    risks = (Link("l9", "s0", "1"), Link("s0", "z", "0"))
    assert list(operations.keys) == [(first, second, risks, risks[:1]), (second, None, (), ())]
    assert operations.groups == [0, 1, DELETE, 0]
    assert operations.addresses == {"a": "10.0.0.1"}


def test_a_push_of_deletes_needs_no_ways() -> None:
    """Columns of next hops, risks and ways may be empty, and may have rows that nothing uses."""
    bare = message()
    bare.operations.ways = numbers(0, 0, 0, 0)
    assert decode_push(bare).operations.groups == [DELETE] * 4
    for field in pb.OperationBatch.DESCRIPTOR.fields:
        if field.name.startswith(("way_", "hop_", "link_", "risk_")):
            setattr(bare.operations, field.name, b"")
    assert decode_push(bare).operations.groups == [DELETE] * 4


def test_an_empty_push_has_no_operations() -> None:
    """A push may be a sweep alone."""
    push = decode_push(pb.Push(mode=pb.PUSH_MODE_INCREMENTAL, epoch=1, sweep_stale=True))
    assert not push.operations.matches


def _set(name: str, row: int, value: int) -> Callable[[pb.Push], None]:
    def change(push: pb.Push) -> None:
        column = [number for (number,) in struct.iter_unpack("<I", getattr(push.operations, name))]
        column[row] = value
        setattr(push.operations, name, numbers(*column))

    return change


def _shorten(name: str, by: int = 4) -> Callable[[pb.Push], None]:
    def change(push: pb.Push) -> None:
        setattr(push.operations, name, getattr(push.operations, name)[:-by])

    return change


def _mode(push: pb.Push) -> None:
    push.mode = pb.PUSH_MODE_UNSPECIFIED


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_mode, "mode 0 is unknown: send FULL_SYNC or INCREMENTAL"),
        (_set("sources", 1, 11), "operation 1: sources has 11, which no name has"),
        (_set("destinations", 0, 99), "operation 0: destinations has 99"),
        (_set("ways", 3, 3), "operation 3: ways has 3, which is not an index of way_primaries"),
        (_set("way_primaries", 1, 2), "row 1: way_primaries has 2, which is not an index of hop_"),
        (_set("way_backups", 0, 3), "row 0: way_backups has 3"),
        (_set("way_risks", 0, 3), "row 0: way_risks has 3, which is not an index of risk_ends"),
        (_set("way_backup_risks", 1, 9), "row 1: way_backup_risks has 9"),
        (_set("hop_keys", 1, 11), "row 1: hop_keys has 11, which no name has"),
        (_set("hop_addresses", 1, 12), "row 1: hop_addresses has 12"),
        (_set("nics", 0, 2**32 - 1), "row 0: nics has 4294967295"),
        (_set("link_targets", 0, 11), "row 0: link_targets has 11"),
        (_set("risk_links", 1, 5), "row 1: risk_links has 5, which is not an index of link_sour"),
        (_set("risk_ends", 0, 5), "risk_ends has to rise, up to the length of risk_links"),
        (_set("risk_ends", 1, 3), "risk_ends has to rise"),
        (_set("source_ports", 1, 65536), "operation 1: source_ports has 65536, over 65535"),
        (_set("destination_ports", 2, 99999), "operation 2: destination_ports has 99999"),
        (_shorten("sources"), "ways has 4 elements but sources has 3"),
        (_shorten("source_ports"), "ways has 4 elements but source_ports has 3"),
        (_shorten("source_ports", 1), "source_ports has 15 bytes: send 4 for each number"),
        (_shorten("way_backups"), "way_primaries has 2 elements but way_backups has 1"),
        (_shorten("hop_addresses"), "hop_nodes has 2 elements but hop_addresses has 1"),
        (_shorten("link_keys"), "link_sources has 2 elements but link_keys has 1"),
        (_shorten("nic_addresses"), "nics has 1 elements but nic_addresses has 0"),
    ],
)
def test_a_malformed_push_names_its_fault(
    change: Callable[[pb.Push], None], complaint: str
) -> None:
    """The error names field, operation and value."""
    push = message()
    change(push)
    with pytest.raises(MalformedPushError, match=complaint):
        decode_push(push)


def numbered(*told: tuple[int, str], epoch: int = 1, anew: bool = False) -> pb.Push:
    """Return a push that gives names to numbers and removes the entry of names 7 and 9."""
    return pb.Push(
        mode=pb.PUSH_MODE_INCREMENTAL,
        epoch=epoch,
        new_names=anew,
        operations=pb.OperationBatch(
            names=[name for _, name in told],
            name_numbers=numbers(*(number for number, _ in told)),
            sources=numbers(7),
            destinations=numbers(9),
            source_ports=numbers(0),
            destination_ports=numbers(0),
            ways=numbers(0),
        ),
    )


def test_names_hold_within_a_session_and_an_epoch() -> None:
    """Later pushes need not repeat names.

    ``new_names`` forgets those that the push does not give.
    """
    received = ReceivedNames()
    for push in (numbered((7, "a"), (9, "b"), anew=True), numbered(), numbered((7, "a"))):
        assert decode_push(push, received).operations.matches == [("a", "b", 0, 0)]
    with pytest.raises(MalformedPushError, match="sources has 7, which no name has"):
        decode_push(numbered(epoch=2), received)
    anew = numbered((7, "c"), (9, "d"), epoch=2, anew=True)
    assert decode_push(anew, received).operations.matches == [("c", "d", 0, 0)]
    with pytest.raises(MalformedPushError, match="which no name has"):
        decode_push(numbered((7, "e"), epoch=2, anew=True), received)


def test_an_old_epoch_leaves_names_alone() -> None:
    """Names that an older leader gives do not count once there is a newer epoch."""
    received = ReceivedNames()
    decode_push(numbered((7, "a"), (9, "b"), epoch=5, anew=True), received)
    decode_push(numbered((7, "x"), (9, "y"), epoch=4, anew=True), received)
    assert decode_push(numbered(epoch=5), received).operations.matches == [("a", "b", 0, 0)]


@pytest.mark.parametrize(
    ("told", "size", "complaint"),
    [
        (((7, "a"), (9, "b"), (7, "c")), 12, "number 7 is 'a' already, not 'c'"),
        (((7, "a"), (9, "b")), 4, "name_numbers has 4 bytes: send 4 for each of names"),
        (((7, "a"), (9, "b")), 7, "name_numbers has 7 bytes"),
        ((), 4, "name_numbers has 4 bytes"),
    ],
)
def test_names_that_do_not_fit_are_refused(
    told: tuple[tuple[int, str], ...], size: int, complaint: str
) -> None:
    """A number keeps its name. After a refusal, earlier names still hold."""
    received = ReceivedNames()
    decode_push(numbered((7, "a"), (9, "b"), anew=True), received)
    push = numbered(*told)
    push.operations.name_numbers = (push.operations.name_numbers + numbers(3))[:size]
    with pytest.raises(MalformedPushError, match=complaint):
        decode_push(push, received)
    assert decode_push(numbered(), received).operations.matches == [("a", "b", 0, 0)]


def test_no_match_stands_twice() -> None:
    """Nobody can tell which of two ways was meant, so the error names both operations."""
    push = message()
    _set("source_ports", 3, 49152)(push)
    with pytest.raises(MalformedPushError, match="operation 3 has the match of operation 1"):
        decode_push(push)


def test_results_carry_stage_status_and_failures() -> None:
    """Status, reason and stage have the protocol's values, and nonce and version are the push's."""
    failure = OperationFailure(3, Reason.UNKNOWN_NEXT_HOP, "no link")
    receipt = Receipt(Status.APPLIED, (failure,))
    answer = encode.push_result(message(), pb.PUSH_STAGE_FIB, receipt, 9).push_result
    assert (answer.nonce, answer.epoch, answer.generation, answer.highest_epoch) == (15, 3, 14, 9)
    assert (answer.stage, answer.status) == (pb.PUSH_STAGE_FIB, pb.PUSH_STATUS_APPLIED)
    (told,) = answer.failures
    assert (told.operation, told.reason, told.message) == (
        3,
        pb.FAILURE_REASON_UNKNOWN_NEXT_HOP,
        "no link",
    )


@pytest.mark.parametrize("status", Status)
def test_every_status_has_its_name_on_the_wire(status: Status) -> None:
    """Every status of the agent exists in the protocol."""
    answer = encode.push_result(message(), pb.PUSH_STAGE_RIB, Receipt(status, message="why"), 1)
    assert pb.PushStatus.Name(answer.push_result.status) == f"PUSH_STATUS_{status.name}"
    assert answer.push_result.message == "why"


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_its_name_on_the_wire(reason: Reason) -> None:
    """Every reason of the agent exists in the protocol."""
    receipt = Receipt(Status.APPLIED, (OperationFailure(0, reason, ""),))
    answer = encode.push_result(message(), pb.PUSH_STAGE_RIB, receipt, 1).push_result
    assert pb.FailureReason.Name(answer.failures[0].reason) == f"FAILURE_REASON_{reason.name}"


def test_link_reports_keep_time_to_the_microsecond() -> None:
    """A report has state, sequence number, reason and the time of the observation."""
    seen = LinkObservation(Link("a", "b", "1"), False, 1_700_000_000.25, 7, "carrier")
    report = encode.link_report([seen], full=False).link_state
    (link,) = report.links
    assert not report.full
    assert (link.link.source, link.link.target, link.link.key) == ("a", "b", "1")
    assert (link.state, link.sequence, link.reason) == (common_pb2.STATE_DOWN, 7, "carrier")
    assert (link.time.seconds, link.time.nanos) == (1_700_000_000, 250_000_000)


def test_counter_reports_name_each_nic_once_and_add_up_destination_ports() -> None:
    """Columns have one length. Entries that differ only in destination port are one row."""
    counts = {
        ("a", "b", 5, 4791): Count(1, 10),
        ("a", "b", 5, 0): Count(2, 20),
        ("b", "a", 0, 0): Count(4, 40),
    }
    unmatched = {(Nic(address="10.0.0.1"), Nic(address="10.0.0.9")): Count(3, 300)}
    report = encode.counter_report(counts, unmatched, 12.5).counters
    nics = [end.nic for end in report.endpoints]
    assert sorted(nics) == ["", "", "a", "b"]
    ends = [
        report.endpoints[row] for row in (*report.unmatched_sources, *report.unmatched_destinations)
    ]
    assert [(end.nic, end.address) for end in ends] == [("", "10.0.0.1"), ("", "10.0.0.9")]
    assert (list(report.unmatched_packets), list(report.unmatched_bytes)) == ([3], [300])
    rows = zip(
        (nics[row] for row in report.sources),
        (nics[row] for row in report.destinations),
        report.source_ports,
        report.packets,
        report.bytes,
        strict=True,
    )
    assert set(rows) == {("a", "b", 5, 3, 30), ("b", "a", 0, 4, 40)}
    assert report.time.ToMilliseconds() == 12_500
