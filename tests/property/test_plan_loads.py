"""Loads derived from those of an earlier plan equal loads summed up from nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Plan, arc_loads
from heddle_controller.plan.verify import loads_after
from heddle_controller.solve import Options, solve
from heddle_emulator.topology import three_tier
from tests.bench.workloads import permutations

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


@pytest.fixture(scope="module")
def phased() -> Plan:
    """A plan of three jobs, each with two phases and with flows that may run at any time."""
    fabric = three_tier(
        zones=2, leaves=4, spines=4, nics_per_leaf=4, cores=4, taper=1.0, name="two-zones"
    )
    flows = permutations(fabric, seed=1, sets=3)
    phase = np.where(flows.source % 3 == 2, ANY_PHASE, flows.source % 3 + 2 * flows.job)
    names = tuple(f"phase{number}" for number in range(6))
    gbps = flows.gbps * (1 + flows.source % 7)
    hasty = Options(time_limit_seconds=0.0)  # any plan will do
    return solve(fabric, replace(flows, phase=phase, phase_names=names, gbps=gbps), hasty)


def changed(plan: Plan, random: np.random.Generator, share: float) -> Plan:
    """The plan with some arcs replaced at random. Loads do not need connected paths."""
    arcs = plan.paths.arcs.copy()
    places = np.flatnonzero(random.random(len(arcs)) < share)
    arcs[places] = random.integers(len(plan.fabric.structure.tail), size=len(places))
    return replace(plan, paths=replace(plan.paths, arcs=arcs))


@given(SEEDS)
def test_loads_follow_from_those_before(phased: Plan, seed: int) -> None:
    """Loads are the same bit for bit, whichever plan they derive from and however it differs."""
    random = np.random.default_rng(seed)
    plans = [phased]
    loads_after(phased, None)
    for _ in range(6):
        before = plans[int(random.integers(len(plans)))]
        plan = changed(before, random, float(random.choice([0, 0.001, 0.02, 0.5])))
        expected = arc_loads(len(plan.fabric.structure.tail), plan.flows, plan.paths)
        assert np.array_equal(loads_after(plan, before), expected)
        assert loads_after(before, plan) is before.loads
        plans.append(plan)


@given(SEEDS)
def test_loads_follow_where_flows_come_behind(phased: Plan, seed: int) -> None:
    """Loads are the same bit for bit if the earlier plan has only the first of the flows.

    The last job of the earlier plan may have more flows behind.
    """
    random = np.random.default_rng(seed)
    flows = phased.flows
    if random.random() < 0.5:  # no flow may run at any time
        flows = replace(flows, phase=np.where(flows.phase == ANY_PHASE, 0, flows.phase))
    whole = replace(phased, flows=flows)
    count = int(random.integers(len(flows) + 1))
    fewer = phased.paths.take(np.flatnonzero(phased.paths.flow < count))
    before = replace(whole, flows=flows.take(np.arange(count)), paths=fewer)
    loads_after(before, None)
    plan = changed(whole, random, float(random.choice([0, 0.001, 0.02])))
    expected = arc_loads(len(plan.fabric.structure.tail), plan.flows, plan.paths)
    assert np.array_equal(loads_after(plan, before), expected)


@given(SEEDS)
def test_loads_of_new_jobs_come_on_top(phased: Plan, seed: int) -> None:
    """Loads are the same bit for bit if whole jobs follow the flows of the earlier plan."""
    random = np.random.default_rng(seed)
    flows = phased.flows
    if random.random() < 0.5:  # no flow may run at any time
        flows = replace(flows, phase=np.where(flows.phase == ANY_PHASE, 0, flows.phase))
    whole = replace(phased, flows=flows)
    count = int(np.searchsorted(flows.job, random.integers(1, 3)))
    kept = phased.paths.take(np.flatnonzero(phased.paths.flow < count))
    before = replace(whole, flows=flows.take(np.arange(count)), paths=kept)
    loads_after(before, None)
    plan = changed(whole, random, float(random.choice([0, 0.001, 0.02])))
    expected = arc_loads(len(plan.fabric.structure.tail), plan.flows, plan.paths)
    assert np.array_equal(loads_after(plan, before), expected)


def test_a_flow_with_other_qps_is_another_load(phased: Plan) -> None:
    """If flows have other QP counts than before, all loads are summed up again."""
    loads_after(phased, None)
    halved = replace(phased, flows=phased.flows.with_qps(2))
    expected = arc_loads(len(halved.fabric.structure.tail), halved.flows, halved.paths)
    assert np.array_equal(loads_after(halved, phased), expected)
