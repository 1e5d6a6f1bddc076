"""Entries with a few of them taken out and others put in.

Between two places where something changes the old rows stand as they stood, so columns are put
together of long stretches, which is as fast as memory is. What was done lately is remembered, so
that nobody has to compare what came out with what went in.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from heddle_controller.model.fabric import NONE, Ints
from heddle_controller.model.plan import starts
from heddle_controller.model.program import Entries

_COLUMNS = (
    "switch",
    "source",
    "destination",
    "source_port",
    "destination_port",
    "primary",
    "backup",
    "stage",
)


class Edit(NamedTuple):
    """What makes one set of entries into another; all that stays keeps its order."""

    gone: Ints
    """Rows of the old ones that are not among the new ones, ascending."""
    came: Ints
    """Rows of the new ones that were not among the old ones, ascending."""

    def then(self, other: Edit, old: int, between: int) -> Edit:
        """This one and then another, as one; so many rows there are before, and in between."""
        stood, kept = _others(self.gone, old), _others(self.came, between)
        back = np.full(between, NONE, dtype=np.int64)
        back[kept] = stood
        gone = back[other.gone]
        rows = _others(other.gone, between)
        count = len(rows) + len(other.came)
        onward = np.full(between, NONE, dtype=np.int64)
        onward[rows] = _others(other.came, count)
        came = onward[self.came]
        return Edit(
            np.sort(np.concatenate([self.gone, gone[gone != NONE]])),
            np.sort(np.concatenate([other.came, came[came != NONE]])),
        )


def _others(rows: Ints, count: int) -> Ints:
    """All rows of so many but these."""
    rest = np.ones(count, dtype=np.bool_)
    rest[rows] = False
    return np.flatnonzero(rest)


_lately: deque[tuple[Entries, Entries, Edit]] = deque(maxlen=2)
"""What went in, what came out, and how."""


def edit_between(old: Entries, new: Entries, *, stages: bool = False) -> Edit | None:
    """How the new ones were made of the old ones; None where that is not known.

    Unless ``stages`` matter, either may be a copy with others.
    """
    if _alike(old, new, stages=stages):
        none = np.empty(0, dtype=np.int64)
        return Edit(none, none)
    for before, after, edit in [*_lately]:
        if _alike(after, new, stages=stages) and _alike(before, old, stages=stages):
            return edit
    return None


def _alike(one: Entries, other: Entries, *, stages: bool) -> bool:
    """Whether two sets share every column: not equal ones, the very same."""
    names = (*_COLUMNS[: None if stages else -1], "risk_first", "risk_links")
    return all(getattr(one, name) is getattr(other, name) for name in names)


class _Stretch(NamedTuple):
    """Rows that follow one another, of the old entries or of the fresh ones."""

    fresh: bool
    begin: int
    end: int


def spliced(old: Entries, gone: Ints, places: Ints, fresh: Entries) -> Entries:
    """The old entries without some, and with the fresh ones.

    Args:
        old: Any entries.
        gone: Rows of these that are left out, ascending.
        places: Before which row of the old ones each of the fresh stands, ascending.
        fresh: What is put in.
    """
    stretches = [*_stretches(len(old), gone, places)]
    columns = {
        name: np.concatenate(
            [getattr(fresh if s.fresh else old, name)[s.begin : s.end] for s in stretches]
        )
        for name in _COLUMNS
    }
    lengths, links = [], []
    for of_fresh, begin, end in stretches:
        entries = fresh if of_fresh else old
        first = entries.risk_first[begin : end + 1]
        lengths.append(np.diff(first))
        links.append(entries.risk_links[first[0] : first[-1]])
    new = Entries(
        **columns, risk_first=starts(np.concatenate(lengths)), risk_links=np.concatenate(links)
    )
    came = places + np.arange(len(fresh)) - np.searchsorted(gone, places)
    _lately.append((old, new, Edit(gone, came)))
    return new


def _stretches(count: int, gone: Ints, places: Ints) -> Iterator[_Stretch]:
    """What the result is made of, in order; at least one, perhaps empty."""
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
