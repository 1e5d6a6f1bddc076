"""Plans of the planner pass the check that shares no code with it."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.plan.explain import explain
from heddle_controller.plan.verify import verify_plan
from heddle_controller.plan.what_if import compare_plans
from heddle_controller.solve import Repairer, solve
from tests.support.depth import examples
from tests.support.plan_chance import random_fabric, random_plan, with_failures

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def with_drains(rng: Random, fabric: Fabric) -> Fabric:
    """The same fabric with a few of its live links drained."""
    up = np.flatnonzero(fabric.link_state == State.UP).tolist()
    return fabric.with_links({row: State.DRAINED for row in up if rng.random() < 0.05})


@settings(max_examples=examples(10))
@given(SEEDS)
def test_plans_and_repairs_pass_the_check(seed: int) -> None:
    """Plans and repairs are valid on any graph with links down and drained."""
    rng = Random(seed)
    fabric = with_drains(rng, with_failures(rng, random_fabric(rng)))
    flows = random_plan(rng, fabric).flows
    plan = solve(fabric, flows)
    verify_plan(plan)
    repaired = Repairer(plan).repair(with_failures(rng, fabric, 0.1), flows)
    verify_plan(repaired)
    told = compare_plans(plan, repaired)
    assert set(told.lost.tolist()) == set(repaired.unrouted) - set(plan.unrouted)


@settings(max_examples=examples(10))
@given(SEEDS)
def test_every_flow_of_a_plan_can_be_explained(seed: int) -> None:
    """An explanation lists all hops of a flow's paths, or begins with why it has none."""
    rng = Random(seed)
    fabric = with_failures(rng, random_fabric(rng))
    plan = solve(fabric, random_plan(rng, fabric).flows)
    for row in range(len(plan.flows)):
        told = explain(plan, row)
        assert len(told.hops) == sum(len(plan.paths.of(path)) for path in told.paths)
        assert told.reasons
        assert told.reasons[0].startswith(plan.flows.ids[row]) == (row in plan.unrouted)
