"""Max-min fair rates of many placements of the same QPs at once.

A placement says how many QPs are on each of some paths. All QPs rise together; one stops
at its part of its flow's demand, or where an arc on its way is full. Of a job's phases the
greatest counts on an arc. Each round stops whatever an arc holds back that nothing else on
its way holds back more; placements share the rounds, so that a hundred cost little more
than one.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints

_TOLERANCE = 1e-9
"""Relative; levels this close are equal."""


class Filling:
    """Some paths and their arcs; the answer for any number of QPs on each.

    A slot is what one phase of one job sends over one arc, a share what one job sends over
    one arc. Slots stand in order of arc and job.
    """

    def __init__(
        self,
        way: tuple[Ints, Ints],
        unit: Floats,
        job: Ints,
        phase: Ints,
        capacity: Floats,
    ) -> None:
        """``unit`` (Gbit/s of a QP), ``job`` and ``phase`` are by path.

        ``way`` are the arcs of all paths, one after another, and how many each has: one or more.
        Jobs and phases below 0 are of paths whose loads simply add up; ``capacity`` is by arc.
        """
        used, lengths = way
        self._path = np.repeat(np.arange(len(lengths), dtype=np.int64), lengths)
        self._path_start = np.cumsum(lengths) - lengths
        self.arcs: Ints
        """The arcs that any of the paths crosses, ascending."""
        self.arcs, self._arc = np.unique(used, return_inverse=True)
        self._unit, self._capacity = unit, capacity[self.arcs]
        phases = int(phase.max(initial=0)) + 2
        share = self._arc * (int(job.max(initial=0)) + 2) + job[self._path] + 1
        slots, self._slot = np.unique(share * phases + phase[self._path] + 1, return_inverse=True)
        first = np.empty(len(slots), dtype=np.int64)
        first[self._slot] = np.arange(len(used))
        self._arc_of_slot = self._arc[first]
        self._share_start = _starts(slots // phases)
        self._arc_start = _starts(self._arc_of_slot[self._share_start])
        shares = np.diff(np.append(self._share_start, len(slots)))
        self._share_of_slot = np.repeat(np.arange(len(shares)), shares)
        by_slot = np.argsort(self._slot, kind="stable")
        self._path_in_slots = self._path[by_slot]
        self._slot_start = _starts(self._slot[by_slot])

    def loads(self, counts: Floats) -> Floats:
        """Gbit/s on each of the arcs when all QPs send at full rate, shape (placements, arcs).

        ``counts`` are QPs on each path, shape (placements, paths).
        """
        return self._total(self._in_slots(counts * self._unit))

    def rates(self, counts: Floats) -> Floats:
        """Fair rate of a QP on each path, Gbit/s, shape (placements, paths); 0 where none is.

        ``counts`` are QPs on each path, shape (placements, paths).
        """
        rising = counts > 0
        rate = np.zeros(counts.shape)
        while rising.any():
            fixed = self._in_slots(np.where(rising, 0.0, counts * rate))
            level, leads = self._levels(fixed, self._in_slots(np.where(rising, counts, 0.0)))
            on_use = level[:, self._arc]
            lowest = np.minimum.reduceat(on_use, self._path_start, axis=1)
            reached = np.minimum(lowest, self._unit)
            binding = leads[:, self._slot] & rising[:, self._path] & np.isfinite(on_use)
            elsewhere = binding & (reached[:, self._path] < on_use * (1 - _TOLERANCE))
            final = np.ones(level.shape, dtype=np.bool_)
            placement, use = np.nonzero(elsewhere)
            final[placement, self._arc[use]] = False
            held = binding & final[:, self._arc] & (on_use <= lowest[:, self._path] * (1 + 1e-9))
            stops = rising & (
                (self._unit <= lowest) | np.logical_or.reduceat(held, self._path_start, axis=1)
            )
            # Rounding must not keep a placement from coming to an end.
            stuck = rising.any(axis=1) & ~stops.any(axis=1)
            stops[stuck] = rising[stuck]
            rate[stops] = reached[stops]
            rising &= ~stops
        return rate

    def _in_slots(self, by_path: Floats) -> Floats:
        total: Floats = np.add.reduceat(by_path.T[self._path_in_slots], self._slot_start, axis=0).T
        return total

    def _greatest(self, by_slot: Floats) -> Floats:
        """The greatest value of each share."""
        most: Floats = np.maximum.reduceat(by_slot, self._share_start, axis=1)
        return most

    def _total(self, by_slot: Floats) -> Floats:
        """The greatest phase of each job, added up by arc."""
        total: Floats = np.add.reduceat(self._greatest(by_slot), self._arc_start, axis=1)
        return total

    def _levels(self, fixed: Floats, rising: Floats) -> tuple[Floats, Bools]:
        """The rate at which each arc is full, infinite where it never is; and who leads then.

        A slot leads that is the greatest of its share.
        """
        level = np.full((len(fixed), len(self.arcs)), float(self._unit.max()))
        never: Bools | None = None
        while True:
            load = fixed + rising * level[:, self._arc_of_slot]
            leads = load >= self._greatest(load)[:, self._share_of_slot] * (1 - _TOLERANCE)
            total = self._total(load)
            slope = self._total(np.where(leads, rising, 0.0))
            over = (total > self._capacity * (1 + _TOLERANCE)) & (slope > 0)
            if never is None:
                never = ~over
            if not over.any():
                return np.where(never, np.inf, level), leads
            # The load is convex in the level: from the right this never undershoots.
            excess = (total - self._capacity) / np.where(over, slope, 1.0)
            level = np.where(over, np.maximum(level - excess, 0.0), level)


def _starts(keys: Ints) -> Ints:
    """Where runs of equal keys begin."""
    new = np.ones(len(keys), dtype=np.bool_)
    new[1:] = np.diff(keys) != 0
    return np.flatnonzero(new)
