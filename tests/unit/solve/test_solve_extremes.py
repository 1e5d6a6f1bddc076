"""Extreme input gives valid plans with true certificates."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from heddle_controller.model.fabric import NodeKind, State
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.model.plan import Plan
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Options, Repairer, solve
from heddle_controller.solve.bounds.relaxation import power_of_two
from heddle_emulator.topology import clos, three_tier
from tests.support.solve_checks import check_certificate, check_paths
from tests.support.solve_fabrics import KINDS, inner_links
from tests.support.solve_flows import any_flows, flows_of


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-6, 1e12])
def test_demands_far_from_capacity(kind: str, scale: float) -> None:
    """Demands far below and far above a link's capacity give valid plans and true figures."""
    rng = Random(3)
    fabric = KINDS[kind](rng)
    flows = any_flows(rng, fabric, 5)
    plan = solve(fabric, replace(flows, gbps=flows.gbps * scale))
    check_paths(plan)
    check_certificate(plan)
    verify_plan(plan)


def same_ways(one: Plan, other: Plan) -> bool:
    """Whether all QPs of two plans have the same paths."""
    columns = ("flow", "first_qp", "last_qp", "first", "arcs")
    return all(np.array_equal(getattr(one.paths, c), getattr(other.paths, c)) for c in columns)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("load", "scale"), [(0.9, 1e-9), (3e6, 1e9)])
def test_the_unit_of_demands_does_not_matter(kind: str, load: float, scale: float) -> None:
    """Scaling light or hopeless demands by a billion changes no plan.

    Paths are the same if the factor is a power of two, which rounds nothing; else the plan is as
    good. Between light and hopeless there is a rate that links can just carry, so nothing is
    promised there.
    """
    rng = Random(2)
    fabric = KINDS[kind](rng)
    flows = any_flows(rng, fabric, 5)
    worst = solve(fabric, flows).certificate.lower_bound
    flows = replace(flows, gbps=flows.gbps * load / max(worst, 1.0))
    plan = solve(fabric, flows)
    for factor in (power_of_two(scale), scale):
        other = solve(fabric, replace(flows, gbps=flows.gbps * factor))
        told, expected = (
            (c.max_utilization, c.lower_bound) for c in (other.certificate, plan.certificate)
        )
        assert told == pytest.approx([figure * factor for figure in expected], rel=1e-3)
        assert factor == scale or same_ways(plan, other)


def test_one_giant_does_not_blind_the_planner_to_the_rest() -> None:
    """Beside a flow of a million times a link's speed, the others still have a spine each."""
    fabric = clos(leaves=4, spines=4, nics_per_leaf=4)
    rows = [("l0-h0-n0", "l1-h0-n0", 4e8, 1, "giant", "")]
    rows += [(f"l2-h0-n{i}", f"l3-h0-n{i}", 400.0, 1, f"j{i}", "") for i in range(4)]
    plan = solve(fabric, flows_of(fabric, *rows))
    check_certificate(plan)
    ups = [int(plan.paths.of(row)[1]) for row in range(1, 5)]
    assert len({*ups}) == 4


@pytest.mark.parametrize("kind", KINDS)
def test_no_time_at_all(kind: str) -> None:
    """A plan and a repair without any time are valid, and their certificates are true."""
    rng = Random(5)
    fabric = KINDS[kind](rng)
    flows = any_flows(rng, fabric, 14)
    hasty = Options(time_limit_seconds=0.0)
    plan = solve(fabric, flows, hasty)
    lost = int(np.flatnonzero(inner_links(fabric))[0])
    repaired = Repairer(plan, hasty).repair(fabric.with_links({lost: State.DOWN}), flows)
    for one in (plan, repaired):
        check_paths(one)
        check_certificate(one)
        verify_plan(one)


def test_a_hundred_flows_a_nic() -> None:
    """A hundred thousand flows of 1,024 NICs are planned at their bound."""
    fabric = three_tier(zones=2, leaves=32, spines=16, nics_per_leaf=16, cores=16, taper=7.0)
    nics, count = fabric.rows_of_kind(NodeKind.NIC), 100_000
    rng = np.random.default_rng(1)
    source = rng.integers(0, len(nics), count)
    destination = (source + rng.integers(1, len(nics), count)) % len(nics)
    zero = np.zeros(count, dtype=np.int64)
    flows = Flows(
        ids=tuple(map(str, range(count))),
        source=nics[source],
        destination=nics[destination],
        gbps=np.full(count, 1.0),
        job=zero,
        phase=zero + ANY_PHASE,
        qps=zero + 1,
        traffic_class=zero,
        weight=np.ones(count),
        job_names=("j",),
        phase_names=(),
    )
    plan = solve(fabric, flows)
    verify_plan(plan)
    assert not plan.unrouted
    assert plan.certificate.max_utilization == pytest.approx(plan.certificate.lower_bound)
