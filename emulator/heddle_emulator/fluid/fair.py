"""Max-min fair rates of streams, by filling.

All levels rise together; a stream stops at its limit, or when an arc that it uses is
full. Each round here fills every arc that is a local bottleneck: one whose rising
streams meet no lower level anywhere else on their way. Levels of other arcs only grow
while that happens, so this ends in the one max-min fair point, in as many rounds as
bottlenecks depend on each other.

``rates`` does the same for flows whose phases exclude each other; here everything
that is given runs.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Floats, Ints
from heddle_emulator.fluid.streams import Streams

TOLERANCE = 1e-9
"""Relative; levels this close are equal."""


def fair_rates(room: Floats, streams: Streams) -> tuple[Floats, Ints]:
    """Rate of each stream in Gbit/s, and the arc that holds it there.

    ``room`` is the Gbit/s that each arc has for these streams. The arc is ``NONE``
    where the stream's own limit holds it. A stream that uses nothing has its limit.
    """
    filling = _FairFilling(room, streams)
    while len(filling.rows):
        filling.round()
    return filling.rate, filling.bottleneck


class _FairFilling:
    """What still rises between two rounds; arcs are renumbered to those in use."""

    def __init__(self, room: Floats, streams: Streams) -> None:
        self._names, self._arc = _renumbered(streams.arcs, len(room))
        self._room = np.maximum(room[self._names], 0.0)
        self._part = streams.part * streams.weight[streams.owner()]
        self._lengths = np.diff(streams.first)
        self._ceiling = streams.limit / streams.weight
        self._weight = streams.weight
        self.rate = streams.limit.copy()
        self.bottleneck = np.full(len(streams), NONE, dtype=np.int64)
        self.rows = np.arange(len(streams), dtype=np.int64)
        self._forget(self._lengths == 0)

    def round(self) -> None:
        """Stop every stream that meets its limit or a local bottleneck."""
        first = np.cumsum(self._lengths) - self._lengths
        owner = np.repeat(np.arange(len(self.rows)), self._lengths)
        rising = np.bincount(self._arc, weights=self._part, minlength=len(self._room))
        level = np.divide(
            self._room, rising, out=np.full(len(self._room), np.inf), where=rising > 0
        )
        here = level[self._arc]
        lowest = np.minimum.reduceat(here, first)
        ceiling = self._ceiling[self.rows]
        own = np.minimum(lowest, ceiling)
        final = np.ones(len(self._room), dtype=np.bool_)
        final[self._arc[own[owner] < here * (1 - TOLERANCE)]] = False
        full = final[self._arc] & (here <= lowest[owner] * (1 + TOLERANCE))
        holder = np.maximum.reduceat(np.where(full, self._arc, NONE), first)
        stopped = (holder != NONE) | (ceiling <= lowest)
        rows = self.rows[stopped]
        self.rate[rows] = own[stopped] * self._weight[rows]
        self.bottleneck[rows] = np.append(self._names, NONE)[
            np.where(ceiling <= lowest, NONE, holder)[stopped]
        ]
        taken = np.where(stopped, own, 0.0)[owner] * self._part
        self._room -= np.bincount(self._arc, weights=taken, minlength=len(self._room))
        np.maximum(self._room, 0.0, out=self._room)
        self._forget(stopped)

    def _forget(self, stopped: Bools) -> None:
        kept = np.repeat(~stopped, self._lengths)
        self._arc, self._part = self._arc[kept], self._part[kept]
        self.rows, self._lengths = self.rows[~stopped], self._lengths[~stopped]


def _renumbered(arcs: Ints, count: int) -> tuple[Ints, Ints]:
    """The arcs that are used, and each use's place among them; all arcs where most are used."""
    if len(arcs) > count:
        return np.arange(count, dtype=np.int64), arcs
    names, place = np.unique(arcs, return_inverse=True)
    return names, place.astype(np.int64)
