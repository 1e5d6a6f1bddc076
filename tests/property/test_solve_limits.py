"""No plan could be better than the bound that a certificate claims."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.solve import solve
from heddle_emulator.topology import clos
from tests.support.depth import examples
from tests.support.solve_checks import routed_rows
from tests.support.solve_fabrics import EACH, KINDS, damaged, frayed
from tests.support.solve_flows import any_flows
from tests.support.solve_reference import (
    arcs_of_tier,
    least_over_all_paths,
    least_over_paths,
    simple_paths,
)

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)
MANY = 512
"""QPs of each flow, so many that whole QPs hardly raise a bound."""


def grain(fabric: Fabric, flows: Flows) -> float:
    """The utilisation that one QP may add to a link."""
    return float((flows.gbps / flows.qps).max() / fabric.structure.links.gbps.min())


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS, st.sampled_from([0.0, 0.1]))
def test_bounds_hold_over_all_paths(kind: str, seed: int, share: float) -> None:
    """No bound, of the whole or of a tier, is above the optimum of freely divisible flows."""
    rng = Random(seed)
    fabric = damaged(rng, KINDS[kind](rng), share)
    flows = any_flows(rng, fabric, examples(5, 8)).with_qps(MANY)
    plan = solve(fabric, flows)
    rows = routed_rows(plan)
    if not rows:
        assert plan.certificate.lower_bound == 0.0
        return
    slack = grain(fabric, flows) + 1e-6
    assert plan.certificate.lower_bound <= least_over_all_paths(fabric, flows, rows) + slack
    for tier in plan.certificate.tiers:
        least = least_over_all_paths(fabric, flows, rows, arcs_of_tier(fabric, tier.tier))
        assert tier.lower_bound <= least + slack


@settings(max_examples=examples(30))
@given(SEEDS)
def test_whole_qps_cannot_beat_a_bound(seed: int) -> None:
    """In small fabrics, the integer optimum over all simple paths is between bound and plan."""
    rng = Random(seed)
    spines = rng.randint(1, 3)
    fabric = clos(leaves=3, spines=spines, nics_per_leaf=2, parallel=2 if spines == 1 else 1)
    fabric = frayed(rng, fabric, 0.2)
    flows = any_flows(rng, fabric, 4, qps=(1, 2, 3))
    plan = solve(fabric, flows)
    rows = routed_rows(plan)
    if not rows:
        return
    ends = list(zip(flows.source.tolist(), flows.destination.tolist(), strict=True))
    ways = {row: simple_paths(fabric, *ends[row]) for row in rows}
    best = least_over_paths(fabric, flows, ways.__getitem__, rows, whole=True)
    told = plan.certificate
    assert told.lower_bound <= best + 1e-6
    assert told.max_utilization >= best - 1e-6
