"""Entries with a few of them taken out and others put in.

Between two places where something changes the old rows stand as they stood, so columns are put
together of long stretches, which is as fast as memory is. What comes out says how it was made, so
that nobody has to compare it with what went in.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from heddle_controller.model.arrays import Ints, starts
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


class _Stretch(NamedTuple):
    """Rows that follow one another, of the old entries or of the fresh ones."""

    fresh: bool
    begin: int
    end: int


def splice_entries(old: Entries, gone: Ints, places: Ints, fresh: Entries) -> Entries:
    """The old entries without some, and with the fresh ones.

    Args:
        old: Any entries.
        gone: Rows of these that are left out, ascending.
        places: Before which row of the old ones each of the fresh stands, ascending.
        fresh: What is put in.
    """
    stretches = [*_stretches(len(old), gone, places)]
    columns: dict[str, Any] = {
        name: np.concatenate(
            [getattr(fresh if s.fresh else old, name)[s.begin : s.end] for s in stretches]
        )
        for name in COLUMNS
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
    return replace(new, made=EntryOrigin(EntryMark.on(old), EntryMark.on(new), Edit(gone, came)))


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
