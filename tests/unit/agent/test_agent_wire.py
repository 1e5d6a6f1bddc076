from __future__ import annotations

from collections.abc import Callable

import pytest

from heddle.v1 import agent_pb2 as pb
from heddle.v1 import common_pb2
from heddle_agent.fib import Count, Link, NextHop, Reason
from heddle_agent.session import encode
from heddle_agent.session.decode import MalformedPushError, decode_push
from heddle_agent.table import (
    DELETE,
    LinkObservation,
    Mode,
    OperationFailure,
    Receipt,
    Status,
)

SET, DELETES = pb.OPERATION_KIND_SET, pb.OPERATION_KIND_DELETE


def message() -> pb.Push:
    """Two sets, a delete and a set that shares its next hops with the first."""
    return pb.Push(
        mode=pb.PUSH_MODE_FULL_SYNC,
        epoch=3,
        generation=14,
        nonce=15,
        sweep_stale=True,
        operations=pb.OperationBatch(
            kinds=[SET, SET, DELETES, SET],
            endpoints=[pb.Endpoint(nic="a", address="10.0.0.1"), pb.Endpoint(nic="b")],
            next_hops=[
                pb.NextHop(node="s0", key="0", address="10.1.0.1"),
                pb.NextHop(node="s1", key="2"),
            ],
            risk_links=[
                common_pb2.LinkRef(source="z", target="s0", key="0"),
                common_pb2.LinkRef(source="s0", target="l9", key="1"),
            ],
            risk_groups=[pb.RiskGroup(links=[0, 1, 0]), pb.RiskGroup(links=[1])],
            sources=[0, 0, 1, 0],
            destinations=[1, 1, 0, 1],
            source_ports=[0, 49152, 7, 49153],
            destination_ports=[0, 4791, 0, 4791],
            primaries=[0, 1, 0, 0],
            backups=[2, 0, 0, 2],
            risks=[1, 0, 0, 1],
            backup_risks=[2, 0, 0, 2],
        ),
    )


def test_a_push_is_decoded_to_columns() -> None:
    """Names instead of indexes, one row for next hops that are shared, DELETE without any."""
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
    assert operations.keys == [(first, second, risks, risks[:1]), (second, None, (), ())]
    assert operations.groups == [0, 1, DELETE, 0]
    assert operations.addresses == {"a": "10.0.0.1"}


def test_a_push_of_deletes_needs_no_next_hops() -> None:
    """The arrays of next hops and risks may be empty, as the protocol says, or full of zeros."""
    bare = message()
    batch = bare.operations
    batch.kinds[:] = [DELETES] * 4
    for name in ("next_hops", "risk_links", "risk_groups", "primaries", "backups", "risks"):
        batch.ClearField(name)
    assert decode_push(bare).operations.groups == [DELETE] * 4
    batch.primaries[:] = [0] * 4
    assert decode_push(bare).operations.groups == [DELETE] * 4


def test_an_empty_push_has_no_operations() -> None:
    """A sweep alone, or a full sync to nothing, is a push."""
    push = decode_push(pb.Push(mode=pb.PUSH_MODE_INCREMENTAL, epoch=1, sweep_stale=True))
    assert not push.operations.matches


def _set(name: str, row: int, value: int) -> Callable[[pb.Push], None]:
    def change(push: pb.Push) -> None:
        getattr(push.operations, name)[row] = value

    return change


def _shorten(name: str) -> Callable[[pb.Push], None]:
    def change(push: pb.Push) -> None:
        getattr(push.operations, name).pop()

    return change


def _mode(push: pb.Push) -> None:
    push.mode = pb.PUSH_MODE_UNSPECIFIED


def _risk(push: pb.Push) -> None:
    push.operations.risk_groups[0].links[1] = 5


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (_mode, "mode 0 is none: send FULL_SYNC or INCREMENTAL"),
        (_set("kinds", 2, 0), "operation 2 has kind 0: send SET or DELETE"),
        (_set("kinds", 3, 9), "operation 3 has kind 9"),
        (_set("sources", 1, 2), "operation 1: sources has 2, which is not an index of endpoints"),
        (_set("destinations", 0, 99), "operation 0: destinations has 99"),
        (_set("primaries", 3, 2), "operation 3: primaries has 2, which is not an index of next_h"),
        (_set("backups", 0, 3), "operation 0: backups has 3"),
        (_set("risks", 0, 3), "operation 0: risks has 3, which is not an index of risk_groups"),
        (_set("source_ports", 1, 65536), "operation 1: source_ports has 65536, over 65535"),
        (_set("destination_ports", 2, 99999), "operation 2: destination_ports has 99999"),
        (_shorten("sources"), "kinds has 4 elements but sources has 3"),
        (_shorten("backups"), "kinds has 4 elements but backups has 3"),
        (_shorten("backup_risks"), "kinds has 4 elements but backup_risks has 3"),
        (_set("backup_risks", 1, 9), "operation 1: backup_risks has 9, which is not an index of"),
        (_shorten("source_ports"), "kinds has 4 elements but source_ports has 3"),
        (_risk, "a risk group holds an index that is not one of risk_links"),
    ],
)
def test_a_malformed_push_names_its_fault(
    change: Callable[[pb.Push], None], complaint: str
) -> None:
    """Field, operation and value are in the complaint."""
    push = message()
    change(push)
    with pytest.raises(MalformedPushError, match=complaint):
        decode_push(push)


def test_results_carry_stage_status_and_failures() -> None:
    """Names of our own values are those of the protocol."""
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
    """No status of ours is unknown to the protocol."""
    answer = encode.push_result(message(), pb.PUSH_STAGE_RIB, Receipt(status, message="why"), 1)
    assert pb.PushStatus.Name(answer.push_result.status) == f"PUSH_STATUS_{status.name}"
    assert answer.push_result.message == "why"


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_its_name_on_the_wire(reason: Reason) -> None:
    """No reason of ours is unknown to the protocol."""
    receipt = Receipt(Status.APPLIED, (OperationFailure(0, reason, ""),))
    answer = encode.push_result(message(), pb.PUSH_STAGE_RIB, receipt, 1).push_result
    assert pb.FailureReason.Name(answer.failures[0].reason) == f"FAILURE_REASON_{reason.name}"


def test_link_reports_keep_time_to_the_microsecond() -> None:
    """State, sequence, reason and the moment it was seen."""
    seen = LinkObservation(Link("a", "b", "1"), False, 1_700_000_000.25, 7, "carrier")
    report = encode.link_report([seen], full=False).link_state
    (link,) = report.links
    assert not report.full
    assert (link.link.source, link.link.target, link.link.key) == ("a", "b", "1")
    assert (link.state, link.sequence, link.reason) == (common_pb2.STATE_DOWN, 7, "carrier")
    assert (link.time.seconds, link.time.nanos) == (1_700_000_000, 250_000_000)


def test_counter_reports_name_each_nic_once_and_add_up_destination_ports() -> None:
    """Columns of one length; entries that the report cannot tell apart are one row."""
    counts = {
        ("a", "b", 5, 4791): Count(1, 10),
        ("a", "b", 5, 0): Count(2, 20),
        ("b", "a", 0, 0): Count(4, 40),
    }
    report = encode.counter_report(counts, 12.5).counters
    nics = [end.nic for end in report.endpoints]
    assert sorted(nics) == ["a", "b"]
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
