"""Latency flows take shortest paths, whatever bandwidth flows do."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows, TrafficClass
from heddle_controller.model.plan import Plan
from heddle_controller.solve import Repairer, solve
from heddle_emulator.topology import random_regular
from tests.support.depth import examples
from tests.support.solve_checks import check_paths, ways_of
from tests.support.solve_fabrics import EACH, KINDS, SEEDS, damaged, frayed
from tests.support.solve_flows import any_flows, plain_flows
from tests.support.solve_reference import steps


def hops(fabric: Fabric, source: int, destination: int) -> int:
    """The number of links on the shortest usable path from NIC to NIC."""
    further: dict[int, set[int]] = {}
    for _, (tail, _), (head, _) in steps(fabric, destination):
        further.setdefault(tail, set()).add(head)
    reached, count = {source}, 0
    while destination not in reached:
        reached |= {head for tail in reached for head in further.get(tail, ())}
        count += 1
    return count


def check_latency(plan: Plan) -> None:
    """Assert that every path of a latency flow is as short as any."""
    check_paths(plan)
    flows = plan.flows
    for row in np.flatnonzero(flows.traffic_class == TrafficClass.LATENCY).tolist():
        if row not in plan.unrouted:
            least = hops(plan.fabric, int(flows.source[row]), int(flows.destination[row]))
            assert {len(way) for *_, way in ways_of(plan, row)} == {least}


def of_both_classes(rng: Random, flows: Flows) -> Flows:
    """The flows, about half of them latency flows."""
    flows.traffic_class[:] = [rng.choice([*TrafficClass]) for _ in range(len(flows))]
    return flows


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS, st.sampled_from([0.0, 0.15]))
def test_latency_flows_take_shortest_paths(kind: str, seed: int, share: float) -> None:
    """Latency flows take shortest paths in plans and repairs, on whole and damaged fabrics."""
    rng = Random(seed)
    fabric = damaged(rng, KINDS[kind](rng), share)
    flows = of_both_classes(rng, any_flows(rng, fabric, examples(6, 12)))
    plan = solve(fabric, flows)
    check_latency(plan)
    check_latency(Repairer(plan).repair(frayed(rng, fabric), flows))


def test_bandwidth_flows_go_round_where_latency_flows_do_not() -> None:
    """On a crowded graph, flows take longer paths as bandwidth flows than as latency flows."""
    fabric = random_regular(switches=10, degree=3, nics_per_switch=3, seed=2)
    lengths = {}
    for kind in TrafficClass:
        flows = plain_flows(fabric, Random(1), 40, 4)
        flows.traffic_class[:] = kind
        plan = solve(fabric, flows)
        lengths[kind] = len(plan.paths.arcs) / len(plan.paths)
    assert lengths[TrafficClass.LATENCY] < lengths[TrafficClass.BANDWIDTH]
