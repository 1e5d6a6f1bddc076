"""Hop counts after a few links went or came, from those before.

A link that goes matters to the distance of a place only where one of its ends has no other next
hop there; one that comes, only where it is a short cut. Where neither holds at any end of any such
link, all distances stand: each switch still has a neighbour that is one hop nearer, and none that
is two. So only those places are searched again; of all others it is asked anew, at the ends of
these links alone, whether there is more than one next hop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Ints, NodeKind, Structure
from heddle_controller.model.few import MOST, search_few

if TYPE_CHECKING:
    from heddle_controller.model.underlay import Bits, Hops, Reach

    Spread = Callable[[Ints, Ints, Hops], Bits]

UNREACHED = np.iinfo(np.int16).max
"""Distance where no path leads."""
MOST_CHANGED = 64
"""Arcs that went or came, beyond which everything is searched again."""


@dataclass(frozen=True, slots=True, eq=False)
class Made:
    """Which hop counts these are, and which they were made from."""

    token: object = field(default_factory=object)
    of: object = None
    """Token of those that they were made from, which need not be there any more."""
    columns: Ints | None = None
    """Places to which anything may differ from these, ascending."""
    rows: Ints | None = None
    """Rows of switches from which it may differ, to other places, whether next hops are several."""


def from_known(
    structure: Structure, carries: Bools, known: Mapping[bytes, Reach], spread: Spread
) -> Reach | None:
    """The reach over the arcs that carry, from the most like of those known, by packed mask.

    ``spread`` fills in the distances of some places, by arcs. None where too much is different, or
    links of NICs are.
    """
    if not known:
        return None
    packed = np.packbits(carries)
    other = {key: packed ^ np.frombuffer(key, dtype=np.uint8) for key in known}
    key = min(other, key=lambda one: int(np.count_nonzero(other[one])))
    changed = np.flatnonzero(np.unpackbits(other[key], count=len(carries)))
    nic = structure.nodes.kind == NodeKind.NIC
    at_nic = nic[structure.tail[changed]] | nic[structure.head[changed]]
    if len(changed) > MOST_CHANGED or at_nic.any() or not known[key].distance.size:
        return None
    return _updated(structure, carries, known[key], changed, spread)


def _updated(
    structure: Structure, carries: Bools, known: Reach, changed: Ints, spread: Spread
) -> Reach:
    again = _shortened(structure, known, changed[carries[changed]])
    several = known.several.copy()
    for node in sorted({*structure.tail[changed].tolist()}):
        count, counts = _next_hops(structure, carries, known, node)
        again |= counts & (count == 0)
        several[known.row[node]] = np.packbits(counts & (count > 1))
    columns = np.flatnonzero(again)
    rows = np.unique(known.row[structure.tail[changed]])
    made = Made(of=known.made.token, columns=columns, rows=rows)
    if not len(columns):
        return replace(known, several=several, made=made)
    part = np.where(known.distance[:, columns] == 0, 0, UNREACHED).astype(np.int16)
    bits = _searched(structure, carries, known, part, spread)
    distance = known.distance.copy()
    distance[:, columns] = part
    _set_bits(several, columns, bits)
    return replace(known, distance=distance, several=several, made=made)


def _searched(
    structure: Structure, carries: Bools, known: Reach, part: Hops, spread: Spread
) -> Bits:
    """Fill in the distances of some places; whether next hops are several, a byte for each."""
    places = part.shape[1]
    if places <= MOST:
        return search_few(structure, carries, known.row, part).view(np.uint8)
    switch = structure.nodes.kind != NodeKind.NIC
    arcs = np.flatnonzero(carries & switch[structure.tail] & switch[structure.head])
    bits = spread(known.row[structure.tail[arcs]], known.row[structure.head[arcs]], part)
    return np.unpackbits(bits, axis=1, count=places)


def _set_bits(packed: Bits, columns: Ints, bits: Bits) -> None:
    """Write some columns, ascending, of a table packed along its rows; others are not unpacked."""
    places = columns >> 3
    first = np.diff(places, prepend=-1) > 0
    touched = places[first]
    some = np.unpackbits(packed[:, touched], axis=1)
    some[:, 8 * (np.cumsum(first) - 1) + (columns & 7)] = bits
    packed[:, touched] = np.packbits(some, axis=1)


def _shortened(structure: Structure, known: Reach, come: Ints) -> Bools:
    """To which places arcs that came are a shorter way."""
    result = np.zeros(known.distance.shape[1], dtype=np.bool_)
    for arc in come.tolist():
        here = known.distance[known.row[structure.tail[arc]]].astype(np.int32)
        there = known.distance[known.row[structure.head[arc]]].astype(np.int32)
        result |= there + 1 < here
    return result


def _next_hops(structure: Structure, carries: Bools, known: Reach, node: int) -> tuple[Ints, Bools]:
    """Next hops of a switch to each place by the distances known, and where it needs any."""
    first, arcs = structure.out
    own = arcs[first[node] : first[node + 1]]
    own = own[carries[own] & (structure.nodes.kind[structure.head[own]] != NodeKind.NIC)]
    here = known.distance[known.row[node]]
    nearer = known.distance[known.row[structure.head[own]]] == here - 1
    count: Ints = np.count_nonzero(nearer, axis=0).astype(np.int64)
    return count, (here > 0) & (here != UNREACHED)


@dataclass(frozen=True, slots=True, eq=False)
class Differences:
    """From which switches to which places something differs."""

    places: Bools
    """Places to which it does from anywhere."""
    column: Ints
    """Of each place in ``table``, ``NONE`` where it has none."""
    table: Bools
    """Shape (rows of the distances, columns); the last column is of those that have none."""
    line: Ints
    """Of each row of the distances in ``lines``, ``NONE`` where it has none."""
    lines: Bools
    """Shape (lines, places); the last line is of those that have none."""

    def at(self, row: Ints, place: Ints) -> Bools:
        """Whether something does, from rows of the distances to places beside them."""
        found: Bools = self.table[row, self.column[place]] | self.lines[self.line[row], place]
        return found


def differences(now: Reach, was: Reach) -> Differences | None:
    """Where something differs; None where the places are others.

    Where one was made from the other it is known where to look.
    """
    if now.distance.shape != was.distance.shape:
        return None
    pairs = (now.place, was.place), (now.twin, was.twin)
    if not all(one is other or np.array_equal(one, other) for one, other in pairs):
        return None
    columns, rows = _suspects(now, was)
    height, places = now.distance.shape
    table = np.zeros((height, len(columns) + 1), dtype=np.bool_)
    table[:, :-1] = now.distance[:, columns] != was.distance[:, columns]
    bytes_of = now.several[:, columns >> 3] ^ was.several[:, columns >> 3]
    table[:, :-1] |= (bytes_of >> (7 - (columns & 7)).astype(np.uint8)) & 1 > 0
    lines = np.zeros((len(rows) + 1, places), dtype=np.bool_)
    bits = np.unpackbits(now.several[rows] ^ was.several[rows], axis=1, count=places)
    lines[:-1] = bits.view(np.bool_)
    column, line = np.full(places, NONE, dtype=np.int64), np.full(height, NONE, dtype=np.int64)
    column[columns], line[rows] = np.arange(len(columns)), np.arange(len(rows))
    concerned: Bools = np.logical_or.reduce(lines, axis=0)
    concerned[columns[table[:, :-1].any(axis=0)]] = True
    return Differences(concerned, column, table, line, lines)


def _suspects(now: Reach, was: Reach) -> tuple[Ints, Ints]:
    """Places to which anything may differ, and rows from which next hops of others may."""
    for made, other in ((now.made, was.made), (was.made, now.made)):
        if made.of is other.token and made.columns is not None and made.rows is not None:
            return made.columns, made.rows
    columns = np.flatnonzero((now.distance != was.distance).any(axis=0))
    return columns, np.flatnonzero((now.several != was.several).any(axis=1))
