"""Decodes a push from the wire into columns, in one pass, without an object per entry.

C loops over whole columns decode the usual push. Only if one of them fails are the columns searched
for the row to report. On the wire, optional row numbers are counted from 1, and 0 stands for none.
So such tables are read with an extra first row that stands for none, and an index that is too large
fails where it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from heddle.v1 import agent_pb2 as pb
from heddle_agent.fib import LinkRisks, Match, NextHop
from heddle_agent.session.names import BYTES, NamesError, ReceivedNames, StringTable
from heddle_agent.session.risks import LinkNames, RiskColumns, below, numbers
from heddle_agent.table import Fence, Mode, Operations, Push, PushTargets

_MODES = {
    pb.PUSH_MODE_FULL_SYNC: Mode.FULL_SYNC,
    pb.PUSH_MODE_INCREMENTAL: Mode.INCREMENTAL,
}
_LAST_PORT = 65535
_PORTS = ("source_ports", "destination_ports")
_ADDRESSES = "hop_addresses"
_HOPS = ("hop_nodes", "hop_keys", _ADDRESSES)
_NAMES = (
    *("sources", "destinations", "nics", "nic_addresses"),
    *("link_sources", "link_targets", "link_keys"),
)
"""Columns of name numbers, except those of next hops."""
_hop: Callable[[tuple[str, str, str]], NextHop] = partial(tuple.__new__, NextHop)


class MalformedPushError(Exception):
    """A push that cannot be decoded; the message says which field of which row is wrong."""


def decode_push(message: pb.Push, received: ReceivedNames | None = None) -> Push:
    """Decode one push; MalformedPushError if it is not valid.

    Risks are checked but not decoded yet. ``received`` holds the names of the session so far, and
    gains those of this push.
    """
    try:
        names = (received or ReceivedNames()).names(message)
    except NamesError as error:
        raise MalformedPushError(str(error)) from None
    mode = _MODES.get(message.mode)
    if mode is None:
        raise MalformedPushError(f"mode {message.mode} is unknown: send FULL_SYNC or INCREMENTAL")
    return Push(
        mode=mode,
        version=Fence(message.epoch, message.generation),
        nonce=message.nonce,
        operations=_operations(message.operations, names),
        sweep_stale=message.sweep_stale,
        completes_generation=message.completes_generation,
    )


def _operations(batch: pb.OperationBatch, names: StringTable) -> Operations:
    try:
        columns = [_checked(name, getattr(batch, name)) for name in _NAMES]
        sources, destinations, nics, nic_addresses, *links = names.rows(*columns)
        text = names.texts
        matches = _matches(batch, text[sources].tolist(), text[destinations].tolist())
        hops = _hops(batch, names)
        keys = _ways(batch, LinkNames.of(text, *links), hops)
        groups = _rows(_column("ways", batch.ways), len(matches), len(keys))
        addresses = dict(zip(text[nics].tolist(), text[nic_addresses].tolist(), strict=True))
    except (LookupError, ValueError):
        raise MalformedPushError(_fault(batch, names)) from None
    if len(set(matches)) < len(matches):
        raise MalformedPushError(_repeated(matches))
    return Operations(matches, groups, keys, addresses, hops if len(hops) <= len(keys) else None)


def _rows(ways: list[int], count: int, limit: int) -> list[int]:
    """Return the row of each operation's way among the keys; 0 on the wire becomes DELETE (-1)."""
    if len(ways) != count:
        raise ValueError
    if ways and max(ways) > limit:
        raise IndexError
    return [way - 1 for way in ways]


def _checked(name: str, content: bytes) -> bytes:
    """Return a column's bytes, after checking that they are whole numbers."""
    if len(content) % BYTES:
        raise MalformedPushError(f"{name} has {len(content)} bytes: send 4 for each number")
    return content


def _column(name: str, content: bytes) -> list[int]:
    """Return the numbers of a column."""
    return numbers(_checked(name, content))


def _matches(batch: pb.OperationBatch, sources: list[str], destinations: list[str]) -> list[Match]:
    from_, to = (_checked(name, getattr(batch, name)) for name in _PORTS)
    below(_LAST_PORT + 1, from_ + to)
    return list(zip(sources, destinations, numbers(from_), numbers(to), strict=True))


def _hops(batch: pb.OperationBatch, names: StringTable) -> list[NextHop]:
    columns = tuple(_checked(name, getattr(batch, name)) for name in _HOPS)
    known = names.hops.get(columns)
    if known is None:
        known = _new_hops(names, *columns)
        names.hops.clear()
        names.hops[columns] = known
    return known


def _new_hops(names: StringTable, nodes: bytes, keys: bytes, addresses: bytes) -> list[NextHop]:
    node, key = names.rows(nodes, keys)
    told = numbers(addresses)
    (known,) = names.rows(np.array([n - 1 for n in told if n], dtype="<u4").tobytes())
    texts = iter(names.texts[known].tolist())
    given = [next(texts) if number else "" for number in told]
    columns = names.texts[node].tolist(), names.texts[key].tolist(), given or [""] * len(node)
    return list(map(_hop, zip(*columns, strict=True)))


def _ways(batch: pb.OperationBatch, links: LinkNames, hops: list[NextHop]) -> PushTargets:
    """Return the ways that entries lead to, one row per way."""
    spare: list[NextHop | None] = [None, *hops]
    primaries = list(map(hops.__getitem__, _column("way_primaries", batch.way_primaries)))
    backups = list(map(spare.__getitem__, _column("way_backups", batch.way_backups)))
    if len(primaries) != len(backups):
        raise ValueError
    risks = RiskColumns.of(batch)
    risks.check(len(links.keys), len(primaries))
    return PushTargets(primaries, backups, LinkRisks(None, partial(risks.read, links)))


def _repeated(matches: list[Match]) -> str:
    first: dict[Match, int] = {}
    for row, match in enumerate(matches):
        if first.setdefault(match, row) != row:
            return f"operation {row} has the match of operation {first[match]}: send it once"
    return ""


_TOGETHER = (
    ("ways", "sources", "destinations", "source_ports", "destination_ports"),
    ("way_primaries", "way_backups", "way_risks", "way_backup_risks"),
    _HOPS,
    ("link_sources", "link_targets", "link_keys"),
    ("nics", "nic_addresses"),
)
"""Columns in the same tuple must have the same length."""
_OPTIONAL = {_ADDRESSES}
_INDEXES = {
    "risk_links": ("link_sources", 0),
    "way_primaries": ("hop_nodes", 0),
    "way_backups": ("hop_nodes", 1),
    "way_risks": ("risk_ends", 1),
    "way_backup_risks": ("risk_ends", 1),
    "ways": ("way_primaries", 1),
}
"""For each index column: the table that it points into, and the number of the table's first row."""


def _fault(batch: pb.OperationBatch, names: StringTable) -> str:
    """Return which column has a wrong length, or which number points outside its table."""
    read: Callable[[str], Any] = partial(getattr, batch)
    columns = {
        field.name: _column(field.name, read(field.name))
        for field in batch.DESCRIPTOR.fields
        if field.name not in {"names", "name_numbers"}
    }
    sizes = {name: len(column) for name, column in columns.items()}
    for first, *others in _TOGETHER:
        for name in others:
            if sizes[name] != sizes[first] and not (name in _OPTIONAL and not sizes[name]):
                return f"{first} has {sizes[first]} elements but {name} has {sizes[name]}"
    return _beyond_table(columns, names) or "risk_ends has to rise, up to the length of risk_links"


def _beyond_table(columns: Mapping[str, list[int]], names: StringTable) -> str:
    """Describe the first number that is out of range; empty if there is none."""
    for name in _PORTS:
        for row, port in enumerate(columns[name]):
            if port > _LAST_PORT:
                return f"operation {row}: {name} has {port}, over {_LAST_PORT}"
    for name, base in [*((name, 0) for name in (*_NAMES, *_HOPS[:2])), (_ADDRESSES, 1)]:
        for row, number in enumerate(columns[name]):
            if number >= base and number - base not in names:
                return f"{_row(name, row)}: {name} has {number}, which no name has"
    for name, (table, base) in _INDEXES.items():
        for row, index in enumerate(columns[name]):
            if index >= len(columns[table]) + base:
                return f"{_row(name, row)}: {name} has {index}, which is not an index of {table}"
    return ""


def _row(name: str, row: int) -> str:
    return f"{'operation' if name in _TOGETHER[0] else 'row'} {row}"
