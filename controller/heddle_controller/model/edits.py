"""How a table of rows differs from an earlier one, and the table that an edit makes of that one.

If few rows among many change, rows between two changes stay as they are. So new columns are joined
from long stretches of old ones, at the speed of memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from heddle_controller.model.arrays import NONE, Ints, distinct, ranges, starts


class Edit(NamedTuple):
    """The difference between two tables. Rows that are in both keep their order."""

    gone: Ints
    """Rows of the old table that are not in the new one, ascending."""
    came: Ints
    """Rows of the new table that were not in the old one, ascending."""

    def then(self, other: Edit) -> Edit:
        """Return this edit followed by another, as one edit.

        The time depends on the number of rows in both edits, not on those of the tables.
        """
        gone = _moved(other.gone, self.came, self.gone)
        came = _moved(self.came, other.gone, other.came)
        return Edit(
            np.sort(np.concatenate([self.gone, gone])), np.sort(np.concatenate([other.came, came]))
        )


def _moved(rows: Ints, without: Ints, among: Ints) -> Ints:
    """Translate row numbers after some rows are removed and others are inserted.

    Args:
        rows: Row numbers before, ascending.
        without: Rows that are removed, numbered before, ascending. Any of ``rows`` that is among
            them is dropped from the result.
        among: Rows that are inserted, numbered after, ascending.
    """
    at = np.searchsorted(without, rows)
    taken = np.append(without, NONE)[at] == rows
    kept = (rows - at)[~taken]
    before = among - np.arange(len(among))  # how many kept rows precede each inserted one
    found: Ints = kept + np.searchsorted(before, kept, side="right")
    return found


class CompressedRows(NamedTuple):
    """A table that has one column with any number of elements per row."""

    flat: tuple[Ints, ...]
    """The columns with one element per row, shape (rows,) each."""
    first: Ints
    """Where the elements of each row begin in ``long``, shape (rows + 1,)."""
    long: Ints

    def edited(self, edit: Edit, fresh: CompressedRows) -> CompressedRows:
        """Return the table after an edit.

        A column in which nothing changes is the same array as before, if no row moves.

        Args:
            edit: The edit.
            fresh: The rows that come, in order.
        """
        if np.array_equal(edit.gone, edit.came):
            return _overwritten(self, edit.gone, fresh)
        return _spliced(self, edit, fresh)


def _overwritten(old: CompressedRows, rows: Ints, fresh: CompressedRows) -> CompressedRows:
    """Return a table with some rows overwritten by the fresh ones."""
    flat = tuple(_with(was, rows, now) for was, now in zip(old.flat, fresh.flat, strict=True))
    first, long = old.first, old.long
    begins, ends, lengths = first[rows], first[rows + 1], np.diff(fresh.first)
    if (ends - begins == lengths).all():
        return CompressedRows(flat, first, _with(long, ranges(begins, ends), fresh.long))
    own = np.diff(first)
    own[rows] = lengths
    at, parts = 0, []
    bounds = zip(begins.tolist(), ends.tolist(), pairwise(fresh.first.tolist()), strict=True)
    for begin, end, (low, high) in bounds:
        parts += [long[at:begin], fresh.long[low:high]]
        at = end
    return CompressedRows(flat, starts(own), np.concatenate([*parts, long[at:]]))


def _with(column: Ints, places: Ints, values: Ints) -> Ints:
    """Return a column with new values in some places; the same array if nothing differs."""
    if (column[places] == values).all():
        return column
    column = column.copy()
    column[places] = values
    return column


class _Stretch(NamedTuple):
    """Adjacent rows, ``begin`` to ``end - 1``, of the old or the fresh table."""

    fresh: bool
    begin: int
    end: int


def _spliced(old: CompressedRows, edit: Edit, fresh: CompressedRows) -> CompressedRows:
    """Return the edited table, wherever rows are removed and inserted."""
    stretches = [*_stretches(len(old.first) - 1, edit)]
    flat = (_joined(stretches, was, now) for was, now in zip(old.flat, fresh.flat, strict=True))
    lengths = _joined(stretches, np.diff(old.first), np.diff(fresh.first))
    elements = [_elements_of(one, fresh if one.fresh else old) for one in stretches]
    long = _joined(elements, old.long, fresh.long)
    return CompressedRows(tuple(flat), starts(lengths), long)


def _joined(stretches: Sequence[_Stretch], of_old: Ints, of_fresh: Ints) -> Ints:
    """Return a column of the result, joined from stretches of both columns."""
    return np.concatenate([(of_fresh if s.fresh else of_old)[s.begin : s.end] for s in stretches])


def _elements_of(stretch: _Stretch, table: CompressedRows) -> _Stretch:
    """Return the stretch of ``long`` that belongs to a stretch of rows."""
    first = table.first
    return _Stretch(stretch.fresh, int(first[stretch.begin]), int(first[stretch.end]))


def _stretches(count: int, edit: Edit) -> Iterator[_Stretch]:
    """Yield the stretches that make up the result, in order; at least one, perhaps empty."""
    gone, came = edit
    kept = came - np.arange(len(came))  # for each fresh row, how many kept rows come before it
    places = kept + np.searchsorted(gone - np.arange(len(gone)), kept, side="right")
    at = 0
    edges = distinct(np.concatenate([gone, places]))
    first, last = np.searchsorted(places, edges), np.searchsorted(places, edges, side="right")
    leaves = np.isin(edges, gone, assume_unique=True)
    for edge, begin, end, leaves_out in zip(
        edges.tolist(), first.tolist(), last.tolist(), leaves.tolist(), strict=True
    ):
        if edge > at:
            yield _Stretch(fresh=False, begin=at, end=edge)
        if end > begin:
            yield _Stretch(fresh=True, begin=begin, end=end)
        at = edge + leaves_out
    yield _Stretch(fresh=False, begin=at, end=count)
