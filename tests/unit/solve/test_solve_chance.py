"""Plans do not depend on chance, and are valid even if time runs out."""

from __future__ import annotations

from functools import partial
from itertools import count
from random import Random

import pytest
from hypothesis import given, settings

from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Options, Repairer, solve
from tests.support.depth import examples, fresh_seeds
from tests.support.solve_checks import check_certificate, check_paths, routed_rows, same_plan
from tests.support.solve_fabrics import EACH, KINDS, SEEDS, SINGLE_HOMED, damaged, frayed
from tests.support.solve_flows import any_flows
from tests.support.solve_reference import least_over_all_paths


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS)
def test_equal_input_gives_equal_plans(kind: str, seed: int) -> None:
    """A fabric and flows made twice give the same plans and repairs, to the last bit."""
    plans = []
    for _ in range(2):
        rng = Random(seed)
        whole = KINDS[kind](rng)
        fabric = damaged(rng, whole)
        flows = any_flows(rng, fabric, examples(6, 10))
        plan = solve(fabric, flows, Options(seed=seed))
        repairer = Repairer(plan, Options(seed=seed))
        changed = (frayed(rng, fabric), damaged(rng, whole))
        plans.append([plan, *(repairer.repair(now, flows) for now in changed)])
    assert all(same_plan(*pair) for pair in zip(*plans, strict=True))


@pytest.mark.parametrize("kind", SINGLE_HOMED)
def test_the_clock_has_no_say_without_a_limit(kind: str) -> None:
    """Without a time limit, even a clock that runs wild changes nothing."""
    rng = Random(3)
    fabric = damaged(rng, KINDS[kind](rng))
    flows = any_flows(rng, fabric, 10)
    ticks = count(0.0, 1e6)
    wild = solve(fabric, flows, Options(clock=partial(next, ticks)))
    assert same_plan(wild, solve(fabric, flows))


@pytest.mark.deep
@pytest.mark.parametrize("limit", [0.0, 3.0, 30.0])
@pytest.mark.parametrize("kind", SINGLE_HOMED)
def test_too_little_time_gives_a_plan_all_the_same(kind: str, limit: float) -> None:
    """Plans made in too little time are valid, and their bounds hold.

    The limit passes after a number of looks at the clock.
    """
    for seed in fresh_seeds(2, EACH):
        rng = Random(seed)
        fabric = KINDS[kind](rng)
        flows = any_flows(rng, fabric, 10)
        ticks = count(0.0, 1.0)
        options = Options(time_limit_seconds=limit, clock=partial(next, ticks))
        plan = solve(fabric, flows, options)
        check_paths(plan)
        check_certificate(plan)
        verify_plan(plan)
        assert len(routed_rows(plan)) == len(flows)
        least = least_over_all_paths(fabric, flows, routed_rows(plan), up_down=kind != "regular")
        grain = max(flows.gbps / flows.qps, default=0.0) / fabric.structure.links.gbps.min()
        assert plan.certificate.lower_bound <= least + grain + 1e-6
