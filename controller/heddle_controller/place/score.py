"""What a plan means for jobs: worst link, slowest flow, time in the network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import Floats, Ints
from heddle_controller.model.load import utilization
from heddle_controller.model.plan import Plan

EQUAL = 1e-9


@dataclass(frozen=True, slots=True)
class Score:
    """How a job fares in a plan."""

    max_utilization: float = 0.0
    """Load over capacity of the worst link that its flows use; 1.0 is full."""
    slowest_flow: float = 1.0
    """Least part of what a flow asks for that it gets, 0 to 1."""
    seconds: float = 0.0
    """Predicted time in the network of one round of its collectives; phases take turns."""

    @property
    def rank(self) -> tuple[float, float, float]:
        """Less is better: time, then the slowest flow, then the worst link."""
        return self.seconds, -self.slowest_flow, self.max_utilization

    def no_worse_than(self, other: Score) -> bool:
        """Whether it is at least as good in all three."""
        return (
            self.max_utilization <= other.max_utilization * (1 + EQUAL)
            and self.slowest_flow >= other.slowest_flow * (1 - EQUAL)
            and self.seconds <= other.seconds * (1 + EQUAL)
        )


def scores(plan: Plan) -> dict[str, Score]:
    """How the flows of each job fare in a plan.

    A flow gets what it asks for, divided by the utilisation of the worst link on its way where that
    is over-full; one without a path gets nothing. A phase lasts as long as its longest flow, and
    one whose flows nobody has told the bytes of sends for a second.
    """
    flows, paths = plan.flows, plan.paths
    if not len(flows):
        return {}
    of_flow = np.zeros(len(flows))
    if len(paths):
        used = utilization(plan.fabric, plan.loads)
        np.maximum.at(of_flow, paths.flow, np.maximum.reduceat(used[paths.arcs], paths.first[:-1]))
    part = np.zeros(len(flows))
    part[paths.flow] = 1 / np.maximum(1.0, of_flow[paths.flow])
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


def _greatest(owner: Ints, values: Floats, count: int, least: float = 0.0) -> Floats:
    found = np.full(count, least)
    np.maximum.at(found, owner, values)
    return found
