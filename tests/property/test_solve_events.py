"""Plans while links, switches, drains, jobs, classes and tables change in any order."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Repairer, solve
from tests.property.test_solve_entries import any_tables
from tests.property.test_solve_repairs import other_states, some_of, stays
from tests.support.depth import examples
from tests.support.solve_checks import check_backups, check_certificate, check_paths
from tests.support.solve_fabrics import EACH, KINDS, damaged
from tests.support.solve_flows import crowded_flows
from tests.support.solve_reference import is_joined

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def check(before: Plan, plan: Plan) -> None:
    """Assert that a plan is valid and lacks only flows that are cut off or gave way to a table."""
    check_paths(plan)
    check_backups(plan)
    check_certificate(plan)
    verify_plan(plan)
    flows = plan.flows
    for row, reason in plan.unrouted.items():
        ends = int(flows.source[row]), int(flows.destination[row])
        cut_off = not is_joined(plan.fabric, *ends)
        assert cut_off or "table" in reason
        assert "table" in reason or not stays(before, plan.fabric, flows.ids[row], ends)


def next_state(rng: Random, fabric: Fabric, flows: Flows, every: Flows) -> tuple[Fabric, Flows]:
    """Apply one event: a link or switch changes, or jobs come and go."""
    if rng.random() < 0.7:
        return other_states(rng, fabric), flows
    return fabric, some_of(rng, every)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS, st.booleans())
def test_plans_stay_sound_whatever_happens(kind: str, seed: int, tables: bool) -> None:  # noqa: FBT001
    """One repairer follows events one by one, and each of its plans is valid."""
    rng = Random(seed)
    fabric = damaged(rng, KINDS[kind](rng), 0.05)
    fabric = any_tables(rng, fabric) if tables else fabric
    every = crowded_flows(rng, fabric, 10)
    flows = some_of(rng, every)
    repairer = Repairer(solve(fabric, flows))
    assert tables or (fabric.structure.nodes.table_size == NONE).all()
    for _ in range(5):
        before = repairer.plan
        fabric, flows = next_state(rng, fabric, flows, every)
        check(before, repairer.repair(fabric, flows))
        assert np.array_equal(repairer.plan.flows.qps, flows.qps)
