"""What agents say: who they are, how pushes went, what they saw and counted."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address

import numpy as np

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.arrays import Bools, Ints
from heddle_controller.model.errors import InputError, refuse
from heddle_controller.model.fabric import State
from heddle_controller.reconcile.southbound import (
    AgentSession,
    Capability,
    FailureReason,
    LinkObservation,
    LinkReport,
    OperationFailure,
    Push,
    PushStatus,
    StageResult,
    TableState,
)
from heddle_controller.serve.codec import common, names
from heddle_controller.serve.codec.columns import BYTES
from heddle_controller.serve.codec.fabric import link_name_from_pb
from heddle_controller.serve.codec.listing import entries_from_pb

SOURCE = "agent"
_LARGEST = 2**63 - 1
MAX_TEXT = 256
"""Characters kept of what an agent says in words."""
MAX_CAPABILITIES, MAX_DIGEST = 64, 32
_MAX_TOLD = 1 << 16
"""Entries told in one answer; see TableState in agent.proto."""


def session_from_pb(parameters: pb.SessionParameters, session_id: int) -> AgentSession:
    """An agent's introduction; capabilities that are not known are left out.

    Raises:
        InputError: malformed fabric, or no switch or instance id.
    """
    fabric = names.parse_fabric_name(parameters.fabric, "session_parameters.fabric")
    for name in ("switch", "instance_id"):
        if not 0 < len(getattr(parameters, name)) <= MAX_TEXT:
            reason = f"give 1 to {MAX_TEXT} characters"
            raise refuse(SOURCE, f"session_parameters.{name}", reason)
    for name in ("highest_epoch", "generation"):
        check_number(getattr(parameters, name), f"session_parameters.{name}")
    if len(parameters.capabilities) > MAX_CAPABILITIES or len(parameters.table_digest) > MAX_DIGEST:
        reason = f"give {MAX_CAPABILITIES} capabilities and a digest of {MAX_DIGEST} bytes at most"
        raise refuse(SOURCE, "session_parameters", reason)
    known = {int(capability) for capability in Capability}
    return AgentSession(
        id=session_id,
        fabric=fabric,
        switch=parameters.switch,
        instance=parameters.instance_id,
        software_version=parameters.software_version[:MAX_TEXT],
        capabilities=frozenset(Capability(c) for c in parameters.capabilities if c in known),
        table_size=parameters.table_size,
        highest_epoch=parameters.highest_epoch,
        generation=parameters.generation,
        table_digest=parameters.table_digest,
        peer_address=_udp_address(parameters.peer_address),
    )


def _udp_address(text: str) -> str:
    """An IP address and a port, as it is told to others.

    Raises:
        InputError: it is neither that nor empty.
    """
    if not text:
        return ""
    host, _, port = text.rpartition(":")
    try:
        address = ip_address(host.removeprefix("[").removesuffix("]"))
    except ValueError:
        address = None
    usable = address is not None and not address.is_unspecified
    if not (usable and port.isascii() and port.isdecimal() and 0 < int(port) < 65536):  # noqa: PLR2004
        reason = "give an IP address and a port, such as 10.0.0.1:7402, or nothing"
        raise refuse(SOURCE, "session_parameters.peer_address", reason)
    return text


def check_number(value: int, field: str) -> None:
    """Nothing, if the value is one that counting can reach.

    Raises:
        InputError: when it takes more than 63 bits, which no store keeps.
    """
    if value > _LARGEST:
        raise refuse(SOURCE, field, f"{value} is beyond 2^63 - 1: no controller gave that")


def stage_from_pb(result: pb.PushResult, push: Push, now: float) -> StageResult:
    """How one stage of a push went.

    Raises:
        InputError: unknown stage or status, another epoch or generation than the push
            had, a failure of an operation that it did not hold, a count out of range.
    """
    if (result.epoch, result.generation) != (push.epoch, push.generation):
        raise refuse(
            SOURCE,
            "push_result",
            f"nonce {result.nonce} was of epoch {push.epoch} generation {push.generation}, "
            f"not {result.epoch} and {result.generation}: repeat those of the push",
        )
    if result.stage not in (pb.PUSH_STAGE_RIB, pb.PUSH_STAGE_FIB):
        raise refuse(SOURCE, "push_result.stage", "use PUSH_STAGE_RIB or PUSH_STAGE_FIB")
    if not pb.PUSH_STATUS_APPLIED <= result.status <= pb.PUSH_STATUS_INVALID:
        raise refuse(SOURCE, "push_result.status", "it is not known: say how the push went")
    check_number(result.highest_epoch, "push_result.highest_epoch")
    count = push.operation_count
    if len(result.failures) > count:
        reason = f"{len(result.failures)} failures of a push of {count} operations: one for each"
        raise refuse(SOURCE, "push_result.failures", reason)
    return StageResult(
        status=PushStatus(result.status),
        failures=tuple(_failure(failure, count) for failure in result.failures),
        message=result.message[:MAX_TEXT],
        time=now,
    )


def table_from_pb(result: pb.PushResult, push: Push, switch: str) -> TableState | None:
    """What the table of a switch holds, as far as the push asked and the agent told.

    Raises:
        InputError: a generation out of range, or malformed entries.
    """
    if not (push.tell_table and result.HasField("table")):
        return None
    check_number(result.table.generation, "push_result.table.generation")
    told = result.table
    listed = push.tell_entries and told.HasField("entries")
    if listed and len(told.entries.ways) > BYTES * _MAX_TOLD:
        reason = f"{len(told.entries.ways) // BYTES} entries: none are told where there are so many"
        raise refuse(SOURCE, "push_result.table.entries", reason)
    entries = entries_from_pb(told.entries, push.fabric, switch) if listed else None
    return TableState(told.generation, told.digest[:MAX_DIGEST], entries)


def _failure(failure: pb.OperationFailure, count: int) -> OperationFailure:
    if failure.operation >= count:
        reason = f"operation {failure.operation} of a push of {count}: count from 0"
        raise refuse(SOURCE, "push_result.failures", reason)
    known = failure.reason in pb.FailureReason.values()
    reason_code = FailureReason(failure.reason) if known else FailureReason.UNSPECIFIED
    return OperationFailure(failure.operation, reason_code, failure.message[:MAX_TEXT])


def links_from_pb(report: pb.LinkStateReport) -> LinkReport:
    """What an agent saw of its links.

    Raises:
        InputError: an observation without a link, or whose state is not UP or DOWN.
    """
    return LinkReport(
        links=tuple(
            _observation(seen, f"link_state.links[{i}]") for i, seen in enumerate(report.links)
        ),
        full=report.full,
    )


def _observation(seen: pb.LinkObservation, field: str) -> LinkObservation:
    if not (seen.link.source and seen.link.target):
        raise refuse(SOURCE, f"{field}.link", "an end is missing: give source and target")
    state = common.state_from_pb(seen.state, f"{field}.state")
    if state is State.DRAINED:
        raise refuse(SOURCE, f"{field}.state", "an agent reports UP or DOWN; operators set DRAINED")
    check_number(seen.sequence, f"{field}.sequence")
    return LinkObservation(
        link=link_name_from_pb(seen.link),
        state=state,
        time=common.time_from_pb(seen.time),
        sequence=seen.sequence,
        reason=seen.reason[:MAX_TEXT],
    )


@dataclass(frozen=True, slots=True, eq=False)
class Counters:
    """What one switch has counted at one moment, parallel columns, one row an entry or a pair."""

    time: float
    nics: tuple[tuple[str, str], ...]
    """Id and address; one of them may be empty."""
    source: Ints
    """Index into ``nics``; likewise ``destination``."""
    destination: Ints
    source_port: Ints
    packets: Ints
    bytes: Ints
    unmatched: Bools
    """Rows of pairs of NICs whose packets no entry matched."""


def counters_from_pb(report: pb.CounterReport) -> Counters:
    """What an agent has counted.

    Raises:
        InputError: columns of different lengths, an index beyond the endpoints, no time.
    """
    names = ("sources", "destinations", "source_ports", "packets", "bytes")
    told = [[*getattr(report, name)] for name in names]
    pairs = [[*getattr(report, f"unmatched_{name}")] for name in names if name != "source_ports"]
    pairs.insert(2, [0] * len(pairs[0]))
    if any(len({len(column) for column in columns}) > 1 for columns in (told, pairs)):
        raise _counters("the arrays differ in length: give each one element for each entry")
    columns = np.concatenate([np.array(each, dtype=np.uint64) for each in (told, pairs)], axis=1)
    most = columns.max(axis=1, initial=0).tolist()
    if columns.size and max(most[:2]) >= len(report.endpoints):
        raise _counters(f"an index is beyond the {len(report.endpoints)} endpoints")
    if not report.HasField("time"):
        raise _counters("time is not set: say when they were read")
    for name, greatest in zip(names[3:], most[3:], strict=True):
        check_number(greatest, f"counters.{name}")
    source, destination, port, packets, size = columns.astype(np.int64)
    return Counters(
        common.time_from_pb(report.time),
        tuple((endpoint.nic, endpoint.address) for endpoint in report.endpoints),
        source,
        destination,
        port,
        packets,
        size,
        np.arange(len(source)) >= len(told[0]),
    )


def _counters(reason: str) -> InputError:
    return refuse(SOURCE, "counters", reason)
