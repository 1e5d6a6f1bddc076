"""What a plan means for jobs: worst link, slowest flow, time in the network."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from heddle_controller.model.fabric import NONE, Floats, Ints
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.load import utilization
from heddle_controller.model.plan import Plan
from heddle_controller.solve.fairness.filling import Filling

EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class Score:
    """How a job fares in a plan."""

    max_utilization: float = 0.0
    """Load over capacity of the worst link that its flows use; 1.0 is full."""
    slowest_flow: float = 1.0
    """Least part of what a flow asks for that it gets, 0 to 1."""
    seconds: float = 0.0
    """Time in the network of one round of its collectives in this plan; phases take turns."""
    least_seconds: float = 0.0
    """What cuts leave any plan; ``seconds`` where this one was made anew; 0: nobody has looked."""

    @property
    def expected_seconds(self) -> float:
        """The geometric mean of what this plan gives and what cuts leave any.

        A repaired plan may be far off what planning anew then makes of the same hosts, and cuts
        know nothing of paths: where choices differ, what comes in the end lies between the two.
        """
        return sqrt(self.seconds * self.least_seconds) if self.least_seconds else self.seconds

    @property
    def rank(self) -> tuple[float, float, float]:
        """Less is better: expected time, then the slowest flow, then the worst link."""
        return self.expected_seconds, -self.slowest_flow, self.max_utilization

    def no_worse_than(self, other: Score) -> bool:
        """Whether neither the expected time nor the worst link is worse."""
        return self.max_utilization <= other.max_utilization * (
            1 + EQUAL
        ) and self.expected_seconds <= other.expected_seconds * (1 + EQUAL)


def scores(plan: Plan) -> dict[str, Score]:
    """How the flows of each job fare in a plan.

    Rates are max-min fair among QPs, whichever phases of the jobs meet; a flow without a path gets
    nothing. A phase lasts as long as its longest flow; a flow whose bytes nobody has told sends for
    a second.
    """
    flows, paths = plan.flows, plan.paths
    if not len(flows):
        return {}
    used = utilization(plan.fabric, plan.loads)
    of_flow = np.zeros(len(flows))
    if len(paths):
        np.maximum.at(of_flow, paths.flow, np.maximum.reduceat(used[paths.arcs], paths.first[:-1]))
    part = np.minimum(np.bincount(paths.flow, _rates(plan, used), len(flows)) / flows.gbps, 1.0)
    alone = np.where(np.isfinite(flows.bytes), flows.bytes * 8e-9 / flows.gbps, 1.0)
    with np.errstate(divide="ignore"):
        lasts = alone / part
    jobs, phases = len(flows.job_names), len(flows.phase_names) + 1  # any time is -1
    longest = _greatest(flows.job * phases + flows.phase + 1, lasts, jobs * phases)
    seconds = longest.reshape(jobs, phases).sum(axis=1)
    fullest = _greatest(flows.job, of_flow, jobs)
    slowest = -_greatest(flows.job, -part, jobs, least=-1.0)
    told = zip(fullest.tolist(), slowest.tolist(), seconds.tolist(), strict=True)
    return {name: Score(*one) for name, one in zip(flows.job_names, told, strict=True)}


def _rates(plan: Plan, used: Floats) -> Floats:
    """Gbit/s of each path: all it asks for, but where it crosses an arc that is over-full."""
    flows, paths = plan.flows, plan.paths
    rates = paths.gbps(flows)
    over = used > 1 + EQUAL
    rows = np.flatnonzero(paths.crosses(over))
    if not len(rows):
        return rates
    some = paths.take(rows)
    full = over[some.arcs]
    ends = np.cumsum(np.bincount(some.owner()[full], minlength=len(rows)))
    arcs = np.split(some.arcs[full], ends[:-1])
    phase = flows.phase[some.flow]
    job = np.where(phase == ANY_PHASE, NONE, flows.job[some.flow])
    unit = flows.gbps[some.flow] / flows.qps[some.flow]
    filling = Filling(arcs, unit, job, phase, plan.fabric.structure.capacity)
    count = some.qp_count.astype(np.float64)
    rates[rows] = filling.rates(count[None, :])[0] * count
    return rates


def _greatest(owner: Ints, values: Floats, count: int, least: float = 0.0) -> Floats:
    found = np.full(count, least)
    np.maximum.at(found, owner, values)
    return found
