"""Bounds proven later for an existing plan: no lower than the known ones, and never too high."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings

from heddle_controller.model.fabric import State
from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Options, Repairer, prove, solve
from tests.support.depth import examples
from tests.support.solve_fabrics import EACH, KINDS, SEEDS, inner_links, of_records
from tests.support.solve_flows import any_flows, flows_of


def doubted(plan: Plan) -> Plan:
    """The plan, with all its bounds lowered to a quarter."""
    tiers = tuple(replace(t, lower_bound=t.lower_bound / 4) for t in plan.certificate.tiers)
    least = plan.certificate.lower_bound / 4
    certificate = Certificate(plan.certificate.max_utilization, least, "cut", tiers)
    return replace(plan, certificate=certificate)


def test_a_hole_is_proven_late() -> None:
    """By hand: three flows round a ring of leaves and spines, each also the long way back.

    Links one way round carry one flow each, those the other way two; a third of each
    flow that goes back makes all alike, at two thirds.
    """
    nodes = [{"id": n, "kind": "nic"} for n in "abc"]
    nodes += [{"id": f"l{n}", "kind": "leaf"} for n in "abc"]
    nodes += [{"id": f"s{i}", "kind": "spine"} for i in range(3)]
    ends = [("la", "s0"), ("lb", "s0"), ("lb", "s1"), ("lc", "s1"), ("lc", "s2"), ("la", "s2")]
    edges = [(n, f"l{n}") for n in "abc"] + ends
    fabric = of_records(nodes, edges)
    flows = flows_of(fabric, *((x, y, 100.0, 3, "j", "") for x, y in ("ab", "bc", "ca")))
    plan = doubted(solve(fabric, flows))
    certificate = prove(plan)
    assert certificate.lower_bound == pytest.approx(2 / 3, abs=1e-3)
    assert certificate.proof == "lp"
    assert certificate.max_utilization == plan.certificate.max_utilization


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS)
def test_late_bounds_hold_and_only_rise(kind: str, seed: int) -> None:
    """Bounds proven after a loss are no lower than before and no higher than a plan gets."""
    rng = Random(seed)
    fabric = KINDS[kind](rng)
    flows = any_flows(rng, fabric, examples(5, 9))
    lost = rng.choice(np.flatnonzero(inner_links(fabric)).tolist())
    repaired = Repairer(solve(fabric, flows)).repair(fabric.with_links({lost: State.DOWN}), flows)
    fresh = solve(repaired.fabric, flows)
    for plan in (repaired, doubted(repaired)):
        proven = prove(plan)
        assert plan.certificate.lower_bound <= proven.lower_bound
        verify_plan(replace(plan, certificate=proven))
        if fresh.unrouted.keys() == plan.unrouted.keys():
            assert proven.lower_bound <= fresh.certificate.max_utilization * (1 + 1e-9)


def test_no_time_proves_nothing_wrong() -> None:
    """Without any time, the certificate is no worse than before."""
    rng = Random(1)
    fabric = KINDS["two-tiers"](rng)
    plan = doubted(solve(fabric, any_flows(rng, fabric, 12)))
    proven = prove(plan, options=Options(time_limit_seconds=0.0))
    assert plan.certificate.lower_bound <= proven.lower_bound
    verify_plan(replace(plan, certificate=proven))


def test_what_is_met_is_left_alone() -> None:
    """A plan at its bound keeps its certificate, and the proof in it."""
    rng = Random(1)
    fabric = KINDS["two-tiers"](rng)
    plan = solve(fabric, any_flows(rng, fabric, 12))
    assert plan.certificate.gap < 1e-6
    proven = replace(prove(plan), after_loss=(), unprotected=0, unprotected_flows=())
    assert proven == plan.certificate
