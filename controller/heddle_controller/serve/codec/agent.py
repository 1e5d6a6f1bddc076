"""Messages from agents: introductions, results of pushes, link states, counters and tables.

Agents are not trusted: each function here checks the sizes and numbers that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

import numpy as np

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.arrays import NONE, Bools, Ints, cut_rows, distinct
from heddle_controller.model.errors import InputError, refuse
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.program import Entries
from heddle_controller.reconcile.ports import (
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
from heddle_controller.serve.codec import common, names, times
from heddle_controller.serve.codec.entries import BYTES

LAST_PORT = 65535
MOST_ENTRIES = 65_536
"""Most entries of a table that an agent reports; an agent with more reports none."""
MOST_RISKS = 1 << 22
"""Most links at risk of all ways together, and of all entries together. Without this bound a few
bytes could expand to very many."""


def entries_from_pb(told: pb.OperationBatch, fabric: Fabric, switch: str) -> Entries | None:
    """Return the entries of one switch; None if they name something that the fabric does not have.

    Raises:
        InputError: the columns do not fit each other, an index is out of range, an
            operation deletes, a match occurs twice, or there are too many.
    """
    node = fabric.structure.index.get(switch, NONE)
    match = _matches(told, fabric)
    way = _column(told, "ways") - 1
    if len(way) > MOST_ENTRIES:
        raise _malformed(f"it has {len(way)} entries: tell none if there are over {MOST_ENTRIES}")
    if len(way) != len(match) or (way < 0).any() or (match[:, 2:] > LAST_PORT).any():
        raise _malformed("operations do not fit each other: send a match and a way for each")
    ways = _ways(told, fabric, switch)
    rows = np.lexsort(match.T[::-1])
    match, way = match[rows], way[rows]
    if not (np.diff(match, axis=0) != 0).any(axis=1).all():
        raise _malformed("a match stands twice: send each entry once")
    primary = _at(ways.primary, way, "ways")
    backup = ways.backup[way]
    _check_bound(int(np.diff(ways.first)[way].sum()))
    first, places = cut_rows(ways.first, way)
    links = ways.risk_links[places]
    unknown = (backup == _LOST).any() or (links == _LOST).any() or (primary == _LOST).any()
    if node == NONE or unknown or (match[:, :2] == NONE).any():
        return None
    return Entries(
        switch=np.full(len(way), node, dtype=np.int64),
        source=match[:, 0],
        destination=match[:, 1],
        source_port=match[:, 2],
        destination_port=match[:, 3],
        primary=primary,
        backup=backup,
        stage=np.zeros(len(way), dtype=np.int64),
        risk_first=first,
        risk_links=links,
    )


_LOST = np.iinfo(np.int64).min
"""Marks a next hop or a link that the fabric does not have."""


@dataclass(frozen=True, slots=True, eq=False)
class _Ways:
    """The distinct ways (primary, backup, risks) that entries use, as columns of ``Entries``."""

    primary: Ints
    backup: Ints
    first: Ints
    risk_links: Ints


def _matches(told: pb.OperationBatch, fabric: Fabric) -> Ints:
    """Return the node rows of both NICs and both ports, shape (operations, 4)."""
    index = fabric.structure.index
    nodes = np.array([index.get(name, NONE) for name in told.names], dtype=np.int64)
    columns = [_at(nodes, _column(told, name), name) for name in ("sources", "destinations")]
    columns += [_column(told, name) for name in ("source_ports", "destination_ports")]
    if len({len(column) for column in columns}) > 1:
        raise _malformed("the columns of the matches differ in length")
    return np.stack(columns, axis=1)


def _ways(told: pb.OperationBatch, fabric: Fabric, switch: str) -> _Ways:
    arcs = np.array(
        [_arc(fabric, switch, *hop) for hop in _named(told, "hop_nodes", "hop_keys")],
        dtype=np.int64,
    )
    primary = _at(arcs, _column(told, "way_primaries"), "way_primaries")
    backup = _at(np.append(NONE, arcs), _column(told, "way_backups"), "way_backups")
    groups = [np.empty(0, dtype=np.int64), *_risk_groups(told, fabric)]
    risks, spare = (_column(told, name).tolist() for name in ("way_risks", "way_backup_risks"))
    if not len(primary) == len(backup) == len(risks) == len(spare):
        raise _malformed("the columns of the ways differ in length")
    if max([*risks, *spare], default=0) >= len(groups):
        raise _malformed("way_risks holds a value that is not an index of risk_ends")
    size = np.array([len(group) for group in groups], dtype=np.int64)
    _check_bound(int(size[risks].sum() + size[spare].sum()))
    parts = []
    for mine, other in zip(risks, spare, strict=True):
        parts.append(np.append(groups[mine], _beyond(groups[other])))
    first = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    return _Ways(primary, backup, first, np.concatenate([groups[0], *parts]))


def _check_bound(risks: int) -> None:
    if risks > MOST_RISKS:
        raise _malformed(f"{risks} links at risk are more than {MOST_RISKS} in all")


def _beyond(links: Ints) -> Ints:
    """Return the risk links of a backup as ``Entries`` stores them: inverted bitwise."""
    return np.where(links == _LOST, _LOST, ~links)


def _risk_groups(told: pb.OperationBatch, fabric: Fabric) -> list[Ints]:
    """Return the link rows of each risk group, ascending and without duplicates."""
    rows = [_link(fabric, *link) for link in _named(told, *_LINK)]
    links = _at(np.array(rows, dtype=np.int64), _column(told, "risk_links"), "risk_links")
    ends = _column(told, "risk_ends")
    if (np.diff(ends, prepend=0) < 0).any() or (ends[-1] if len(ends) else 0) != len(links):
        raise _malformed("risk_ends has to rise, up to the length of risk_links")
    return [distinct(part) for part in np.split(links, ends[:-1])][: len(ends)]


_LINK = ("link_sources", "link_targets", "link_keys")


def _arc(fabric: Fabric, switch: str, node: str, key: str) -> int:
    """Return the arc from a switch to its neighbour over one link; ``_LOST`` if there is none."""
    link = _link(fabric, switch, node, key)
    if link == _LOST:
        return _LOST
    return 2 * link + int(fabric.structure.links.a[link] != fabric.structure.index[switch])


def _link(fabric: Fabric, one: str, other: str, key: str) -> int:
    rows = fabric.find_links(one, other, key)
    return rows[0] if rows else _LOST


def _named(told: pb.OperationBatch, *columns: str) -> list[tuple[str, ...]]:
    """Return the rows of some columns that hold indices into the batch's names."""
    names = np.array([*told.names, ""], dtype=object)[:-1]
    found: list[Sequence[str]] = [
        _at(names, _column(told, name), name).tolist() for name in columns
    ]
    if len({len(texts) for texts in found}) > 1:
        raise _malformed(f"{', '.join(columns)} differ in length")
    return list(zip(*found, strict=True))


def _column(told: pb.OperationBatch, name: str) -> Ints:
    content: bytes = getattr(told, name)
    if len(content) % BYTES:
        raise _malformed(f"{name} has {len(content)} bytes: send {BYTES} for each number")
    return np.frombuffer(content, dtype="<u4").astype(np.int64)


def _at(table: Ints, rows: Ints, name: str) -> Ints:
    if len(rows) and int(rows.max()) >= len(table):
        raise _malformed(f"{name} has {int(rows.max())}, which is not an index: count from 0")
    found: Ints = table[rows]
    return found


def _malformed(reason: str) -> InputError:
    return refuse("agent", "push_result.table.entries", reason)


SOURCE = "agent"
_LARGEST = 2**63 - 1
MAX_TEXT = 256
"""Characters kept of each text from an agent."""
MAX_CAPABILITIES, MAX_DIGEST = 64, 32
_MAX_TOLD = 1 << 16
"""Most entries in one answer; see TableState in agent.proto."""


def session_from_pb(parameters: pb.SessionParameters, session_id: int) -> AgentSession:
    """Return the session of an agent's introduction; unknown capabilities are left out.

    Raises:
        InputError: the fabric or peer address is malformed, the switch or instance id is missing,
            or a field is too long or too large.
    """
    fabric = names.fabric_name.fabric(parameters.fabric, "session_parameters.fabric")
    for name in ("switch", "instance_id"):
        if not 0 < len(getattr(parameters, name)) <= MAX_TEXT:
            reason = f"give 1 to {MAX_TEXT} characters"
            raise refuse(SOURCE, f"session_parameters.{name}", reason)
    for name in ("highest_epoch", "generation", "highest_generation"):
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
        highest_generation=parameters.highest_generation,
    )


def _udp_address(text: str) -> str:
    """Return the text, if it is an IP address and a port, or empty.

    Raises:
        InputError: it is neither.
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
    """Check that a number fits into 63 bits, as stores require.

    Raises:
        InputError: it does not; ``field`` is named.
    """
    if value > _LARGEST:
        raise refuse(SOURCE, field, f"{value} is beyond 2^63 - 1: no controller gave that")


def stage_from_pb(result: pb.PushResult, push: Push, now: float) -> StageResult:
    """Return the result of one stage of a push; ``now`` is the time of arrival, Unix seconds.

    Raises:
        InputError: the stage or status is unknown, the epoch or generation is not that of the
            push, a failed operation is not in the push, or a number is out of range.
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
    """Return what a switch's table holds; None if the push did not ask or the agent did not say.

    Entries are there only if the push asked for them and the fabric has all that they name.

    Raises:
        InputError: the generation is out of range, or the entries are malformed or too many.
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
    """Return an agent's report of the states of its links.

    Raises:
        InputError: an observation has no link, or its state is not UP or DOWN.
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
        link=common.link_name_from_pb(seen.link),
        state=state,
        time=times.time_from_pb(seen.time),
        sequence=seen.sequence,
        reason=seen.reason[:MAX_TEXT],
    )


@dataclass(frozen=True, slots=True, eq=False)
class Counters:
    """What one switch has counted at one moment: parallel columns, one row per entry or pair."""

    time: float
    """When the counters were read, Unix seconds."""
    nics: tuple[tuple[str, str], ...]
    """Id and address of each NIC; one of the two may be empty."""
    source: Ints
    """Index into ``nics``."""
    destination: Ints
    """Index into ``nics``."""
    source_port: Ints
    """0 for rows of pairs."""
    packets: Ints
    bytes: Ints
    unmatched: Bools
    """True for rows of pairs of NICs, whose packets matched no entry."""


def counters_from_pb(report: pb.CounterReport) -> Counters:
    """Return what an agent has counted.

    Raises:
        InputError: columns differ in length, an index is beyond the endpoints, a count is out of
            range, or the time is missing.
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
        times.time_from_pb(report.time),
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
