"""Max-min fair rates: of the paths of a plan, or of many placements of the same QPs at once.

A placement says how many QPs are on each of some paths. The rates of all QPs rise together. A QP
stops at its part of its flow's demand, or where an arc on its path is full. Of a job's phases only
the greatest counts on an arc. Each round stops the QPs that an arc holds back, unless another arc
on their path holds them back more. Placements share the rounds, so a hundred cost little more than
one.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, stable_order
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Plan

_TOLERANCE = 1e-9
"""Relative difference below which levels count as equal, and links that are a little over-full as
full."""
_SPARSE = 4
"""Runs are reduced column by column if they would take up to this many times as many columns if all
were as long as the longest."""
_WORTH = 2.0
"""Finished paths or placements are dropped once there are this many times as many as still rise."""


def planned_rates(plan: Plan, used: Floats, capacity: Floats) -> Floats:
    """Return the Gbit/s of each path: max-min fair among QPs, shape (paths,).

    Phases of a job share no time, so rates are those while the worst phases meet. Paths that cross
    no overloaded arc get what their QPs ask for.

    Args:
        plan: The plan.
        used: Load over ``capacity`` of each arc, shape (arcs,).
        capacity: Gbit/s that each arc offers, shape (arcs,).
    """
    flows, paths = plan.flows, plan.paths
    rates = paths.gbps(flows)
    full = np.flatnonzero((used > 1 + _TOLERANCE)[paths.arcs])
    if not len(full):
        return rates
    lengths = np.bincount(paths.owner()[full], minlength=len(paths))
    rows = np.flatnonzero(lengths)
    flow = paths.flow[rows]
    phase = flows.phase[flow]
    job = np.where(phase == ANY_PHASE, NONE, flows.job[flow])
    unit = flows.gbps[flow] / flows.qps[flow]
    filling = Filling((paths.arcs[full], lengths[rows]), unit, job, phase, capacity)
    count = paths.qp_count[rows].astype(np.float64)
    rates[rows] = filling.rates(count[None, :])[0] * count
    return rates


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
        turns, slots = _turns(path, arc, job, phase)
        self._uses = _Uses((path, arc), turns, unit, capacity[self.arcs], slots)

    def loads(self, counts: Floats) -> Floats:
        """Return the Gbit/s on each of ``arcs`` if all QPs send what they ask for.

        ``counts`` are the QPs on each path, shape (placements, paths). The result has shape
        (placements, arcs).
        """
        alone, in_slots = self._uses.sent(counts * self._uses.unit)
        return alone + self._uses.of_jobs(in_slots)

    def rates(self, counts: Floats) -> Floats:
        """Return the fair rate of a QP on each path in Gbit/s; 0 on a path without QPs.

        ``counts`` are the QPs on each path. It and the result have shape (placements, paths).
        """
        uses, rate = self._uses, np.zeros(counts.shape)
        rows, paths = np.arange(counts.shape[0]), np.arange(counts.shape[1])
        rising = counts > 0
        alone, fixed = uses.sent(np.zeros(counts.shape))
        room = uses.capacity - alone
        while rising.any():
            some = np.logical_or.reduce(rising, axis=1)
            if np.count_nonzero(some) * _WORTH < len(some):
                rows, counts, rising = rows[some], counts[some], rising[some]
                room, fixed = room[some], fixed[some]
            left = np.logical_or.reduce(rising, axis=0)
            if np.count_nonzero(left) * _WORTH < len(left):
                uses, room, fixed = uses.narrowed(left, room, fixed)
                paths, counts, rising = paths[left], counts[:, left], rising[:, left]
            stops, reached = uses.stopping((room, fixed), counts, rising)
            cells = np.flatnonzero(stops)
            placement, path = np.divmod(cells, stops.shape[1])
            rate[rows[placement], paths[path]] = reached.take(cells)
            alone, in_slots = uses.sent(counts * reached * stops)
            room -= alone
            fixed += in_slots
            rising &= ~stops
        return rate


def _turns(
    path: Ints, arc: Ints, job: Ints, phase: Ints
) -> tuple[tuple[Ints, Ints], tuple[Ints, Ints]]:
    """Find where several phases of a job use one arc.

    ``path`` and ``arc`` are those of each use, ``job`` and ``phase`` those of each path. Return
    these uses and their slots, then the arcs and the shares of the slots, as ``_Uses`` takes them.
    """
    phases, jobs = int(phase.max(initial=0)) + 2, int(job.max(initial=0)) + 2
    uses = np.flatnonzero(_has_phases(job, phase)[path])
    code = ((arc[uses] * jobs + job[path[uses]] + 1) * phases) + phase[path[uses]] + 1
    order = stable_order(code)
    code = code[order]
    slot = _runs(code)
    share_of_slot = _runs(code[_starts(code)] // phases)
    several = (np.bincount(share_of_slot) > 1)[share_of_slot]
    rows = np.flatnonzero(several[slot])
    uses, code = uses[order[rows]], code[rows]
    first = _starts(code)
    return (uses, _runs(code)), (arc[uses[first]], _runs(code[first] // phases))


def _has_phases(job: Ints, phase: Ints) -> Bools:
    """Mark the paths of jobs that have more than one phase."""
    first = np.full(int(job.max(initial=0)) + 2, -1, dtype=np.int64)
    first[job] = phase
    several = np.zeros(len(first), dtype=np.bool_)
    several[job[first[job] != phase]] = True
    marked: Bools = several[job]
    return marked


class _Uses:
    """Paths by the arcs that they cross. A use is one arc of one path.

    Where several phases of a job use one arc, a slot is what one of them sends over it, and a share
    is what the job sends: the greatest of its slots. Slots are in order of arc and job. What all
    other uses send simply adds up; they are *alone*.
    """

    def __init__(
        self,
        of_use: tuple[Ints, Ints],
        turns: tuple[Ints, Ints],
        unit: Floats,
        capacity: Floats,
        slots: tuple[Ints, Ints],
    ) -> None:
        """Index the uses.

        Args:
            of_use: Path and arc of each use; paths ascend.
            turns: The uses that are not alone, and their slots.
            unit: Gbit/s that a QP of each path asks for.
            capacity: Gbit/s of each arc.
            slots: Arc and share of each slot.
        """
        self.path, self.arc = of_use
        self.shared, self.slot = turns
        self.unit, self.capacity = unit, capacity
        self.arc_of_slot, self.share_of_slot = slots
        self._paths = _Rows(self.path)
        self._slots_of_share = _Rows(self.share_of_slot)
        self._slots = _Groups(self.slot, len(self.arc_of_slot))
        self._shares = _Groups(self.arc_of_slot[self._slots_of_share.first], len(capacity))
        alone = np.ones(len(self.path), dtype=np.bool_)
        alone[self.shared] = False
        self._alone = np.flatnonzero(alone)
        self._arcs = _Groups(self.arc[self._alone], len(capacity))
        self._all = _Groups(self.arc, len(capacity))
        self._path_alone, self._path_shared = self.path[self._alone], self.path[self.shared]

    def narrowed(self, kept: Bools, room: Floats, fixed: Floats) -> tuple[_Uses, Floats, Floats]:
        """Return the uses of the marked paths, the room of their arcs, and what their slots hold.

        Shares without a marked path take what they hold from the room.

        Args:
            kept: Whether each path is marked.
            room: Gbit/s of each arc that stopped paths leave, without those in slots, shape
                (placements, arcs).
            fixed: Gbit/s of stopped paths in each slot, shape (placements, slots).
        """
        mine = kept[self.path]
        rows, of_shared = np.flatnonzero(mine), np.flatnonzero(mine[self.shared])
        crossed = np.zeros(len(self.capacity), dtype=np.bool_)
        crossed[self.arc[rows]] = True
        lasting = np.zeros(len(self._slots_of_share.first), dtype=np.bool_)
        lasting[self.share_of_slot[self.slot[of_shared]]] = True
        held = self._slots_of_share.greatest(fixed)
        room = room - self._shares.summed(np.where(lasting, 0.0, held))
        slots = lasting[self.share_of_slot]
        arc, place = np.cumsum(crossed) - 1, np.cumsum(slots) - 1
        turns = (np.cumsum(mine) - 1)[self.shared[of_shared]], place[self.slot[of_shared]]
        of_slot = arc[self.arc_of_slot[slots]], _runs(self.share_of_slot[slots])
        of_use = _runs(self.path[rows]), arc[self.arc[rows]]
        uses = _Uses(of_use, turns, self.unit[kept], self.capacity[crossed], of_slot)
        return uses, room[:, crossed], fixed[:, slots]

    def stopping(
        self, loads: tuple[Floats, Floats], counts: Floats, rising: Bools
    ) -> tuple[Bools, Floats]:
        """Mark the rising paths that stop next, and return the rate that each path then has.

        ``loads`` are ``room`` and ``fixed`` of ``narrowed``. The other arrays have shape
        (placements, paths).
        """
        level, leads = self._levels(*loads, counts * rising)
        lowest = self._paths.least(level.take(self.arc, axis=1))
        reached = np.minimum(lowest, self.unit)
        # An arc stops the QPs that it holds back, unless another arc stops one of them earlier.
        waits = np.where(rising, reached, np.inf).take(self.path, axis=1)
        earliest = self._all.least(self._leading(waits, leads))
        final = np.where(earliest < level * (1 - _TOLERANCE), np.inf, level)
        held = self._paths.least(self._leading(final.take(self.arc, axis=1), leads))
        stops: Bools = (self.unit <= lowest) | (held <= lowest * (1 + _TOLERANCE))
        stops &= rising
        # Ensure that each placement ends despite rounding.
        stuck = rising.any(axis=1) & ~stops.any(axis=1)
        stops[stuck] = rising[stuck]
        return stops, reached

    def _leading(self, values: Floats, leads: Bools) -> Floats:
        """Return the values of uses, infinite where the slot of a use does not lead."""
        if len(self.shared):
            values[:, self.shared] = np.where(
                leads.take(self.slot, axis=1), values.take(self.shared, axis=1), np.inf
            )
        return values

    def sent(self, by_path: Floats) -> tuple[Floats, Floats]:
        """Return what paths send over each arc alone, and what they send in each slot.

        The shapes are (placements, arcs) and (placements, slots).
        """
        return (
            self._arcs.summed(by_path.take(self._path_alone, axis=1)),
            self._slots.summed(by_path.take(self._path_shared, axis=1)),
        )

    def of_jobs(self, by_slot: Floats) -> Floats:
        """Return the sum over shares of their greatest slot, shape (placements, arcs)."""
        return self._shares.summed(self._slots_of_share.greatest(by_slot))

    def _levels(self, room: Floats, fixed: Floats, rising: Floats) -> tuple[Floats, Bools]:
        """Return the rate at which each arc is full, and the slots that lead at that rate.

        The rate is infinite where the arc never fills. A slot leads if it is the greatest of its
        share. ``rising`` are the rising QPs of each path.
        """
        alone, in_slots = self.sent(rising)
        level = np.full(room.shape, float(self.unit.max()))
        full = room + self.capacity * _TOLERANCE
        never: Bools | None = None
        while True:
            load = fixed + in_slots * level.take(self.arc_of_slot, axis=1)
            most = self._slots_of_share.greatest(load)
            leads = load >= most.take(self.share_of_slot, axis=1) * (1 - _TOLERANCE)
            total = alone * level + self._shares.summed(most)
            slope = alone + self.of_jobs(np.where(leads, in_slots, 0.0))
            over = (total > full) & (slope > 0)
            if never is None:
                never = ~over
            if not over.any():
                return np.where(never, np.inf, level), leads
            # Load is convex in the level, so Newton's method from above never undershoots.
            excess = (total - room) / np.where(over, slope, 1.0)
            level = np.where(over, np.maximum(level - excess, 0.0), level)


class _Rows:
    """Finds extremes of runs of columns, many times for the same runs."""

    def __init__(self, keys: Ints) -> None:
        """Take the keys of all columns; a run is a stretch of equal keys."""
        self.first = _starts(keys)
        """The first column of each run."""
        last = np.append(self.first[1:], len(keys)) - 1
        longest = int((last - self.first).max(initial=-1)) + 1
        self._columns: list[Ints] | None = None
        """The first column of all runs, the second, and so on; where a run is over, its last."""
        if longest * len(self.first) <= _SPARSE * len(keys):
            self._columns = [np.minimum(self.first + at, last) for at in range(longest)]

    def least(self, values: Floats) -> Floats:
        """Return the least value of each run in each row, shape (rows, runs)."""
        return self._reduced(np.minimum, values)

    def greatest(self, values: Floats) -> Floats:
        """Return the greatest value of each run in each row, shape (rows, runs)."""
        return self._reduced(np.maximum, values)

    def _reduced(self, extreme: np.ufunc, values: Floats) -> Floats:
        if self._columns is None:
            reduced: Floats = extreme.reduceat(values, self.first, axis=1)
            return reduced
        if not self._columns:
            return values[:, :0]
        # Runs are short: reduceat takes several times as long for them.
        found = values.take(self._columns[0], axis=1)
        for column in self._columns[1:]:
            extreme(found, values.take(column, axis=1), out=found)
        return found


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
        total = np.bincount(self._cells(values), values.ravel(), rows * self._count)
        return total.astype(np.float64, copy=False).reshape(rows, self._count)

    def least(self, values: Floats) -> Floats:
        """Return the least value of each group in each row, infinite without any."""
        least = np.full((len(values), self._count), np.inf)
        np.minimum.at(least.reshape(-1), self._cells(values), values.ravel())
        return least

    def _cells(self, values: Floats) -> Ints:
        if len(self._of_cell) != values.size:
            rows = np.arange(len(values))[:, None]
            self._of_cell = (rows * self._count + self._group).ravel()
        return self._of_cell


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
