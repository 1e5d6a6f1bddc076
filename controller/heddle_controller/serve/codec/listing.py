"""The entries that an agent says its switch holds, from columns into rows of a fabric."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.errors import InputError, refuse
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.program import Entries
from heddle_controller.serve.codec.columns import BYTES

LAST_PORT = 65535
MOST_ENTRIES = 65_536
"""An agent that holds more tells none."""
MOST_RISKS = 1 << 22
"""Links at risk of all ways, or of all entries: a few bytes could stand for very many."""


def entries_from_pb(told: pb.OperationBatch, fabric: Fabric, switch: str) -> Entries | None:
    """Entries of one switch; None where they speak of what the fabric does not have.

    Raises:
        InputError: the columns do not fit each other, an index is out of range, an
            operation deletes, or a match stands twice.
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
    backup, size = ways.backup[way], np.diff(ways.first)[way]
    first = np.concatenate([[0], np.cumsum(size)]).astype(np.int64)
    _check_bound(int(first[-1]))
    within = np.arange(first[-1]) - np.repeat(first[:-1], size)
    links = ways.risk_links[np.repeat(ways.first[way], size) + within]
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
"""Stands for a next hop or a link that the fabric does not have."""


@dataclass(frozen=True, slots=True, eq=False)
class _Ways:
    """The ways of entries, as ``Entries`` has them."""

    primary: Ints
    backup: Ints
    first: Ints
    risk_links: Ints


def _matches(told: pb.OperationBatch, fabric: Fabric) -> Ints:
    """Rows of both NICs and both ports, shape (operations, 4)."""
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
    """Risks of a backup, as entries have them."""
    return np.where(links == _LOST, _LOST, ~links)


def _risk_groups(told: pb.OperationBatch, fabric: Fabric) -> list[Ints]:
    """Rows of the links of each group, ascending, none twice."""
    rows = [_link(fabric, *link) for link in _named(told, *_LINK)]
    links = _at(np.array(rows, dtype=np.int64), _column(told, "risk_links"), "risk_links")
    ends = _column(told, "risk_ends")
    if (np.diff(ends, prepend=0) < 0).any() or (ends[-1] if len(ends) else 0) != len(links):
        raise _malformed("risk_ends has to rise, up to the length of risk_links")
    return [np.unique(part) for part in np.split(links, ends[:-1])][: len(ends)]


_LINK = ("link_sources", "link_targets", "link_keys")


def _arc(fabric: Fabric, switch: str, node: str, key: str) -> int:
    """The arc from a switch to its neighbour over one link."""
    link = _link(fabric, switch, node, key)
    if link == _LOST:
        return _LOST
    return 2 * link + int(fabric.structure.links.a[link] != fabric.structure.index[switch])


def _link(fabric: Fabric, one: str, other: str, key: str) -> int:
    rows = fabric.find_links(one, other, key)
    return rows[0] if rows else _LOST


def _named(told: pb.OperationBatch, *columns: str) -> list[tuple[str, ...]]:
    """Rows of columns of names."""
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
