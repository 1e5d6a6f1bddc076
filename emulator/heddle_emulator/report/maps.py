"""Heat maps of a fabric: utilisation of every directed cable between two tiers of switches.

There is one map for each zone and direction, and one for all cables that join zones. Columns are
the lower tier and rows the upper one. There are more leaves than spines, so maps are wide and low,
which suits pages that scroll downwards. In a fabric without tiers the switches are both rows and
columns. Cables of NICs are left out, because there is one for each NIC and nobody chooses what it
carries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from heddle.names import natural
from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.report.evidence import Dead, HeatMap, Moment

DIGITS = 4
"""Digits of a utilisation in a file; more would only make the file longer."""
MOST_CELLS = 400_000
"""Maps with more cells, such as of a thousand randomly joined switches, are unreadable."""


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """The state of a fabric at a moment."""

    title: str
    """"before", "during", "after"."""
    at: float | None
    utilization: Floats
    """Load over capacity of each arc, shape (2 x links,)."""
    carries: Bools
    """Whether each arc forwards packets, shape (2 x links,)."""


@dataclass(frozen=True, slots=True, eq=False)
class _MapArcs:
    """The arcs of one map."""

    title: str
    row_kind: str
    column_kind: str
    arcs: Ints
    row: Ints
    """Node row, in the fabric, of the switch in each arc's row of the map."""
    column: Ints
    from_columns: bool


def heat_maps(fabric: Fabric, snapshots: Sequence[Snapshot]) -> tuple[HeatMap, ...]:
    """Return maps of all cables between switches, lower tiers first, upwards before downwards."""
    maps = (_map(fabric, part, snapshots) for part in _parts(fabric))
    return tuple(one for one in maps if len(one.rows) * len(one.columns) <= MOST_CELLS)


def _parts(fabric: Fabric) -> Iterator[_MapArcs]:
    """Yield arcs by the kinds of their ends, then by zone, then by direction."""
    structure, nodes = fabric.structure, fabric.structure.nodes
    tail, head, kind = structure.tail, structure.head, structure.nodes.kind
    low, high = np.minimum(kind[tail], kind[head]), np.maximum(kind[tail], kind[head])
    zone = np.where(nodes.zone[tail] == nodes.zone[head], nodes.zone[tail], NONE)
    between, several = low > NodeKind.NIC, len(structure.zone_names) > 1
    for below, above in np.unique(np.stack([low, high])[:, between], axis=1).T.tolist():
        tier = between & (low == below) & (high == above)
        for place in np.unique(zone[tier]).tolist():
            arcs = np.flatnonzero(tier & (zone == place))
            where = f"zone {structure.zone_names[place]}, " if several and place != NONE else ""
            yield from _directions(fabric, where, (below, above), arcs)


def _directions(
    fabric: Fabric, where: str, kinds: tuple[int, int], arcs: Ints
) -> Iterator[_MapArcs]:
    tail, head = fabric.structure.tail[arcs], fabric.structure.head[arcs]
    below, above = (NodeKind(kind).name.lower() for kind in kinds)
    if below == above:
        yield _MapArcs(f"{where}{below} to {above}", below, above, arcs, tail, head, False)
        return
    up = fabric.structure.nodes.kind[tail] == kinds[0]
    there, back = np.flatnonzero(up), np.flatnonzero(~up)
    title = f"{where}{below} to {above}"
    yield _MapArcs(title, above, below, arcs[there], head[there], tail[there], True)
    title = f"{where}{above} to {below}"
    yield _MapArcs(title, above, below, arcs[back], tail[back], head[back], False)


def _map(fabric: Fabric, part: _MapArcs, snapshots: Sequence[Snapshot]) -> HeatMap:
    rows, row_of = _ordered(fabric, part.row)
    columns, column_of = _ordered(fabric, part.column)
    shape = len(rows), len(columns)
    moments = tuple(_moment(one, part.arcs, (row_of, column_of), shape) for one in snapshots)
    return HeatMap(
        part.title, part.row_kind, part.column_kind, rows, columns, moments, part.from_columns
    )


def _ordered(fabric: Fabric, of_arc: Ints) -> tuple[tuple[str, ...], Ints]:
    """Return ids in natural order, and each arc's place among them."""
    ids = fabric.structure.nodes.ids
    present, inverse = np.unique(of_arc, return_inverse=True)
    order = sorted(range(len(present)), key=lambda place: natural(ids[int(present[place])]))
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    return tuple(ids[int(present[one])] for one in order), place[inverse]


def _moment(
    snapshot: Snapshot, arcs: Ints, cells: tuple[Ints, Ints], shape: tuple[int, int]
) -> Moment:
    """Return one moment of a map; a cell has the fullest of its parallel cables.

    A cell is dead if none of its cables carries.
    """
    full = np.full(shape, -np.inf)
    np.maximum.at(full, cells, snapshot.utilization[arcs])
    alive = np.zeros(shape, dtype=np.bool_)
    np.logical_or.at(alive, cells, snapshot.carries[arcs])
    there = np.isfinite(full)
    rounded = np.round(np.where(there, full, 0.0), DIGITS).tolist()
    values = tuple(
        tuple(value if exists else None for value, exists in zip(line, present, strict=True))
        for line, present in zip(rounded, there.tolist(), strict=True)
    )
    dead = tuple(Dead(int(row), int(column)) for row, column in np.argwhere(there & ~alive))
    return Moment(snapshot.title, snapshot.at, values, dead)
