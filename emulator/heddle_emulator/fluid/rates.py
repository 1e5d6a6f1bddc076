"""Max-min fair rates of QPs over given paths, by progressive filling.

All QPs rise together. A QP stops at its share of its flow's demand, or when a link it crosses is
full. Phases follow the load rule of the whole project: flows of one job in different phases never
run at the same time. So a link holds, for each job, what may run at any time plus the greatest of
its phases. The rates found are therefore those that a flow can keep *whichever phases of the jobs
coincide*: the max-min fair point of the intersection of all combinations. In any one combination
the slowest flow gets that much or more.

Filling link by link in the order of their levels would take a round for each level. Here each round
fills every link that is a local bottleneck: one whose rising QPs meet no lower level anywhere else
on their paths. Meanwhile the levels of other links only grow, so the result is the same. The number
of rounds is the depth of dependencies between bottlenecks (tens, not thousands).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.model.plan import Paths

_TOLERANCE = 1e-9
"""Relative tolerance, for rounding on a full link and for levels that count as equal."""


def path_rates(capacity: Floats, flows: Flows, paths: Paths, parts: Floats | None = None) -> Floats:
    """Return the fair rate of each path, all its QPs together, in Gbit/s, shape (paths,).

    ``capacity`` is in Gbit/s, one element per arc. A path without arcs gets its demand. If packets
    are sprayed, ``parts``, parallel to ``paths.arcs``, says which part of a path's packets crosses
    each of its arcs; None means that all do.
    """
    filling = _Filling(capacity, flows, paths, parts)
    while filling.active.any():
        filling.round()
    return filling.rate * filling.qps


def flow_ratios(
    capacity: Floats, flows: Flows, paths: Paths, parts: Floats | None = None
) -> Floats:
    """Return fair rate over demand of each flow, 0 to 1; QPs without a path add 0."""
    rates = path_rates(capacity, flows, paths, parts)
    return np.bincount(paths.flow, weights=rates, minlength=len(flows)) / flows.gbps


class _Filling:
    """The state between two rounds: which QPs still rise, and what the others got.

    A use is one path on one arc. Only uses of rising paths on arcs that can fill up are kept, in
    the order of their groups.
    """

    def __init__(self, capacity: Floats, flows: Flows, paths: Paths, parts: Floats | None) -> None:
        self.capacity = capacity
        self.qps = paths.qp_count.astype(np.float64)
        self.limit = flows.gbps[paths.flow] / flows.qps[paths.flow]
        self.active = np.ones(len(paths), dtype=np.bool_)
        self.rate = np.zeros(len(paths))
        owner = paths.owner()
        codes = _group_codes(flows, paths, owner)
        order = np.argsort(codes, kind="stable")
        self.path, codes = owner[order], codes[order]
        self.part = (np.ones(len(owner)) if parts is None else parts)[order]
        starts = _starts(codes)
        self.group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(codes))))
        first = order[starts]
        job, phase = flows.job[paths.flow][owner[first]], flows.phase[paths.flow][owner[first]]
        self.groups = _Groups.begin(paths.arcs[first], job, phase == ANY_PHASE)
        self.groups.rising = self._by_group(self.qps)

    def round(self) -> None:
        """Stop every path that meets its demand or a local bottleneck."""
        self._forget_roomy()
        if not len(self.path):
            self._stop(self.active.copy(), self.limit)
            return
        arc = self.groups.arc[self.group]
        level = self.groups.levels(self.capacity, float(self.limit[self.path].max()))
        lowest = np.full(len(self.qps), np.inf)
        np.minimum.at(lowest, self.path, level[arc])
        tight = self.groups.greatest(level)[self.group]
        elsewhere = np.minimum(lowest, self.limit)[self.path] < level[arc] * (1 - _TOLERANCE)
        final = np.bincount(arc[tight & elsewhere], minlength=len(self.capacity)) == 0
        full = np.zeros_like(self.active)
        full[self.path[tight & final[arc]]] = True
        content = self.active & (self.limit <= lowest)
        self._stop(full | content, np.minimum(lowest, self.limit))

    def _by_group(self, weights: Floats) -> Floats:
        """Sum a value of each path over the current uses of each group."""
        return np.bincount(
            self.group,
            weights=weights[self.path] * self.part,
            minlength=len(self.groups.arc),
        ).astype(np.float64)

    def _stop(self, paths: Bools, rate: Floats) -> None:
        self.rate[paths] = rate[paths]
        self.active &= ~paths
        stopped = np.where(paths, self.qps, 0.0)
        self.groups.fixed += self._by_group(stopped * self.rate)
        left = self.active[self.path]
        self.path, self.part, self.group = self.path[left], self.part[left], self.group[left]
        self.groups.rising = self._by_group(self.qps)

    def _forget_roomy(self) -> None:
        """Leave out arcs where nothing rises, and arcs with room for all demands."""
        groups, count = self.groups, len(self.capacity)
        most = groups.fixed + self._by_group(self.qps * self.limit)
        matters = groups.over_shares(most, count) > self.capacity
        matters &= np.bincount(groups.arc, weights=groups.rising, minlength=count) > 0
        kept = matters[groups.arc]
        renamed = np.cumsum(kept) - 1
        used = kept[self.group]
        self.path, self.part = self.path[used], self.part[used]
        self.group = renamed[self.group[used]]
        self.groups = groups.keep(kept)


@dataclass(slots=True, eq=False)
class _Groups:
    """The load of arcs as a function of their level, the common rate of the QPs that rise there.

    A group is what one phase of one job sends over one arc. A share is what one job sends over one
    arc: a run of groups, identified by where it begins.
    """

    arc: Ints
    job: Ints
    always: Bools
    """Whether the group's flows may run at any time."""
    fixed: Floats
    """Gbit/s of QPs that have stopped."""
    rising: Floats
    """Number of QPs that still rise; sprayed QPs count by their part."""
    share_starts: Ints
    share_of: Ints

    @classmethod
    def begin(cls, arc: Ints, job: Ints, always: Bools) -> _Groups:
        """Return groups without load, sorted by arc, job and phase."""
        empty = np.zeros(len(arc))
        return cls(arc, job, always, empty, empty, *_shares(arc, job))

    def keep(self, kept: Bools) -> _Groups:
        """Return the groups that are kept; all groups of one arc must be kept or none."""
        arc, job = self.arc[kept], self.job[kept]
        columns = (self.always[kept], self.fixed[kept], self.rising[kept])
        return _Groups(arc, job, *columns, *_shares(arc, job))

    def levels(self, capacity: Floats, highest: float) -> Floats:
        """Return the level at which each arc is full; infinite for arcs without groups."""
        level = np.full(len(capacity), np.inf)
        seen = self.arc[self.share_starts]
        level[seen] = highest
        # Newton from the right: the load is convex in the level, so this never undershoots.
        while True:
            load = self._load(level)
            total = self.over_shares(load, len(capacity))
            over = total > capacity * (1 + _TOLERANCE)
            if not over.any():
                break
            grows = np.where(self._leads(load), self.rising, 0.0)
            slope = self.over_shares(grows, len(capacity))
            level[over] -= (total[over] - capacity[over]) / slope[over]
        level[seen] = np.maximum(level[seen], 0.0)
        return level

    def greatest(self, level: Floats) -> Bools:
        """Return whether each group counts in its arc's load at that level."""
        return self._leads(self._load(level))

    def over_shares(self, values: Floats, arc_count: int) -> Floats:
        """Sum, by arc, the any-time groups and the greatest phase of each job."""
        if not len(values):
            return np.zeros(arc_count)
        phased = np.maximum.reduceat(np.where(self.always, 0.0, values), self.share_starts)
        total = np.zeros(arc_count)
        total += np.bincount(self.arc[self.share_starts], weights=phased, minlength=arc_count)
        anytime = np.where(self.always, values, 0.0)
        total += np.bincount(self.arc, weights=anytime, minlength=arc_count)
        return total

    def _load(self, level: Floats) -> Floats:
        return self.fixed + self.rising * level[self.arc]

    def _leads(self, load: Floats) -> Bools:
        phased = np.maximum.reduceat(np.where(self.always, 0.0, load), self.share_starts)
        return self.always | (load >= phased[self.share_of] * (1 - _TOLERANCE))


def _group_codes(flows: Flows, paths: Paths, owner: Ints) -> Ints:
    """Return one number for the arc, job and phase of each use, which sorts in that order."""
    job, phase = flows.job[paths.flow][owner], flows.phase[paths.flow][owner]
    jobs, phases = max(len(flows.job_names), 1), len(flows.phase_names) + 1
    return (paths.arcs * jobs + job) * phases + phase + 1


def _shares(arc: Ints, job: Ints) -> tuple[Ints, Ints]:
    """Return where runs of equal arc and job begin, and the run that each group is in."""
    new = np.ones(len(arc), dtype=np.bool_)
    new[1:] = (np.diff(arc) != 0) | (np.diff(job) != 0)
    return np.flatnonzero(new), np.cumsum(new) - 1


def _starts(ascending: Ints) -> Ints:
    """Return where runs of equal values begin."""
    new = np.ones(len(ascending), dtype=np.bool_)
    new[1:] = ascending[1:] != ascending[:-1]
    return np.flatnonzero(new)
