"""Computes max-min fair rates for many placements of the same QPs at once.

A placement says how many QPs are on each of some paths. The rates of all QPs rise together. A QP
stops at its part of its flow's demand, or where an arc on its path is full. Of a job's phases only
the greatest counts on an arc. Each round stops the QPs that an arc holds back, unless another arc
on their path holds them back more. Placements share the rounds, so a hundred cost little more than
one.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints, stable_order

_TOLERANCE = 1e-9
"""Relative difference below which levels count as equal."""
_WORTH = 1.25
"""Finished paths or placements are dropped once there are this many times as many as still rise."""


class Filling:
    """Some paths and their arcs. Answers questions for any number of QPs on each path."""

    def __init__(
        self,
        way: tuple[Ints, Ints],
        unit: Floats,
        job: Ints,
        phase: Ints,
        capacity: Floats,
    ) -> None:
        """Index the paths.

        Args:
            way: Arcs of all paths, one path after another, and how many each path has, at least 1.
            unit: Gbit/s that a QP of each path asks for.
            job: Job of each path. Job and phase are -1 for a path whose load simply adds up.
            phase: Phase of each path.
            capacity: Gbit/s of each arc.
        """
        used, lengths = way
        path = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        crossed = np.zeros(len(capacity), dtype=np.bool_)
        crossed[used] = True
        self.arcs: Ints = np.flatnonzero(crossed)
        """The arcs that any of the paths crosses, ascending."""
        arc = (np.cumsum(crossed) - 1)[used]
        phases = int(phase.max(initial=0)) + 2
        share = arc * (int(job.max(initial=0)) + 2) + job[path] + 1
        code = share * phases + phase[path] + 1
        order = stable_order(code)
        slot = np.empty(len(code), dtype=np.int64)
        slot[order] = _runs(code[order])
        first = order[_starts(code[order])]
        slots = arc[first], _runs(share[first])
        self._uses = _Uses((path, arc, slot), unit, capacity[self.arcs], slots)

    def loads(self, counts: Floats) -> Floats:
        """Return the Gbit/s on each of ``arcs`` if all QPs send what they ask for.

        ``counts`` are the QPs on each path, shape (placements, paths). The result has shape
        (placements, arcs).
        """
        return self._uses.total(self._uses.in_slots(counts * self._uses.unit))

    def rates(self, counts: Floats) -> Floats:
        """Return the fair rate of a QP on each path in Gbit/s; 0 on a path without QPs.

        ``counts`` are the QPs on each path. It and the result have shape (placements, paths).
        """
        uses, rate = self._uses, np.zeros(counts.shape)
        rows, paths = np.arange(counts.shape[0])[:, None], np.arange(counts.shape[1])
        rising = counts > 0
        fixed = uses.in_slots(np.zeros(counts.shape))
        while rising.any():
            some = np.logical_or.reduce(rising, axis=1)
            if np.count_nonzero(some) * _WORTH < len(some):
                rows, fixed, counts, rising = rows[some], fixed[some], counts[some], rising[some]
            left = np.logical_or.reduce(rising, axis=0)
            if np.count_nonzero(left) * _WORTH < len(left):
                uses, slots = uses.narrowed(left)
                paths, fixed = paths[left], fixed[:, slots]
                counts, rising = counts[:, left], rising[:, left]
            stops, reached = uses.stopping(fixed, counts, rising)
            rate[rows, paths] += np.where(stops, reached, 0.0)
            fixed += uses.in_slots(np.where(stops, counts * reached, 0.0))
            rising &= ~stops
        return rate


class _Uses:
    """Paths by the arcs that they cross. A use is one arc of one path.

    A slot is what one phase of one job sends over one arc. A share is what one job sends over one
    arc. Slots are in order of arc and job.
    """

    def __init__(
        self,
        of_use: tuple[Ints, Ints, Ints],
        unit: Floats,
        capacity: Floats,
        slots: tuple[Ints, Ints],
    ) -> None:
        """Index the uses.

        Args:
            of_use: Path, arc and slot of each use; paths ascend.
            unit: Gbit/s that a QP of each path asks for.
            capacity: Gbit/s of each arc.
            slots: Arc and share of each slot.
        """
        self.path, self.arc, self.slot = of_use
        self.unit, self.capacity = unit, capacity
        self.arc_of_slot, self.share_of_slot = slots
        self._path_start = _starts(self.path)
        self._share_start = _starts(self.share_of_slot)
        self._slots = _Groups(self.slot, len(self.arc_of_slot))
        self._arcs = _Groups(self.arc_of_slot[self._share_start], len(self.capacity))
        several = np.bincount(self.share_of_slot) > 1
        self._several = np.flatnonzero(several)
        """Shares of more than one slot.

        The attributes below are the slots of these shares, and where those of each share begin.
        """
        self._slots_of_several = np.flatnonzero(several[self.share_of_slot])
        self._several_start = _starts(self.share_of_slot[self._slots_of_several])

    def narrowed(self, kept: Bools) -> tuple[_Uses, Ints]:
        """Return the uses of the marked paths, with all slots of their arcs, and these slots."""
        rows = np.flatnonzero(kept[self.path])
        crossed = np.zeros(len(self.capacity), dtype=np.bool_)
        crossed[self.arc[rows]] = True
        slots = np.flatnonzero(crossed[self.arc_of_slot])
        arc, place = np.cumsum(crossed) - 1, np.empty(len(self.arc_of_slot), dtype=np.int64)
        place[slots] = np.arange(len(slots))
        of_use = _runs(self.path[rows]), arc[self.arc[rows]], place[self.slot[rows]]
        of_slot = arc[self.arc_of_slot[slots]], _runs(self.share_of_slot[slots])
        return _Uses(of_use, self.unit[kept], self.capacity[crossed], of_slot), slots

    def stopping(self, fixed: Floats, counts: Floats, rising: Bools) -> tuple[Bools, Floats]:
        """Mark the rising paths that stop next, and return the rate that each path then has.

        ``fixed`` are the Gbit/s of stopped paths in each slot, shape (placements, slots). The other
        arrays have shape (placements, paths).
        """
        level, leads = self._levels(fixed, self.in_slots(np.where(rising, counts, 0.0)))
        on_use = level.take(self.arc, axis=1)
        lowest = np.minimum.reduceat(on_use, self._path_start, axis=1)
        reached = np.minimum(lowest, self.unit)
        binding = (
            leads.take(self.slot, axis=1) & rising.take(self.path, axis=1) & np.isfinite(on_use)
        )
        elsewhere = binding & (reached.take(self.path, axis=1) < on_use * (1 - _TOLERANCE))
        final = np.ones(level.shape, dtype=np.bool_)
        placement, use = np.nonzero(elsewhere)
        final[placement, self.arc[use]] = False
        held = (
            binding
            & final.take(self.arc, axis=1)
            & (on_use <= lowest.take(self.path, axis=1) * (1 + _TOLERANCE))
        )
        stops: Bools = self.unit <= lowest
        placement, use = np.nonzero(held)
        stops[placement, self.path[use]] = True
        stops &= rising
        # Ensure that each placement ends despite rounding.
        stuck = rising.any(axis=1) & ~stops.any(axis=1)
        stops[stuck] = rising[stuck]
        return stops, reached

    def in_slots(self, by_path: Floats) -> Floats:
        """Return the sum of path values in each slot, shape (placements, slots)."""
        return self._slots.summed(by_path.take(self.path, axis=1))

    def total(self, by_slot: Floats) -> Floats:
        """Return the sum over jobs of their greatest phase, shape (placements, arcs)."""
        return self._arcs.summed(self._greatest(by_slot))

    def _greatest(self, by_slot: Floats) -> Floats:
        """Return the greatest slot of each share, shape (placements, shares)."""
        most = by_slot.take(self._share_start, axis=1)
        if len(self._several):
            of_several = by_slot.take(self._slots_of_several, axis=1)
            most[:, self._several] = np.maximum.reduceat(of_several, self._several_start, axis=1)
        return most

    def _levels(self, fixed: Floats, rising: Floats) -> tuple[Floats, Bools]:
        """Return the rate at which each arc is full, and the slots that lead at that rate.

        The rate is infinite where the arc never fills. A slot leads if it is the greatest of its
        share.
        """
        level = np.full((len(fixed), len(self.capacity)), float(self.unit.max()))
        never: Bools | None = None
        while True:
            load = fixed + rising * level.take(self.arc_of_slot, axis=1)
            leads = load >= self._greatest(load).take(self.share_of_slot, axis=1) * (1 - _TOLERANCE)
            total = self.total(load)
            slope = self.total(np.where(leads, rising, 0.0))
            over = (total > self.capacity * (1 + _TOLERANCE)) & (slope > 0)
            if never is None:
                never = ~over
            if not over.any():
                return np.where(never, np.inf, level), leads
            # Load is convex in the level, so Newton's method from above never undershoots.
            excess = (total - self.capacity) / np.where(over, slope, 1.0)
            level = np.where(over, np.maximum(level - excess, 0.0), level)


class _Groups:
    """Adds up columns by group, many times with the same groups."""

    def __init__(self, group: Ints, count: int) -> None:
        """Take the group of each column, 0 to ``count - 1``."""
        self._group, self._count = group, count
        self._of_cell: Ints = group
        """Group of each value in a table of several rows, with separate groups for each row."""

    def summed(self, values: Floats) -> Floats:
        """Return the sum of each group in each row, shape (rows, count)."""
        rows = len(values)
        if len(self._of_cell) != values.size:
            self._of_cell = (np.arange(rows)[:, None] * self._count + self._group).ravel()
        total = np.bincount(self._of_cell, values.ravel(), rows * self._count)
        return total.astype(np.float64, copy=False).reshape(rows, self._count)


def _starts(keys: Ints) -> Ints:
    """Return where runs of equal keys begin."""
    new = np.ones(len(keys), dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    return np.flatnonzero(new)


def _runs(keys: Ints) -> Ints:
    """Return the number of each key's run of equal keys, from 0."""
    new = np.zeros(len(keys), dtype=np.bool_)
    np.not_equal(keys[1:], keys[:-1], out=new[1:])
    return np.cumsum(new, dtype=np.int64)
