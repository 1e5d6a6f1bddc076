"""What a plan means for one job: its worst link, its slowest flow, its time in the network."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import Floats
from heddle_controller.model.load import arc_loads, utilization
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


def score(plan: Plan, job: str) -> Score:
    """How the flows of a job fare in a plan.

    A flow gets what it asks for, divided by the utilisation of the worst link on its way where that
    is over-full; one without a path gets nothing. A phase lasts as long as its longest flow.
    """
    flows, paths = plan.flows, plan.paths
    mine = flows.job == flows.job_names.index(job) if job in flows.job_names else None
    if mine is None or not mine.any():
        return Score()
    used = utilization(plan.fabric, arc_loads(2 * plan.fabric.link_count, flows, paths))
    worst: Floats = np.maximum.reduceat(used[paths.arcs], paths.first[:-1])
    of_flow = np.zeros(len(flows))
    np.maximum.at(of_flow, paths.flow, worst)
    part = np.zeros(len(flows))
    part[paths.flow] = 1 / np.maximum(1.0, of_flow[paths.flow])
    with np.errstate(divide="ignore"):
        lasts = flows.bytes * 8e-9 / (flows.gbps * part)
    phases = flows.phase[mine]
    longest = np.zeros(int(phases.max()) + 1)
    np.maximum.at(longest, phases, lasts[mine])
    return Score(float(of_flow[mine].max()), float(part[mine].min()), float(longest.sum()))
