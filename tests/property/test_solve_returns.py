"""When links come back, flows move back, and the plan is as good as a new one."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import TrafficClass
from heddle_controller.plan.diff import changed_flows
from heddle_controller.plan.programs import entries_of
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Repairer, solve
from heddle_emulator.topology import random_regular, three_tier
from tests.property.test_solve_repairs import other_states
from tests.support.depth import examples
from tests.support.solve_checks import check_backups, check_certificate, check_paths
from tests.support.solve_fabrics import KINDS, damaged, inner_links
from tests.support.solve_flows import any_flows, permutations

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)
FULL = 1.0
"""Utilisation up to which a link slows no flow."""
TOLERANCE = 1e-6


@settings(max_examples=examples(6))
@given(SEEDS)
@example(1)
def test_a_relieved_plan_is_sound_and_no_worse_than_one_made_anew(seed: int) -> None:
    """After ``relieved``, no tier is fuller than in a new plan, unless that slows no flow.

    The repairer goes on from the relieved plan, or from its last repair if there is none. It is as
    ready for the next repair as before.
    """
    rng = Random(seed)
    fabric = damaged(rng, KINDS[rng.choice(sorted(KINDS))](rng), rng.choice([0.0, 0.2]))
    flows = any_flows(rng, fabric)
    repairer = Repairer(solve(fabric, flows))
    for _ in range(4):
        fabric = other_states(rng, fabric)
        repaired = repairer.repair(fabric, flows)
        ready = repairer.is_ready_for(repaired)
        plan = repairer.relieved()
        assert repairer.plan is (repaired if plan is None else plan)
        assert repairer.is_ready_for(repairer.plan) == ready
        if plan is None:
            continue
        check_paths(plan)
        check_backups(plan)
        check_certificate(plan)
        verify_plan(plan, (repaired, entries_of(repaired)))
        assert plan.unrouted == repaired.unrouted
        anew = solve(fabric, flows)
        if len(anew.unrouted) == len(plan.unrouted):
            for mine, other in zip(plan.certificate.tiers, anew.certificate.tiers, strict=True):
                worth = max(other.max_utilization, min(FULL, anew.certificate.lower_bound))
                assert mine.max_utilization <= worth + TOLERANCE, (seed, mine, other)


@settings(max_examples=examples(10))
@given(SEEDS)
def test_a_link_that_comes_back_to_a_full_zone_takes_its_flows_back(seed: int) -> None:
    """When a lost link of a full 1:1 zone returns, few flows move and all have line rate again."""
    rng = Random(seed)
    fabric = three_tier(zones=2, leaves=4, spines=4, nics_per_leaf=4, cores=4, taper=1.0)
    zone = fabric.structure.nodes.zone
    flows = permutations(fabric, rng, 1, 1)
    inside = zone[flows.source] == zone[flows.destination]
    flows = flows.take(np.flatnonzero(inside))
    whole = solve(fabric, flows)
    repairer = Repairer(whole)
    leaf = fabric.structure.nodes.kind[fabric.structure.links.a] == NodeKind.LEAF
    link = rng.choice(np.flatnonzero(inner_links(fabric) & leaf).tolist())
    lost = repairer.repair(fabric.with_links({link: State.DOWN}), flows)
    back = repairer.repair(fabric, flows)
    plan = repairer.relieved()
    assert plan is not None
    assert plan.certificate.max_utilization <= max(FULL, whole.certificate.lower_bound)
    assert len(changed_flows(back, plan)) <= 2 * len(changed_flows(whole, lost)) + 2


def hops(fabric: Fabric, source: int, destination: int) -> int:
    """The links of the shortest path between two NICs over links that are up."""
    structure, far, reached = fabric.structure, {source: 0}, deque([source])
    while destination not in far:
        node = reached.popleft()
        if node != source and structure.nodes.kind[node] == NodeKind.NIC:
            continue
        for arc in structure.leaving(node)[fabric.plannable[structure.leaving(node)]].tolist():
            head = int(structure.head[arc])
            if head not in far:
                far[head] = far[node] + 1
                reached.append(head)
    return far[destination]


@settings(max_examples=examples(10))
@given(SEEDS)
def test_latency_flows_take_shortest_paths_again(seed: int) -> None:
    """As links go and return, and classes change, latency flows have the shortest paths then."""
    rng = Random(seed)
    if rng.random() < 0.5:
        fabric = random_regular(switches=8, degree=3, nics_per_switch=2, nics_per_host=1)
    else:
        fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=4, cores=2, nics_per_host=1)
    flows = any_flows(rng, fabric)
    links = np.flatnonzero(inner_links(fabric)).tolist()
    repairer = Repairer(solve(fabric, flows))
    for _ in range(5):
        if rng.random() < 0.4:
            latency = np.array([rng.randint(0, 1) for _ in flows.ids], dtype=np.int64)
            flows = replace(flows, traffic_class=latency)
        down = rng.sample(links, rng.randint(0, 2))
        now = fabric.with_links(dict.fromkeys(down, State.DOWN))
        plan = repairer.repair(now, flows)
        for row in range(len(plan.paths)):
            flow = int(plan.paths.flow[row])
            if flows.traffic_class[flow] == TrafficClass.LATENCY:
                least = hops(now, int(flows.source[flow]), int(flows.destination[flow]))
                assert len(plan.paths.of(row)) == least, (seed, flows.ids[flow], down)
