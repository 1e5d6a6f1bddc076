"""A push from the wire into columns: one pass, no message object for each entry.

The usual push is decoded by C loops over whole arrays; only when one of them stumbles are the
arrays searched for the operation to name.
"""

from __future__ import annotations

from collections.abc import Sequence

from heddle.v1 import agent_pb2 as pb
from heddle_agent.fib import Link, Match, NextHop
from heddle_agent.table import DELETE, Fence, GroupKey, Mode, Operations, Push

_MODES = {
    pb.PUSH_MODE_FULL_SYNC: Mode.FULL_SYNC,
    pb.PUSH_MODE_INCREMENTAL: Mode.INCREMENTAL,
}
_LAST_PORT = 65535


class MalformedPushError(Exception):
    """A push that cannot be understood; says which field of which operation is at fault."""


def decode_push(message: pb.Push) -> Push:
    """Decode one push; MalformedPushError if it is not one."""
    mode = _MODES.get(message.mode)
    if mode is None:
        raise MalformedPushError(f"mode {message.mode} is none: send FULL_SYNC or INCREMENTAL")
    return Push(
        mode=mode,
        version=Fence(message.epoch, message.generation),
        nonce=message.nonce,
        operations=_operations(message.operations),
        sweep_stale=message.sweep_stale,
        completes_generation=message.completes_generation,
    )


def _operations(batch: pb.OperationBatch) -> Operations:
    kinds = list(batch.kinds)
    if not kinds:
        return Operations()
    _check_lengths(batch, kinds)
    try:
        matches = _matches(batch)
        keys, groups = _groups(batch, kinds)
    except IndexError:
        raise MalformedPushError(_stray_index(batch)) from None
    addresses = {end.nic: end.address for end in batch.endpoints if end.address}
    return Operations(matches, groups, keys, addresses)


def _check_lengths(batch: pb.OperationBatch, kinds: list[pb.OperationKind.ValueType]) -> None:
    sets, deletes = kinds.count(pb.OPERATION_KIND_SET), kinds.count(pb.OPERATION_KIND_DELETE)
    if sets + deletes < len(kinds):
        known = (pb.OPERATION_KIND_SET, pb.OPERATION_KIND_DELETE)
        row = next(row for row, kind in enumerate(kinds) if kind not in known)
        raise MalformedPushError(f"operation {row} has kind {kinds[row]}: send SET or DELETE")
    for name, column in _columns(batch):
        needed = name not in {"primaries", "backups", "risks"} or sets > 0
        if len(column) != len(kinds) and (column or (needed and name != "backup_risks")):
            raise MalformedPushError(
                f"kinds has {len(kinds)} elements but {name} has {len(column)}"
            )
    for name in ("source_ports", "destination_ports"):
        ports: Sequence[int] = getattr(batch, name)
        if max(ports) > _LAST_PORT:
            row = next(row for row, port in enumerate(ports) if port > _LAST_PORT)
            raise MalformedPushError(f"operation {row}: {name} has {ports[row]}, over {_LAST_PORT}")


def _columns(batch: pb.OperationBatch) -> list[tuple[str, Sequence[int]]]:
    return [
        ("sources", batch.sources),
        ("destinations", batch.destinations),
        ("source_ports", batch.source_ports),
        ("destination_ports", batch.destination_ports),
        ("primaries", batch.primaries),
        ("backups", batch.backups),
        ("risks", batch.risks),
        ("backup_risks", batch.backup_risks),
    ]


def _matches(batch: pb.OperationBatch) -> list[Match]:
    nics = [end.nic for end in batch.endpoints]
    sources = map(nics.__getitem__, batch.sources)
    destinations = map(nics.__getitem__, batch.destinations)
    ports = (batch.source_ports, batch.destination_ports)
    return list(zip(sources, destinations, *ports, strict=True))


def _groups(
    batch: pb.OperationBatch, kinds: list[pb.OperationKind.ValueType]
) -> tuple[list[GroupKey], list[int]]:
    """Distinct keys and each operation's row among them, or DELETE."""
    deleted = pb.OPERATION_KIND_DELETE
    if pb.OPERATION_KIND_SET not in kinds:
        return [], [DELETE] * len(kinds)
    hops = [NextHop(hop.node, hop.key, hop.address) for hop in batch.next_hops]
    risks = _risk_groups(batch)
    spare = batch.backup_risks or [0] * len(kinds)
    fours = list(zip(batch.primaries, batch.backups, batch.risks, spare, strict=True))
    whole = deleted not in kinds
    used = fours if whole else [four for four, k in zip(fours, kinds, strict=True) if k != deleted]
    rows = {four: row for row, four in enumerate(dict.fromkeys(used))}
    keys: list[GroupKey] = [
        (
            hops[primary],
            hops[backup - 1] if backup else None,
            risks[risk - 1] if risk else (),
            risks[other - 1] if other else (),
        )
        for primary, backup, risk, other in rows
    ]
    if whole:
        return keys, list(map(rows.__getitem__, fours))
    pairs = zip(fours, kinds, strict=True)
    return keys, [DELETE if kind == deleted else rows[four] for four, kind in pairs]


def _risk_groups(batch: pb.OperationBatch) -> list[tuple[Link, ...]]:
    links = [Link.between(link.source, link.target, link.key) for link in batch.risk_links]
    groups = [tuple(map(links.__getitem__, group.links)) for group in batch.risk_groups]
    return [group if len(group) < 2 else tuple(sorted(set(group))) for group in groups]  # noqa: PLR2004


def _stray_index(batch: pb.OperationBatch) -> str:
    """Say which index points outside its array."""
    limits = {
        "sources": ("endpoints", len(batch.endpoints)),
        "destinations": ("endpoints", len(batch.endpoints)),
        "primaries": ("next_hops", len(batch.next_hops)),
        "backups": ("next_hops", len(batch.next_hops) + 1),
        "risks": ("risk_groups", len(batch.risk_groups) + 1),
        "backup_risks": ("risk_groups", len(batch.risk_groups) + 1),
    }
    for name, column in _columns(batch):
        array, limit = limits.get(name, ("", _LAST_PORT + 1))
        for row, index in enumerate(column):
            if index >= limit:
                return f"operation {row}: {name} has {index}, which is not an index of {array}"
    return "a risk group holds an index that is not one of risk_links"
