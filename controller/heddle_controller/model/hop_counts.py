"""A table of hop counts, and one like it but for a few columns.

At 1,728 switches and 1,536 places the table is 5 MB. A lost link matters to a place or two, and
to copy all of it for these took longer than to search them: fresh memory is slow. So columns
that differ are kept beside a table that is shared, until they are many.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from heddle_controller.model.arrays import NONE, Ints

HopArray = npt.NDArray[np.int16]

MOST_APART = 64
"""Columns kept beside a table; with more, all is copied into one."""


@dataclass(frozen=True, slots=True, eq=False)
class HopCounts:
    """Counts by row and place; never written to once made."""

    table: HopArray
    """Shape (rows, places)."""
    column: Ints | None = None
    """Of each place in ``apart``, ``NONE`` where the table has it; None where it has all."""
    apart: HopArray | None = None
    """Columns that the table does not have right, shape (rows, columns)."""

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and places."""
        rows, places = self.table.shape
        return rows, places

    @property
    def size(self) -> int:
        """How many counts there are."""
        return self.table.size

    def at(self, row: Ints | int, place: Ints | int) -> HopArray:
        """Counts of rows at places beside them; they broadcast like indexes of an array."""
        found: HopArray = np.asarray(self.table[row, place])
        if self.column is None or self.apart is None:
            return found
        column = self.column[place]
        own = column != NONE
        if not np.any(own):
            return found
        return np.where(own, self.apart[row, column], found)

    def lines(self, rows: Ints) -> HopArray:
        """Some rows whole, shape (rows, places)."""
        found: HopArray = self.table[rows]
        if self.column is not None and self.apart is not None:
            places = np.flatnonzero(self.column != NONE)
            found[:, places] = self.apart[rows][:, self.column[places]]
        return found

    def columns(self, places: Ints) -> HopArray:
        """Some places whole, shape (rows, places)."""
        return self.at(np.arange(len(self.table))[:, None], places)

    def whole(self) -> HopArray:
        """All counts as one table, shape (rows, places)."""
        return self.lines(np.arange(len(self.table)))

    def with_columns(self, places: Ints, counts: HopArray) -> HopCounts:
        """The same with other counts, shape (rows, places), at some places, each there once."""
        column = np.full(self.table.shape[1], NONE) if self.column is None else self.column.copy()
        column[places] = NONE
        kept = np.flatnonzero(column != NONE)
        if len(kept) + len(places) > MOST_APART:
            table = self.whole()
            table[:, places] = counts
            return HopCounts(table)
        apart = np.concatenate([self.columns(kept), counts], axis=1)
        column[np.append(kept, places)] = np.arange(apart.shape[1])
        return HopCounts(self.table, column, apart)
