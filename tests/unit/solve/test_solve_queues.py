"""Of equally fair plans, one is chosen on which jobs end soon if queues fill and PFC pauses links.

How soon is measured in the emulator's queues, which share nothing with the planner's.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest

from heddle_controller.model.arrays import Floats
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import planner, solve
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.fluid.wire import Wire
from heddle_emulator.strategy import Outcome, choose, whole
from heddle_emulator.strategy.makespan import Sending
from heddle_emulator.topology import clos, three_tier
from heddle_emulator.traffic import flows_between
from tests.support.depth import DEEP, fresh_seeds

SIZE, WIRE = 8e6 if DEEP else 2e6, Wire(4096, hop_seconds=6e-7, store_and_forward=True)
SAME, ERROR = 1.01, 1.05
"""Ratios that count as equal, and that the planner's coarse queues may be wrong by."""


def drawn(seed: int) -> tuple[Fabric, Flows]:
    """Draw flows over leaves with half the uplinks that they need, or over a core with a quarter.

    Flows are of one, two or three jobs.
    """
    random = Random(seed)
    if random.random() < 1 / 2:
        fabric = clos(leaves=4, spines=2, nics_per_leaf=4)
    else:
        fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=4, cores=2, taper=2.0)
    pattern = random.choice(["permutation", "uniform", "shift"])
    flows = flows_between(fabric, pattern, seed=seed, qps=random.choice([1, 2, 4]), gbps=400.0)
    jobs = random.choice([1, 1, 2, 3])
    names = tuple(f"job{row}" for row in range(jobs))
    return fabric, replace(flows, job=np.arange(len(flows)) % jobs, job_names=names)


def makespan(fabric: Fabric, flows: Flows, paths: Paths) -> float:
    """Seconds until all flows have sent ``SIZE`` bytes through queues with PFC."""
    sending = Sending(np.full(len(flows), SIZE), WIRE, queues="pfc")
    seconds = Outcome(fabric, whole(flows, paths), sending).makespan_seconds
    assert seconds is not None
    return seconds


def slowest(fabric: Fabric, plan: Plan) -> Floats:
    """The least fair rate over demand of each job's flows."""
    ratios = flow_ratios(fabric.structure.capacity, plan.flows, plan.paths)
    least = np.ones(len(plan.flows.job_names))
    np.minimum.at(least, plan.flows.job, ratios)
    return least


@pytest.mark.deep
def test_no_slower_than_greedy_or_hashing() -> None:
    """At most 4 % of plans end later than greedy placing or hashing, and none by much."""
    later = []
    for seed in fresh_seeds(12, 200):
        fabric, flows = drawn(seed)
        ours = makespan(fabric, flows, solve(fabric, flows).paths)
        others = [choose(way, fabric, flows, seed).carried.paths for way in ("greedy", "ecmp")]
        ratio = ours / min(makespan(fabric, flows, paths) for paths in others)
        assert ratio <= ERROR, f"seed {seed}"
        later.append(ratio > SAME)
    assert np.mean(later) <= 0.04


@pytest.mark.deep
def test_fair_plans_stay_as_fair(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside plans without the choice, no tier is fuller and no job's slowest flow is slower."""
    gained = []
    for seed in fresh_seeds(12, 200):
        fabric, flows = drawn(seed)
        new = solve(fabric, flows)
        with monkeypatch.context() as patch:
            patch.setattr(planner, "shortened", lambda *_: None)
            old = solve(fabric, flows)
        verify_plan(new)
        for tier, other in zip(new.certificate.tiers, old.certificate.tiers, strict=True):
            assert tier.max_utilization <= other.max_utilization + 1e-6, f"seed {seed}"
        assert (slowest(fabric, new) >= slowest(fabric, old) - 1e-5).all(), f"seed {seed}"
        ends = [makespan(fabric, flows, plan.paths) for plan in (new, old)]
        assert ends[0] <= ends[1] * ERROR, f"seed {seed}"
        gained.append(ends[1] / ends[0])
    assert np.mean(gained) > SAME


def test_equal_input_gives_equal_plans() -> None:
    """The choice draws the same numbers each time."""
    fabric, flows = drawn(0)
    first, second = solve(fabric, flows).paths, solve(fabric, flows).paths
    assert (first.arcs == second.arcs).all()
    assert (first.qp_count == second.qp_count).all()
