"""Replaces a few entries among many.

Rows between two changes stay as they are, so new columns are joined from long stretches of old
ones, at the speed of memory. The result records how it was made, so that nobody has to compare it
with the old entries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from heddle_controller.model.arrays import Ints, distinct, ranges, starts
from heddle_controller.model.program import COLUMNS, Edit, Entries, EntryMark, EntryOrigin


def known_edit(old: Entries, new: Entries, *, stages: bool = False) -> Edit | None:
    """Return how the new entries were made from the old ones; None if that is not known.

    Unless ``stages`` is set, either side may also be a copy with other stages.
    """
    if EntryMark.on(old).is_of(new, stages=stages):
        none = np.empty(0, dtype=np.int64)
        return Edit(none, none)
    made = new.made
    if made is None or not made.to.is_of(new, stages=stages):
        return None
    return made.edit if made.of.is_of(old, stages=stages) else None


def splice_entries(old: Entries, gone: Ints, places: Ints, fresh: Entries) -> Entries:
    """Return the old entries without some rows, and with fresh ones inserted.

    Columns in which nothing changes are the same arrays as before.

    Args:
        old: Any entries.
        gone: Rows of ``old`` to leave out, ascending.
        places: For each fresh entry, the row of ``old`` before which to insert it, ascending.
        fresh: The entries to insert.
    """
    came = places + np.arange(len(fresh)) - np.searchsorted(gone, places)
    return edited_entries(old, Edit(gone, came), fresh)


def edited_entries(old: Entries, edit: Edit, fresh: Entries) -> Entries:
    """Do the same as ``splice_entries``, given the rows that fresh entries have in the result."""
    if np.array_equal(edit.gone, edit.came):
        new = _overwritten(old, edit.gone, fresh)
    else:
        new = _spliced(old, edit, fresh)
    return replace(new, made=EntryOrigin(EntryMark.on(old), EntryMark.on(new), edit))


def _overwritten(old: Entries, rows: Ints, fresh: Entries) -> Entries:
    """Return the old entries with some rows overwritten by the fresh ones."""
    columns: dict[str, Any] = {
        name: _with(getattr(old, name), rows, getattr(fresh, name)) for name in COLUMNS
    }
    begins, ends = old.risk_first[rows], old.risk_first[rows + 1]
    first, links, lengths = old.risk_first, old.risk_links, np.diff(fresh.risk_first)
    if (ends - begins == lengths).all():
        links = _with(links, ranges(begins, ends), fresh.risk_links)
    else:
        own = np.diff(first)
        own[rows] = lengths
        first, at, parts = starts(own), 0, []
        bounds = zip(
            begins.tolist(), ends.tolist(), pairwise(fresh.risk_first.tolist()), strict=True
        )
        for begin, end, (low, high) in bounds:
            parts += [links[at:begin], fresh.risk_links[low:high]]
            at = end
        links = np.concatenate([*parts, links[at:]])
    return Entries(**columns, risk_first=first, risk_links=links)


def _with(column: Ints, places: Ints, values: Ints) -> Ints:
    """Return a column with new values in some places; the same array if nothing differs."""
    if (column[places] == values).all():
        return column
    column = column.copy()
    column[places] = values
    return column


class _Stretch(NamedTuple):
    """Adjacent rows, ``begin`` to ``end - 1``, of the old or the fresh entries."""

    fresh: bool
    begin: int
    end: int


def _spliced(old: Entries, edit: Edit, fresh: Entries) -> Entries:
    """Return the edited entries, wherever rows are removed and inserted."""
    stretches = [*_stretches(len(old), edit)]

    columns: dict[str, Any] = {
        name: _joined(stretches, getattr(old, name), getattr(fresh, name)) for name in COLUMNS
    }
    lengths = _joined(stretches, np.diff(old.risk_first), np.diff(fresh.risk_first))
    links = [_risks_of(s, fresh if s.fresh else old) for s in stretches]
    return Entries(
        **columns,
        risk_first=starts(lengths),
        risk_links=_joined(links, old.risk_links, fresh.risk_links),
    )


def _joined(stretches: Sequence[_Stretch], of_old: Ints, of_fresh: Ints) -> Ints:
    """Return a column of the result, joined from stretches of both columns."""
    return np.concatenate([(of_fresh if s.fresh else of_old)[s.begin : s.end] for s in stretches])


def _risks_of(stretch: _Stretch, entries: Entries) -> _Stretch:
    """Return the stretch of risk links that belongs to a stretch of rows."""
    first = entries.risk_first
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
