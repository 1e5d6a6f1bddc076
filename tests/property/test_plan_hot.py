"""The hottest links and slowest flows of a plan, compared with walks and the emulator's rates."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Plan
from heddle_controller.plan.limits import fares_of, hottest_arcs, loads_of
from heddle_emulator.fluid.rates import flow_ratios, path_rates
from tests.support.depth import examples
from tests.support.plan_chance import random_fabric, random_plan, with_failures

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def drawn(seed: int) -> Plan:
    """A random plan of a fabric with links down."""
    rng = Random(seed)
    return random_plan(rng, with_failures(rng, random_fabric(rng)))


def walked(plan: Plan) -> dict[int, dict[int, tuple[set[int], float]]]:
    """For each arc and job, the flows that use it and their Gbit/s in the job's worst phase."""
    flows, found = plan.flows, dict[int, dict[int, tuple[set[int], float]]]()
    uses: dict[tuple[int, int], dict[int, float]] = defaultdict(lambda: defaultdict(float))
    users: dict[tuple[int, int], set[int]] = defaultdict(set)
    gbps = plan.paths.gbps(flows)
    for path, flow in enumerate(plan.paths.flow.tolist()):
        for arc in plan.paths.of(path).tolist():
            key = arc, int(flows.job[flow])
            users[key].add(flow)
            uses[key][int(flows.phase[flow])] += float(gbps[path])
    for (arc, job), phases in uses.items():
        always = phases.pop(ANY_PHASE, 0.0)
        load = always + max(phases.values(), default=0.0)
        found.setdefault(arc, {})[job] = users[arc, job], load
    return found


@pytest.mark.deep
@settings(max_examples=examples(40, 2000))
@given(SEEDS)
def test_links_are_told_with_all_who_use_them(seed: int) -> None:
    """Each loaded arc is listed once, fullest first, with the flows and load of each job."""
    plan = drawn(seed)
    expected = walked(plan)
    hottest = hottest_arcs(plan)
    capacity = plan.fabric.structure.capacity
    assert sorted(hottest.tolist()) == sorted(expected)
    assert (np.diff((plan.loads / capacity)[hottest]) <= 1e-12).all()
    for part in (hottest, hottest[1:3], hottest[:0]):
        for arc, one in zip(part.tolist(), loads_of(plan, part), strict=True):
            jobs = expected[arc]
            assert one.arc == arc
            assert one.flow_count == len(set().union(*(flows for flows, _ in jobs.values())))
            told = {share.job: (share.flow_count, share.gbps) for share in one.shares}
            assert told.keys() == jobs.keys()
            for job, (flows, gbps) in jobs.items():
                assert told[job][0] == len(flows)
                assert told[job][1] == pytest.approx(gbps)
            assert plan.loads[arc] == pytest.approx(sum(share.gbps for share in one.shares))
            loads = [share.gbps for share in one.shares]
            assert loads == sorted(loads, reverse=True)


@pytest.mark.deep
@settings(max_examples=examples(40, 2000))
@given(SEEDS)
def test_the_worst_link_of_a_job_is_the_fullest_it_uses(seed: int) -> None:
    """A job's worst link is the fullest that it uses; a job without any path has none."""
    plan = drawn(seed)
    capacity = plan.fabric.structure.capacity
    most: dict[str, float] = {}
    for arc, jobs in walked(plan).items():
        for job in jobs:
            name = plan.flows.job_names[job]
            most[name] = max(most.get(name, 0.0), float(plan.loads[arc] / capacity[arc]))
    found = fares_of(plan).worst_of_jobs()
    assert {n: pytest.approx(float(plan.loads[a] / capacity[a])) for n, a in found.items()} == most


@pytest.mark.deep
@settings(max_examples=examples(40, 2000))
@given(SEEDS)
def test_a_flow_gets_its_max_min_fair_share(seed: int) -> None:
    """Shares are those of the emulator's rates, and the slowest flow of a job has the least."""
    plan = drawn(seed)
    flows, capacity = plan.flows, plan.fabric.structure.capacity
    expected = flow_ratios(capacity, flows, plan.paths)
    found = fares_of(plan)
    assert found.share == pytest.approx(expected)
    for job, row in found.slowest_of_jobs().items():
        rows = np.flatnonzero(flows.job == flows.job_names.index(job))
        assert row in rows
        assert found.share[row] == pytest.approx(expected[rows].min())


@pytest.mark.deep
@settings(max_examples=examples(40, 2000))
@given(SEEDS)
def test_the_link_that_limits_a_flow_is_full_and_shared_by_none_faster(seed: int) -> None:
    """It is on the way of the flow's slowest QP; a flow that gets all is told its fullest link."""
    plan = drawn(seed)
    # Phases of a job share no time, so each flow is made to send all the time.
    flows = replace(plan.flows, phase=np.full(len(plan.flows), ANY_PHASE))
    plan = replace(plan, flows=flows)
    capacity, paths = plan.fabric.structure.capacity, plan.paths
    rates = path_rates(capacity, flows, paths)
    of_qp = rates / paths.qp_count
    owner = paths.owner()
    load = np.bincount(paths.arcs, rates[owner], len(capacity))
    found = fares_of(plan)
    for flow in range(len(flows)):
        arc, mine = found.limit_of(flow), np.flatnonzero(paths.flow == flow)
        if not len(mine) or found.share[flow] >= 1:
            assert arc == found.fullest[flow]
            continue
        slowest = of_qp[mine].min()
        assert load[arc] == pytest.approx(capacity[arc])
        over = owner[paths.arcs == arc]
        assert slowest == pytest.approx(of_qp[over].max())
        assert slowest == pytest.approx(of_qp[np.intersect1d(over, mine)].min())
