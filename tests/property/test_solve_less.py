"""Less load never makes a worse plan, since the lowest possible worst link only falls.

Flows have enough QPs for the planner to reach the optimum on graphs this small.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.solve import solve
from heddle_emulator.topology import random_regular
from tests.support.depth import fresh_seeds
from tests.support.solve_fabrics import of_records
from tests.support.solve_flows import flows_of, plain_flows

ALIKE = 1e-6


def worst(fabric: Fabric, flows: Flows) -> float:
    """The worst utilisation of a new plan."""
    return solve(fabric, flows).certificate.max_utilization


def with_phases(flows: Flows, random: Random) -> Flows:
    """The flows, each in one of two phases of their job."""
    phase = np.array([random.randrange(2) for _ in range(len(flows))], dtype=np.int64)
    return replace(flows, phase=phase, phase_names=("dp", "pp"))


def with_fewer(flows: Flows, random: Random) -> Flows:
    """About seven in ten of the flows."""
    kept = [row for row in range(len(flows)) if random.random() < 0.7] or [0]
    return flows.take(np.array(kept, dtype=np.int64))


def with_lower_rates(flows: Flows, _: Random) -> Flows:
    """The flows at half their rates."""
    return replace(flows, gbps=flows.gbps / 2)


@pytest.mark.deep
def test_less_load_is_never_planned_worse() -> None:
    """With phases, lower rates or fewer flows, the worst link is no fuller.

    It may be fuller by one QP where the plan is not proven optimal.
    """
    for seed in fresh_seeds(3):
        random = Random(seed)
        fabric = random_regular(
            switches=8, degree=3, nics_per_switch=2, nic_gbps=3200.0, seed=random.randrange(1000)
        )
        flows = plain_flows(fabric, random, random.randint(2, 8), 8, 1600.0)
        less = (with_phases, with_fewer, with_lower_rates)[seed % 3]
        before, plan = worst(fabric, flows), solve(fabric, less(flows, random))
        told, grain = plan.certificate, 200.0 / 400.0
        proven = told.max_utilization <= told.lower_bound * (1 + ALIKE)
        allowed = before * (1 + ALIKE) + (0.0 if proven else grain)
        assert told.max_utilization <= allowed, f"seed {seed}: {less.__name__}: {before}"


def test_phases_leave_detours_open() -> None:
    """Two flows spread evenly over a direct link and seven detours, phased or not."""
    nodes = [{"id": name, "kind": "nic"} for name in "abcd"]
    nodes += [{"id": f"x{row}", "kind": "switch"} for row in range(9)]
    links = [("a", "x0"), ("c", "x0"), ("b", "x1"), ("d", "x1"), ("x0", "x1")]
    links += [(end, f"x{row}") for row in range(2, 9) for end in ("x0", "x1")]
    fabric = of_records(nodes, links)

    def between_switches(*phases: str) -> float:
        ends = (("a", "b"), ("c", "d"))
        rows = [(*pair, 800.0, 8, "j", phase) for pair, phase in zip(ends, phases, strict=True)]
        told = solve(fabric, flows_of(fabric, *rows)).certificate
        return {tier.tier: tier.max_utilization for tier in told.tiers}["switch-switch"]

    assert between_switches("", "") == pytest.approx(2.0)
    assert between_switches("dp", "pp") == pytest.approx(1.0)
