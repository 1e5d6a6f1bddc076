"""Hop counts from every switch to every place, and where two such tables differ.

A table knows which it was made from and where it can differ from that, so that comparing the two
looks at a few columns and rows instead of at millions of numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.hop_counts import HopCounts

Bits = npt.NDArray[np.uint8]

UNREACHED = np.iinfo(np.int16).max
"""Distance where no path leads."""


@dataclass(frozen=True, slots=True, eq=False)
class HopCountOrigin:
    """Which hop counts these are, and which they were made from."""

    token: object = field(default_factory=object)
    of: object = None
    """Token of those that they were made from, which need not be there any more."""
    columns: Ints | None = None
    """Places to which anything may differ from these, ascending."""
    rows: Ints | None = None
    """Rows of switches from which it may differ, to other places, whether next hops are several."""


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Hop counts from every switch to every place."""

    place: Ints
    """Place of each node: ``NONE`` for switches and for NICs without a live link."""
    row: Ints
    """Row of each node in ``distance``; all NICs share the last one."""
    distance: HopCounts
    """Links from a switch to the nearest switch of a place, shape (switches + 1,
    places); ``UNREACHED`` where there is no way, and all along the last row."""
    several: Bits
    """A bit for each distance above 0: is there more than one next hop?"""
    twin: Bools
    """Whether each arc runs to a NIC beside another one from the same switch."""
    made: HopCountOrigin = field(default_factory=HopCountOrigin)
    """Where it comes from."""


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
    table[:, :-1] = now.distance.columns(columns) != was.distance.columns(columns)
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
    columns = np.flatnonzero((now.distance.whole() != was.distance.whole()).any(axis=0))
    return columns, np.flatnonzero((now.several != was.several).any(axis=1))
