"""Entries with a few of them taken out and others put in.

Between two places where something changes the old rows stand as they stood, so columns are put
together of long stretches, which is as fast as memory is. What comes out says how it was made, so
that nobody has to compare it with what went in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from heddle_controller.model.arrays import Ints, ranges, starts
from heddle_controller.model.program import COLUMNS, Edit, Entries, EntryMark, EntryOrigin


def known_edit(old: Entries, new: Entries, *, stages: bool = False) -> Edit | None:
    """How the new ones were made of the old ones; None where that is not known.

    Unless ``stages`` matter, either may be a copy with others.
    """
    if EntryMark.on(old).is_of(new, stages=stages):
        none = np.empty(0, dtype=np.int64)
        return Edit(none, none)
    made = new.made
    if made is None or not made.to.is_of(new, stages=stages):
        return None
    return made.edit if made.of.is_of(old, stages=stages) else None


def splice_entries(old: Entries, gone: Ints, places: Ints, fresh: Entries) -> Entries:
    """The old entries without some, and with the fresh ones.

    Columns in which nothing changes are those of the old ones.

    Args:
        old: Any entries.
        gone: Rows of these that are left out, ascending.
        places: Before which row of the old ones each of the fresh stands, ascending.
        fresh: What is put in.
    """
    came = places + np.arange(len(fresh)) - np.searchsorted(gone, places)
    return edited_entries(old, Edit(gone, came), fresh)


def edited_entries(old: Entries, edit: Edit, fresh: Entries) -> Entries:
    """The same, by where the fresh ones stand among the new."""
    if np.array_equal(edit.gone, edit.came):
        new = _overwritten(old, edit.gone, fresh)
    else:
        new = _spliced(old, edit, fresh)
    return replace(new, made=EntryOrigin(EntryMark.on(old), EntryMark.on(new), edit))


def _overwritten(old: Entries, rows: Ints, fresh: Entries) -> Entries:
    """The old entries with others in some rows."""
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
    """A column with other values in some places."""
    if (column[places] == values).all():
        return column
    column = column.copy()
    column[places] = values
    return column


class _Stretch(NamedTuple):
    """Rows that follow one another, of the old entries or of the fresh ones."""

    fresh: bool
    begin: int
    end: int


def _spliced(old: Entries, edit: Edit, fresh: Entries) -> Entries:
    """As ``edited_entries``, wherever rows go and come."""
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
    """A column of the result."""
    return np.concatenate([(of_fresh if s.fresh else of_old)[s.begin : s.end] for s in stretches])


def _risks_of(stretch: _Stretch, entries: Entries) -> _Stretch:
    """Where the risk links of some rows stand."""
    first = entries.risk_first
    return _Stretch(stretch.fresh, int(first[stretch.begin]), int(first[stretch.end]))


def _stretches(count: int, edit: Edit) -> Iterator[_Stretch]:
    """What the result is made of, in order; at least one, perhaps empty."""
    gone, came = edit
    kept = came - np.arange(len(came))  # rows that stay and stand before each that came
    places = kept + np.searchsorted(gone - np.arange(len(gone)), kept, side="right")
    at = 0
    edges = np.unique(np.concatenate([gone, places]))
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
