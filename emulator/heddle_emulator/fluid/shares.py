"""Fair rates kept up to date while streams come and go.

A change is felt near by: what left frees its arcs, what came crowds its own. So only
streams that a change can reach are filled anew, the others being load that stands.
Whether it ended there is then looked up by the definition: a stream that stands must
still have a full arc on which none is faster, and no stream filled anew may be held
by an arc on which one that stands is faster. Those that break it are filled anew too.
A point that satisfies the definition is *the* max-min fair point, so this gives what
filling everything would. Where a change reaches on and on, everything is filled as soon as
looking on has cost as much.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Floats, Ints
from heddle_emulator.fluid.fair import fair_rates
from heddle_emulator.fluid.streams import Streams
from heddle_emulator.fluid.users import Users

SLACK = 1e-7
"""Relative; how far rounding may put an arc from full, or a level from another."""
MANY = 0.4
"""Part of the active streams from which on filling everything is less work."""
DENSE = 64
"""One in so many numbers from which on marking them is less work than sorting."""
ROUNDS = 8
"""Looks at every use by an active stream that filling everything is taken to cost."""


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
        self._users = Users(streams, self.active, len(capacity))

    def change(self, joined: Ints, left: Ints) -> Ints:
        """Let streams start and others end; returns the active streams whose rate changed."""
        self.active[left], self.active[joined] = False, True
        self._users.change(joined, left)
        self.rate[left] = 0.0
        return self._settle(joined, self.streams.arcs[self.streams.uses_of(left)])

    def resize(self, arcs: Ints, gbps: Floats) -> Ints:
        """Give arcs another capacity in Gbit/s; returns the streams whose rate changed."""
        self.capacity[arcs] = gbps
        _, users, _ = self._users.of(_distinct(len(self.capacity), arcs))
        return self._settle(_distinct(len(self.streams), users), arcs)

    def _settle(self, moving: Ints, touched: Ints) -> Ints:
        """Fill ``moving`` anew, and whoever that reaches; ``touched`` are arcs that lost load.

        Returns those whose rate changed.
        """
        active = int(np.count_nonzero(self.active))
        near = _Nearby(self._users, len(self.capacity))
        near.look_at(touched)
        before = self.rate[moving]
        added, budget = moving, ROUNDS * self._users.uses
        while len(moving) <= MANY * active and budget >= 0:
            near.look_at(self.streams.arcs[self.streams.uses_of(added)])
            self._fill(moving, near)
            budget -= len(near.stream)
            added = self._reached(moving, near)
            if not len(added):
                changed: Ints = moving[self.rate[moving] != before]
                return changed
            before = np.concatenate([before, self.rate[added]])
            moving = np.concatenate([moving, added])
        return self._settle_all(moving, before)

    def _settle_all(self, moving: Ints, before: Floats) -> Ints:
        """Fill everything; some had those rates before."""
        old = self.rate.copy()
        old[moving] = before
        everyone = np.flatnonzero(self.active)
        some = self.streams.take(everyone)
        rate, self._holder[everyone] = fair_rates(self.capacity, some)
        self.rate[everyone] = rate
        self.load = some.loads(rate, len(self.capacity))
        changed: Ints = everyone[rate != old[everyone]]
        return changed

    def _fill(self, moving: Ints, near: _Nearby) -> None:
        """Rates of the moving streams in the room that the others leave, and loads."""
        self.rate[moving] = 0.0
        if len(moving):
            room = self.capacity.copy()
            room[near.arcs] -= near.loads(self.rate)
            rates, holders = fair_rates(room, self.streams.take(moving))
            self.rate[moving], self._holder[moving] = rates, holders
        self.load[near.arcs] = near.loads(self.rate)

    def _reached(self, moving: Ints, near: _Nearby) -> Ints:
        """Standing streams that no longer are where the definition wants them."""
        stream, place = near.stream, near.place
        level = self.rate[stream] / self.streams.weight[stream]
        is_moving = np.zeros(len(self.streams), dtype=np.bool_)
        is_moving[moving] = True
        moves = is_moving[stream]
        highest = np.zeros(len(near.arcs))
        np.maximum.at(highest, place, level)
        full = self.load[near.arcs] >= self.capacity[near.arcs] * (1 - SLACK)
        holder = self._holder[stream] == near.arcs[place]
        loose = holder & (~full[place] | (level < highest[place] * (1 - SLACK)))
        held = np.full(len(near.arcs), np.inf)
        held[place[moves & holder]] = level[moves & holder]
        faster = level > held[place] * (1 + SLACK)
        return _distinct(len(self.streams), stream[~moves & (loose | faster)])


class _Nearby:
    """What happens on some arcs, more and more of them: a row for each use by an active stream."""

    def __init__(self, users: Users, arc_count: int) -> None:
        self._users = users
        self._seen = np.zeros(arc_count, dtype=np.bool_)
        none = np.empty(0, dtype=np.int64)
        self.arcs: Ints = none
        self.place: Ints = none
        """Of each use: place among ``arcs``."""
        self.stream: Ints = none
        self.part: Floats = np.empty(0)

    def look_at(self, arcs: Ints) -> None:
        """Look at more arcs; those that are seen already are not looked at again."""
        new = _distinct(len(self._seen), arcs[~self._seen[arcs]])
        self._seen[new] = True
        place, stream, part = self._users.of(new)
        self.place = np.concatenate([self.place, place + len(self.arcs)])
        self.arcs = np.concatenate([self.arcs, new])
        self.stream = np.concatenate([self.stream, stream])
        self.part = np.concatenate([self.part, part])

    def loads(self, rate: Floats) -> Floats:
        """Gbit/s on each of the arcs at these rates of all streams."""
        weights = self.part * rate[self.stream]
        return np.bincount(self.place, weights=weights, minlength=len(self.arcs)).astype(np.float64)


def _distinct(count: int, numbers: Ints) -> Ints:
    """Numbers below ``count``, ascending, each once."""
    if len(numbers) < count // DENSE:
        return np.unique(numbers)
    there = np.zeros(count, dtype=np.bool_)
    there[numbers] = True
    return np.flatnonzero(there)
