"""Who uses an arc: looked up for the few arcs that something has happened on.

A schedule holds all that will ever be sent, of which a small part is under way at a time. So
beside the index of all streams there is one of those that were active when it was made. It
serves until a stream starts that it does not know; then all of them are looked through again,
and as soon as as many were looked at in vain as making a new one costs, it is made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import Bools, Floats, Ints
from heddle_controller.model.plan import starts
from heddle_emulator.fluid.rows import places
from heddle_emulator.fluid.streams import Streams

PATIENCE = 3
"""Looks in vain, for each use by an active stream, that are worth a new index."""


@dataclass(frozen=True, slots=True, eq=False)
class _Index:
    """Uses in order of their arcs."""

    first: Ints
    """Where each arc's uses begin, shape (arcs + 1,)."""
    stream: Ints
    part: Floats

    @classmethod
    def of(cls, streams: Streams, rows: Ints, arc_count: int) -> _Index:
        """The uses of some streams."""
        uses = streams.uses_of(rows)
        arcs = streams.arcs[uses]
        order = np.argsort(arcs, kind="stable")
        stream = np.repeat(rows, np.diff(streams.first)[rows])[order]
        first = starts(np.bincount(arcs, minlength=arc_count))
        return cls(first, stream, streams.part[uses][order])


class Users:
    """The active streams on any arcs."""

    def __init__(self, streams: Streams, active: Bools, arc_count: int) -> None:
        """``active`` is the caller's, who keeps it up to date."""
        self._streams, self._active, self._arc_count = streams, active, arc_count
        self._lengths = np.diff(streams.first)
        self._all = _Index.of(streams, np.arange(len(streams), dtype=np.int64), arc_count)
        self._known, self._is_known = self._all, np.ones(len(streams), dtype=np.bool_)
        self._in_vain = 0
        self.uses = int(self._lengths[active].sum())
        """By active streams."""

    def change(self, joined: Ints, left: Ints) -> None:
        """Some streams, all of them inactive before, are active now, and others no more."""
        self.uses += int(self._lengths[joined].sum()) - int(self._lengths[left].sum())
        if not self._is_known[joined].all():
            self._known, self._is_known[:] = self._all, True
            self._in_vain = 0

    def of(self, arcs: Ints) -> tuple[Ints, Ints, Floats]:
        """Each use of some arcs by an active stream: place of the arc, the stream, its part."""
        if self._in_vain > PATIENCE * (self.uses + self._arc_count):
            rows = np.flatnonzero(self._active)
            self._known = _Index.of(self._streams, rows, self._arc_count)
            self._is_known[:] = self._active
            self._in_vain = 0
        uses = places(self._known.first, arcs)
        lengths = np.diff(self._known.first)[arcs]
        place = np.repeat(np.arange(len(arcs), dtype=np.int64), lengths)
        stream = self._known.stream[uses]
        used = np.flatnonzero(self._active[stream])
        self._in_vain += len(uses) - len(used)
        return place[used], stream[used], self._known.part[uses[used]]
