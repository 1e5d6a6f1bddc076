"""A push from the wire into columns: one pass, no message object for each entry.

The usual push is decoded by C loops over whole columns; only when one of them stumbles are the
columns searched for the row to name. Rows that may be none are counted from 1 on the wire, so that
each table is read with a first row that stands for none, and an index that is too large fails where
it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from heddle.v1 import agent_pb2 as pb
from heddle_agent.fib import Match, NextHop, Perils
from heddle_agent.session.risks import BYTES, RiskColumns, numbers
from heddle_agent.table import Fence, Mode, Operations, Push, Ways

_MODES = {
    pb.PUSH_MODE_FULL_SYNC: Mode.FULL_SYNC,
    pb.PUSH_MODE_INCREMENTAL: Mode.INCREMENTAL,
}
_LAST_PORT = 65535
_hop: Callable[[tuple[str, str, str]], NextHop] = partial(tuple.__new__, NextHop)


class MalformedPushError(Exception):
    """A push that cannot be understood; says which field of which row is at fault."""


def decode_push(message: pb.Push) -> Push:
    """Decode one push, of its risks only whether they are sound; MalformedPushError otherwise."""
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
    try:
        ways = _column("ways", batch.ways)
        names = list(batch.names)
        matches = _matches(batch, names)
        hops = _hops(batch, names)
        keys = _ways(batch, names, hops)
        groups = _rows(ways, len(matches), len(keys))
        addresses = _addresses(batch, names) if batch.nics or batch.nic_addresses else {}
    except (IndexError, ValueError):
        raise MalformedPushError(_fault(batch)) from None
    if len(set(matches)) < len(matches):
        raise MalformedPushError(_repeated(matches))
    return Operations(matches, groups, keys, addresses, hops if len(hops) <= len(keys) else None)


def _rows(ways: list[int], count: int, limit: int) -> list[int]:
    """Of so many operations, the row of each among so many keys; DELETE is one less than 0."""
    if len(ways) != count:
        raise ValueError
    if ways and max(ways) > limit:
        raise IndexError
    return [way - 1 for way in ways]


def _column(name: str, content: bytes) -> list[int]:
    """The numbers of a column."""
    if len(content) % BYTES:
        raise MalformedPushError(f"{name} has {len(content)} bytes: send 4 for each number")
    return numbers(content)


def _named(names: list[str], name: str, content: bytes) -> Iterator[str]:
    return map(names.__getitem__, _column(name, content))


def _matches(batch: pb.OperationBatch, names: list[str]) -> list[Match]:
    from_, to = (
        _column("source_ports", batch.source_ports),
        _column("destination_ports", batch.destination_ports),
    )
    if from_ and (max(from_) > _LAST_PORT or max(to, default=0) > _LAST_PORT):
        raise ValueError
    return list(
        zip(
            _named(names, "sources", batch.sources),
            _named(names, "destinations", batch.destinations),
            from_,
            to,
            strict=True,
        )
    )


def _addresses(batch: pb.OperationBatch, names: list[str]) -> dict[str, str]:
    nics = _named(names, "nics", batch.nics)
    return dict(zip(nics, _named(names, "nic_addresses", batch.nic_addresses), strict=True))


def _ways(batch: pb.OperationBatch, names: list[str], hops: list[NextHop]) -> Ways:
    """What entries lead to, way by way."""
    spare: list[NextHop | None] = [None, *hops]
    primaries = list(map(hops.__getitem__, _column("way_primaries", batch.way_primaries)))
    backups = list(map(spare.__getitem__, _column("way_backups", batch.way_backups)))
    if len(primaries) != len(backups):
        raise ValueError
    risks = RiskColumns.of(batch)
    risks.check(len(names), len(primaries))
    return Ways(primaries, backups, Perils(None, partial(risks.read, names)))


def _hops(batch: pb.OperationBatch, names: list[str]) -> list[NextHop]:
    nodes = _named(names, "hop_nodes", batch.hop_nodes)
    keys = _named(names, "hop_keys", batch.hop_keys)
    if batch.hop_addresses:
        addresses = _named(["", *names], "hop_addresses", batch.hop_addresses)
        return list(map(_hop, zip(nodes, keys, addresses, strict=True)))
    return [NextHop(node, key) for node, key in zip(nodes, keys, strict=True)]


def _repeated(matches: list[Match]) -> str:
    first: dict[Match, int] = {}
    for row, match in enumerate(matches):
        if first.setdefault(match, row) != row:
            return f"operation {row} has the match of operation {first[match]}: send it once"
    return ""


_TOGETHER = (
    ("ways", "sources", "destinations", "source_ports", "destination_ports"),
    ("way_primaries", "way_backups", "way_risks", "way_backup_risks"),
    ("hop_nodes", "hop_keys", "hop_addresses"),
    ("link_sources", "link_targets", "link_keys"),
    ("nics", "nic_addresses"),
)
"""Columns of one length."""
_OPTIONAL = {"hop_addresses"}
_INDEXES = {
    **dict.fromkeys(("sources", "destinations", "nics", "nic_addresses"), ("names", 0)),
    **dict.fromkeys(("hop_nodes", "hop_keys"), ("names", 0)),
    **dict.fromkeys(("link_sources", "link_targets", "link_keys"), ("names", 0)),
    "hop_addresses": ("names", 1),
    "risk_links": ("link_sources", 0),
    "way_primaries": ("hop_nodes", 0),
    "way_backups": ("hop_nodes", 1),
    "way_risks": ("risk_ends", 1),
    "way_backup_risks": ("risk_ends", 1),
    "ways": ("way_primaries", 1),
}
"""Into which table a column points, and from which number it counts."""


def _fault(batch: pb.OperationBatch) -> str:
    """Say which column does not fit, or which number points outside its table."""
    read: Callable[[str], Any] = partial(getattr, batch)
    columns = {
        field.name: _column(field.name, read(field.name))
        for field in batch.DESCRIPTOR.fields
        if field.name != "names"
    }
    sizes = {name: len(column) for name, column in columns.items()} | {"names": len(batch.names)}
    for first, *others in _TOGETHER:
        for name in others:
            if sizes[name] != sizes[first] and not (name in _OPTIONAL and not sizes[name]):
                return f"{first} has {sizes[first]} elements but {name} has {sizes[name]}"
    for name in ("source_ports", "destination_ports"):
        for row, port in enumerate(columns[name]):
            if port > _LAST_PORT:
                return f"operation {row}: {name} has {port}, over {_LAST_PORT}"
    for name, (table, base) in _INDEXES.items():
        for row, index in enumerate(columns[name]):
            if index >= sizes[table] + base:
                row_of = "operation" if name in _TOGETHER[0] else "row"
                return f"{row_of} {row}: {name} has {index}, which is not an index of {table}"
    return "risk_ends has to rise, up to the length of risk_links"
