"""Max-min fair rates, kept up to date while streams come and go.

A change has its effect nearby: a stream that ends frees its arcs, and a new one crowds its own. So
only streams that a change can reach are filled again; the others are constant load. Whether the
change reaches further is then checked by the definition of max-min fairness. A stream that was kept
must still have a full arc on which none is faster, and no stream filled again may be held by an arc
on which a kept one is faster. Streams that break this are filled again too. A point that satisfies
the definition is *the* max-min fair point, so the result is that of filling everything. If a change
reaches further and further, everything is filled as soon as the search has cost as much.

All levels rise together. A stream stops at its limit, or when an arc that it uses is full. Each
round fills every arc that is a local bottleneck: one whose rising streams meet no lower level
anywhere else on their way. Meanwhile the levels of other arcs only grow, so this ends in the one
max-min fair point. The number of rounds is the depth of dependencies between bottlenecks.

``rates`` does the same for flows whose phases exclude each other. Here all given streams run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, starts
from heddle_emulator.fluid.streams import Streams, places

_PATIENCE = 3
"""Build a new index after this many wasted look-ups per use by an active stream."""


@dataclass(frozen=True, slots=True, eq=False)
class _Index:
    """Uses in the order of their arcs."""

    first: Ints
    """Where each arc's uses begin, shape (arcs + 1,)."""
    stream: Ints
    part: Floats

    @classmethod
    def of(cls, streams: Streams, rows: Ints, arc_count: int) -> _Index:
        """Index the uses of some streams."""
        uses = streams.uses_of(rows)
        arcs = streams.arcs[uses]
        order = np.argsort(arcs, kind="stable")
        stream = np.repeat(rows, np.diff(streams.first)[rows])[order]
        first = starts(np.bincount(arcs, minlength=arc_count))
        return cls(first, stream, streams.part[uses][order])


class Users:
    """Looks up the active streams on arcs."""

    def __init__(self, streams: Streams, active: Bools, arc_count: int) -> None:
        """Start; ``active`` belongs to the caller, who keeps it up to date."""
        self._streams, self._active, self._arc_count = streams, active, arc_count
        self._lengths = np.diff(streams.first)
        self._all = _Index.of(streams, np.arange(len(streams), dtype=np.int64), arc_count)
        self._known, self._is_known = self._all, np.ones(len(streams), dtype=np.bool_)
        self._in_vain = 0
        self.uses = int(self._lengths[active].sum())
        """Number of uses by active streams."""

    def change(self, joined: Ints, left: Ints) -> None:
        """Note that inactive streams start (``joined``) and that active ones end (``left``)."""
        self.uses += int(self._lengths[joined].sum()) - int(self._lengths[left].sum())
        if not self._is_known[joined].all():
            self._known, self._is_known[:] = self._all, True
            self._in_vain = 0

    def of(self, arcs: Ints) -> tuple[Ints, Ints, Floats]:
        """Return all uses of arcs by active streams: place of the arc, stream, part."""
        if self._in_vain > _PATIENCE * (self.uses + self._arc_count):
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


_TOLERANCE = 1e-9
"""Relative tolerance; levels this close are equal."""


def fair_rates(room: Floats, streams: Streams) -> tuple[Floats, Ints]:
    """Return the rate of each stream in Gbit/s, and the arc that holds it there.

    ``room`` is the Gbit/s that each arc has for these streams. The arc is ``NONE`` if the stream's
    own limit holds it. A stream that uses no arc gets its limit.
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
        final[self._arc[own[owner] < here * (1 - _TOLERANCE)]] = False
        full = final[self._arc] & (here <= lowest[owner] * (1 + _TOLERANCE))
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
    """Return the arcs in use, and the place of each use's arc among them.

    If most arcs are in use, all arcs are returned.
    """
    if len(arcs) > count:
        return np.arange(count, dtype=np.int64), arcs
    names, place = np.unique(arcs, return_inverse=True)
    return names, place.astype(np.int64)


SLACK = 1e-7
"""Relative tolerance for rounding, of full arcs and equal levels."""
MANY = 0.4
"""If more than this part of the active streams moves, filling everything is less work."""
DENSE = 64
"""If at least one in so many numbers occurs, marking them is less work than sorting."""
_ROUNDS = 8
"""Assumed cost of filling everything, in passes over the uses by active streams."""


class Shares:
    """The rates of the active streams."""

    def __init__(self, capacity: Floats, streams: Streams) -> None:
        self.capacity = capacity.astype(np.float64)
        self.streams = streams
        self.rate: Floats = np.zeros(len(streams))
        """Gbit/s of each stream, 0 if it is not active."""
        self.load: Floats = np.zeros(len(capacity))
        """Gbit/s on each arc."""
        self.active: Bools = np.zeros(len(streams), dtype=np.bool_)
        self._holder: Ints = np.full(len(streams), NONE, dtype=np.int64)
        self._users = Users(streams, self.active, len(capacity))

    def change(self, joined: Ints, left: Ints) -> Ints:
        """Start and end streams; return the active streams whose rate changed."""
        self.active[left], self.active[joined] = False, True
        self._users.change(joined, left)
        self.rate[left] = 0.0
        return self._settle(joined, self.streams.arcs[self.streams.uses_of(left)])

    def resize(self, arcs: Ints, gbps: Floats) -> Ints:
        """Give arcs another capacity in Gbit/s; return the streams whose rate changed."""
        self.capacity[arcs] = gbps
        _, users, _ = self._users.of(_distinct(len(self.capacity), arcs))
        return self._settle(_distinct(len(self.streams), users), arcs)

    def _settle(self, moving: Ints, touched: Ints) -> Ints:
        """Fill ``moving`` again, and all streams that this affects; return those that changed.

        ``touched`` are arcs that lost load.
        """
        active = int(np.count_nonzero(self.active))
        near = _Nearby(self._users, len(self.capacity))
        near.look_at(touched)
        before = self.rate[moving]
        added, budget = moving, _ROUNDS * self._users.uses
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
        """Fill everything; ``before`` has the earlier rates of ``moving``."""
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
        """Update rates of the moving streams, in the room that the others leave, and arc loads."""
        self.rate[moving] = 0.0
        if len(moving):
            room = self.capacity.copy()
            room[near.arcs] -= near.loads(self.rate)
            rates, holders = fair_rates(room, self.streams.take(moving))
            self.rate[moving], self._holder[moving] = rates, holders
        self.load[near.arcs] = near.loads(self.rate)

    def _reached(self, moving: Ints, near: _Nearby) -> Ints:
        """Return the kept streams that no longer satisfy the definition."""
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
    """Uses of a growing set of arcs, a row for each use by an active stream."""

    def __init__(self, users: Users, arc_count: int) -> None:
        self._users = users
        self._seen = np.zeros(arc_count, dtype=np.bool_)
        none = np.empty(0, dtype=np.int64)
        self.arcs: Ints = none
        self.place: Ints = none
        """Place of each use's arc among ``arcs``."""
        self.stream: Ints = none
        self.part: Floats = np.empty(0)

    def look_at(self, arcs: Ints) -> None:
        """Add arcs to the set, unless they are in it."""
        new = _distinct(len(self._seen), arcs[~self._seen[arcs]])
        self._seen[new] = True
        place, stream, part = self._users.of(new)
        self.place = np.concatenate([self.place, place + len(self.arcs)])
        self.arcs = np.concatenate([self.arcs, new])
        self.stream = np.concatenate([self.stream, stream])
        self.part = np.concatenate([self.part, part])

    def loads(self, rate: Floats) -> Floats:
        """Return Gbit/s on each of the arcs at these rates of all streams."""
        weights = self.part * rate[self.stream]
        return np.bincount(self.place, weights=weights, minlength=len(self.arcs)).astype(np.float64)


def _distinct(count: int, numbers: Ints) -> Ints:
    """Return the distinct numbers, all below ``count``, ascending."""
    if len(numbers) < count // DENSE:
        return np.unique(numbers)
    there = np.zeros(count, dtype=np.bool_)
    there[numbers] = True
    return np.flatnonzero(there)
