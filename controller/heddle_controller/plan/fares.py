"""How the flows of a plan fare: the fullest link of each, and the slowest flow of each job.

A flow gets what it asks for, divided by the utilisation of the fullest link on its way where that
is over-full; one without a path gets nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints
from heddle_controller.model.plan import Plan, utilization


@dataclass(frozen=True, slots=True, eq=False)
class Fares:
    """How the jobs of one plan fare."""

    plan: Plan
    utilization: Floats
    """Load over capacity of each arc."""
    fullest: Ints
    """The fullest arc on the paths of each flow, by its row; ``NONE`` for one without a path."""
    share: Floats
    """Part of its demand that each flow gets, 0 to 1."""

    def slowest_of_jobs(self) -> dict[str, int]:
        """The row of the slowest flow of each job: the first of those that are equally slow."""
        flows = self.plan.flows
        rows = np.lexsort((np.arange(len(flows)), -self._fullness(), self.share, flows.job))
        first = rows[np.flatnonzero(np.diff(flows.job[rows], prepend=NONE))]
        return {flows.job_names[int(flows.job[row])]: row for row in first.tolist()}

    def worst_of_jobs(self) -> dict[str, int]:
        """The fullest arc that flows of each job use; not of jobs without a path."""
        flows = self.plan.flows
        rows = np.flatnonzero(self.fullest != NONE)
        rows = rows[np.lexsort((rows, -self.utilization[self.fullest[rows]], flows.job[rows]))]
        first = rows[np.flatnonzero(np.diff(flows.job[rows], prepend=NONE))]
        jobs = flows.job[first].tolist()
        arcs = self.fullest[first].tolist()
        return {flows.job_names[job]: arc for job, arc in zip(jobs, arcs, strict=True)}

    def unrouted_of_jobs(self) -> dict[str, int]:
        """How many flows of each job have no path."""
        flows = self.plan.flows
        rows = np.fromiter(self.plan.unrouted, dtype=np.int64, count=len(self.plan.unrouted))
        counts = np.bincount(flows.job[rows], minlength=len(flows.job_names)).tolist()
        return dict(zip(flows.job_names, counts, strict=True))

    def _fullness(self) -> Floats:
        return np.where(self.fullest == NONE, np.inf, self.utilization[self.fullest])


def fares_of(plan: Plan, offered: Floats | None = None) -> Fares:
    """How flows fare.

    Args:
        plan: The plan.
        offered: Part of its speed that each arc has to offer, above 0, shape (arcs,); None: all.
    """
    used = utilization(plan.fabric, plan.loads)
    if offered is not None:
        used = used / offered
    fullest = fullest_arcs(plan, used)
    worst = np.where(fullest == NONE, np.inf, used[fullest])
    return Fares(plan, used, fullest, 1.0 / np.maximum(worst, 1.0))


def fullest_arcs(plan: Plan, used: Floats) -> Ints:
    """The fullest arc of each flow: the first of those that are equally full."""
    fullest = np.full(len(plan.flows), NONE, dtype=np.int64)
    paths = plan.paths
    lengths = np.diff(paths.first)
    whole = lengths > 0
    if not whole.any():
        return fullest
    flow = np.repeat(paths.flow, lengths)  # of each arc of a path; ascending
    load = used[paths.arcs]
    starts = np.flatnonzero(np.diff(flow, prepend=NONE))
    most = np.maximum.reduceat(load, starts)
    counts = np.diff(np.append(starts, len(flow)))
    hits = np.flatnonzero(load == np.repeat(most, counts))
    first = hits[np.flatnonzero(np.diff(flow[hits], prepend=NONE))]
    fullest[flow[first]] = paths.arcs[first]
    return fullest
