"""NICs of several links: plans beside what cuts prove, and beside an exact optimum."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from heddle_controller.solve import solve
from heddle_emulator.topology import dual_tor
from tests.support.against import soundness, utilization_of
from tests.support.depth import fresh_seeds
from tests.support.drawn import KINDS, drawn
from tests.support.exact import CLOSE, Exact
from tests.unit.solve.solve_flows import permutations

SEVERAL = ("dual-homed", "dual-plane", "multi-homed")


@pytest.mark.deep
def test_healthy_dual_tor_plans_are_at_the_bound() -> None:
    """Permutations in 1, 2, 4 or more QPs: every tier is at what cuts prove, or below line rate."""
    for seed in fresh_seeds(10):
        random = Random(seed)
        planes = random.choice([1, 2])
        fabric = dual_tor(
            pairs=random.randint(2, 5),
            spines=planes * random.choice([1, 2, 4]),
            nics_per_pair=random.randint(1, 8),
            planes=planes,
        )
        flows = permutations(fabric, random, random.randint(1, 3), random.choice([1, 2, 4, 8, 16]))
        for tier in solve(fabric, flows).certificate.tiers:
            assert tier.max_utilization <= max(1.0, tier.lower_bound) + CLOSE, (seed, tier)


@pytest.mark.deep
def test_plans_are_within_a_qp_of_the_optimum() -> None:
    """Small cases of every kind with NICs of several links, some of them damaged.

    No link is fuller than the fullest has to be, and one QP of the largest flow on the slowest
    link. The plan is valid, and what it says of itself is true.
    """
    kinds = [number for number, kind in enumerate(KINDS) if kind in SEVERAL]
    for number in fresh_seeds(12):
        case = drawn(len(KINDS) * (number // len(kinds)) + kinds[number % len(kinds)])
        plan = solve(case.fabric, case.flows)
        assert not [*soundness(case, plan)], case
        best = Exact(case.fabric, case.flows).least()
        step = (case.flows.gbps / case.flows.qps).max(initial=0.0)
        step /= case.fabric.structure.capacity.min()
        worst = float(utilization_of(plan).max(initial=0.0))
        assert worst <= max(best.high, 1.0) + step + CLOSE, case


def test_both_links_of_a_nic_are_used() -> None:
    """A flow at the rate of both its links together, in two QPs, puts one on each."""
    fabric = dual_tor(pairs=2, spines=2, nics_per_pair=2, nics_per_host=1)
    flows = permutations(fabric, Random(1), 1, 2)
    used = utilization_of(solve(fabric, flows))
    first, arcs = fabric.structure.out
    for nic in np.unique(flows.source).tolist():
        assert used[arcs[first[nic] : first[nic + 1]]].tolist() == [1.0, 1.0]
