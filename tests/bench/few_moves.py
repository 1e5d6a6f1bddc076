"""Flows that move in quiet while jobs come and go, beside what a plan from scratch would move.

The states are those of ``placing``. In each of a few rounds two jobs end, and others start on
random free hosts. The plan is repaired, and then compared in quiet as a controller does it. Without
few moves, the plan from scratch is taken whenever it wins. Both begin each round with the same
plan.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.flows import concatenate
from heddle_controller.model.plan import Plan
from heddle_controller.planner.core import planning_engine
from heddle_controller.planner.planning import better_plan
from heddle_controller.solve import Repairer
from heddle_controller.traffic.jobs import flows_of_job
from tests.bench.placing import SHAPES, drawn, drawn_job
from tests.bench.pool import each
from tests.bench.rows import Row, Scale
from tests.bench.screen import Screen

TITLE = "jobs come and go on half-full fabrics of 3,072 NICs: what moves in quiet"
STATES = {"quick": 1, "default": 5, "full": 50}
ROUNDS = 4
WORTH_MOVING = 0.02
"""The controller's own threshold."""


@dataclass(frozen=True, slots=True)
class Found:
    """One round in which a plan from scratch wins."""

    state: str
    flows: int
    moved: int
    moved_anew: int
    """Flows that the plan from scratch moves."""
    fuller: float
    """How much fuller the worst link is than in the plan from scratch, relatively."""
    seconds: float
    seconds_anew: float
    """Processor time of the comparison, with few moves and without."""


def run(seed: int) -> list[Found]:
    """Play the rounds of one state."""
    state, draw = drawn(seed), random.Random(seed)
    engine, fabric = planning_engine(None), state.fabric
    anew_only = replace(engine, improvements=lambda _: iter(()))
    jobs, free = [record.job for record in state.intent.jobs], list(state.free)
    plan, found, gpus = state.standing, [], state.job.gpus_per_host
    for number in range(ROUNDS):
        for _ in range(2):
            free += jobs.pop(draw.randrange(len(jobs))).hosts
        for row in range(2):
            count = min(draw.choice([4, 8, 16, 32]), len(free) // 3)
            own = draw.sample(free, count)
            free = [host for host in free if host not in own]
            name = f"new{number}-{row}"
            jobs.append(drawn_job(name, draw.choice(SHAPES), tuple(sorted(own)), gpus, draw))
        flows = concatenate([flows_of_job(job, fabric) for job in jobs])
        plan = Repairer(plan).repair(fabric, flows)
        before = time.process_time()
        anew = better_plan(plan, anew_only, WORTH_MOVING)
        between = time.process_time()
        near = better_plan(plan, engine, WORTH_MOVING)
        after = time.process_time()
        if near is None or anew is None:
            continue
        worst = [_worst(one.plan) for one in (near, anew)]
        found.append(
            Found(
                f"{state.kind}, seed {seed}, round {number}",
                len(flows),
                near.changed_count,
                anew.changed_count,
                worst[0] / worst[1] - 1,
                after - between,
                between - before,
            )
        )
        plan = near.plan
    return found


def _worst(plan: Plan) -> float:
    return plan.certificate.max_utilization


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return the row of flows that move."""
    states, done, found = STATES[scale.name], 0, list[Found]()
    with screen.progress(TITLE, states) as advance:
        for some in each(run, range(states), scale.workers):
            found += some
            done += 1
            advance(done)
    flows, moved, anew = (
        sum(getattr(one, name) for one in found) for name in ("flows", "moved", "moved_anew")
    )
    spent, spent_anew = (
        sum(getattr(one, name) for one in found) for name in ("seconds", "seconds_anew")
    )
    fuller = max((one.fuller for one in found), default=0.0)
    parts = np.array([one.moved / one.moved_anew for one in found])
    median = f"{np.median(parts):.0%}" if len(parts) else "nothing"
    return [
        Row(
            TITLE,
            "few moves",
            f"{moved:,} of {flows:,} flows; from scratch {anew:,}",
            note=(
                f"{len(found)} of {states * ROUNDS} rounds have a better plan; of what that moves, "
                f"the median is {median}; worst link at most {fuller:+.1%} fuller; processor "
                f"{spent:.0f} s, without few moves {spent_anew:.0f} s"
            ),
            data={
                "moved": [one.moved for one in found],
                "anew": [one.moved_anew for one in found],
                "states": [one.state for one in found],
            },
        )
    ]
