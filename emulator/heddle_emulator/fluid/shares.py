"""Fair rates kept up to date while streams come and go.

A change is felt near by: what left frees its arcs, what came crowds its own. So only
streams that a change can reach are filled anew, the others being load that stands.
Whether it ended there is then looked up by the definition: a stream that stands must
still have a full arc on which none is faster, and no stream filled anew may be held
by an arc on which one that stands is faster. Those that break it are filled anew too.
A point that satisfies the definition is *the* max-min fair point, so this gives what
filling everything would.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Floats, Ints
from heddle_controller.model.plan import starts
from heddle_emulator.fluid.fair import fair_rates
from heddle_emulator.fluid.rows import places
from heddle_emulator.fluid.streams import Streams

SLACK = 1e-7
"""Relative; how far rounding may put an arc from full, or a level from another."""
MANY = 0.4
"""Part of the active streams from which on filling everything is less work."""


@dataclass(frozen=True, slots=True, eq=False)
class _Nearby:
    """What happens on some arcs: a row for each use there by an active stream."""

    arcs: Ints
    """The arcs, ascending."""
    place: Ints
    """Of each use: place among ``arcs``."""
    stream: Ints
    part: Floats


class Shares:
    """The rates of those streams that are active."""

    def __init__(self, capacity: Floats, streams: Streams) -> None:
        self.capacity = capacity.astype(np.float64)
        self.streams = streams
        self.rate: Floats = np.zeros(len(streams))
        """Gbit/s of each stream, 0 where it is not active."""
        self.load: Floats = np.zeros(len(capacity))
        """Gbit/s on each arc."""
        self.active: Bools = np.zeros(len(streams), dtype=np.bool_)
        self._holder: Ints = np.full(len(streams), NONE, dtype=np.int64)
        order = np.argsort(streams.arcs, kind="stable")
        self._users = streams.owner()[order]
        self._user_part = streams.part[order]
        self._first_user = starts(np.bincount(streams.arcs, minlength=len(capacity)))

    def change(self, joined: Ints, left: Ints) -> Ints:
        """Let streams start and others end; returns the active streams whose rate changed."""
        before = self.rate.copy()
        self.active[left], self.active[joined] = False, True
        self.rate[left] = 0.0
        self._settle(joined, self.streams.arcs[self.streams.uses_of(left)])
        return np.flatnonzero(self.active & (self.rate != before))

    def resize(self, arcs: Ints, gbps: Floats) -> Ints:
        """Give arcs another capacity in Gbit/s; returns the streams whose rate changed."""
        before = self.rate.copy()
        self.capacity[arcs] = gbps
        near = self._near(_distinct(len(self.capacity), arcs))
        self._settle(_distinct(len(self.streams), near.stream), arcs)
        return np.flatnonzero(self.active & (self.rate != before))

    def _settle(self, moving: Ints, touched: Ints) -> None:
        """Fill ``moving`` anew, and whoever that reaches; ``touched`` are arcs that lost load."""
        active = int(np.count_nonzero(self.active))
        while len(moving) <= MANY * active:
            near = self._near(self._touched(moving, touched))
            self._fill(moving, near)
            reached = self._reached(moving, near)
            if not len(reached):
                return
            moving = _distinct(len(self.streams), moving, reached)
        everyone = np.flatnonzero(self.active)
        some = self.streams.take(everyone)
        self.rate[everyone], self._holder[everyone] = fair_rates(self.capacity, some)
        self.load = self.streams.loads(np.where(self.active, self.rate, 0.0), len(self.capacity))

    def _touched(self, moving: Ints, touched: Ints) -> Ints:
        own = self.streams.arcs[self.streams.uses_of(moving)]
        return _distinct(len(self.capacity), touched, own)

    def _near(self, arcs: Ints) -> _Nearby:
        users = places(self._first_user, arcs)
        lengths = np.diff(self._first_user)[arcs]
        place = np.repeat(np.arange(len(arcs), dtype=np.int64), lengths)
        used = self.active[self._users[users]]
        return _Nearby(arcs, place[used], self._users[users][used], self._user_part[users][used])

    def _fill(self, moving: Ints, near: _Nearby) -> None:
        """Rates of the moving streams in the room that the others leave, and loads."""
        self.rate[moving] = 0.0
        room = self.capacity.copy()
        room[near.arcs] -= self._loads(near)
        if len(moving):
            rates, holders = fair_rates(room, self.streams.take(moving))
            self.rate[moving], self._holder[moving] = rates, holders
        self.load[near.arcs] = self._loads(near)

    def _loads(self, near: _Nearby) -> Floats:
        weights = near.part * self.rate[near.stream]
        return np.bincount(near.place, weights=weights, minlength=len(near.arcs)).astype(np.float64)

    def _reached(self, moving: Ints, near: _Nearby) -> Ints:
        """Standing streams that no longer are where the definition wants them."""
        level = self.rate[near.stream] / self.streams.weight[near.stream]
        is_moving = np.zeros(len(self.streams), dtype=np.bool_)
        is_moving[moving] = True
        moves = is_moving[near.stream]
        highest = np.zeros(len(near.arcs))
        np.maximum.at(highest, near.place, level)
        full = self.load[near.arcs] >= self.capacity[near.arcs] * (1 - SLACK)
        holder = self._holder[near.stream] == near.arcs[near.place]
        loose = holder & (~full[near.place] | (level < highest[near.place] * (1 - SLACK)))
        held = np.full(len(near.arcs), np.inf)
        held[near.place[moves & holder]] = level[moves & holder]
        faster = level > held[near.place] * (1 + SLACK)
        reached: Ints = near.stream[~moves & (loose | faster)]
        return reached


def _distinct(count: int, *parts: Ints) -> Ints:
    """All numbers below ``count`` that are in any of the parts, ascending, each once."""
    there = np.zeros(count, dtype=np.bool_)
    for part in parts:
        there[part] = True
    return np.flatnonzero(there)
