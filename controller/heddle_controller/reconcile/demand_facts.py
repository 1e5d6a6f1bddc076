"""What is reported of demand sets: pure, from what was asked for and the newest plan.

Nothing of it is stored: whether a plan holds a set can be read off the plan at any time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.demand import Demands
from heddle_controller.model.plan import Plan
from heddle_controller.planner.planning import left_out
from heddle_controller.state.records import Intent, JobState


@dataclass(frozen=True, slots=True)
class DemandFacts:
    """How far a demand set has come."""

    state: JobState = JobState.ACCEPTED
    """PLANNED, not PROGRAMMED, is the furthest: switches are asked by job, not by set."""
    reason: str = ""
    """Why it is DEGRADED."""
    unrouted_count: int = 0


def demand_facts(
    intent: Intent, plan: Plan | None, rows: Mapping[str, int]
) -> dict[str, DemandFacts]:
    """The facts of all demand sets of a fabric, by name.

    Args:
        intent: What is wanted.
        plan: The newest; None where there is none.
        rows: Of its flows, by id.
    """
    unplanned = left_out(intent)
    facts = {}
    for record in intent.demands:
        if reason := unplanned.get(record.name):
            facts[record.name] = DemandFacts(JobState.DEGRADED, f"not planned: {reason}")
        else:
            facts[record.name] = _planned(record.demands, plan, rows)
    return facts


def _planned(demands: Demands, plan: Plan | None, rows: Mapping[str, int]) -> DemandFacts:
    if plan is None or not all(flow in rows for flow in demands.ids):
        return DemandFacts()
    at = np.array([rows[flow] for flow in demands.ids], dtype=np.int64)
    if not _holds(plan, at, demands):
        return DemandFacts()
    lost = [row for row in at.tolist() if row in plan.unrouted]
    if lost:
        first = f"{plan.flows.ids[lost[0]]}: {plan.unrouted[lost[0]]}"
        text = f"{len(lost)} flow{'s' if len(lost) > 1 else ''} without a path: {first}"
        return DemandFacts(JobState.DEGRADED, text, len(lost))
    return DemandFacts(JobState.PLANNED)


def _holds(plan: Plan, at: np.ndarray, demands: Demands) -> bool:
    """Whether flows of a plan are what a set asks for now, and not what it asked for before."""
    flows, ids = plan.flows, plan.fabric.structure.nodes.ids
    ends = ((flows.source, demands.source), (flows.destination, demands.destination))
    columns = (
        (flows.gbps, demands.gbps),
        (flows.qps, demands.qps),
        (flows.traffic_class, demands.traffic_class),
    )
    return all(np.array_equal(have[at], want) for have, want in columns) and all(
        tuple(ids[row] for row in have[at].tolist()) == want for have, want in ends
    )
