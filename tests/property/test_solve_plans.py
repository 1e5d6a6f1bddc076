"""Properties of every plan, on random fabrics of every kind, whole and damaged."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import solve
from heddle_emulator.topology import clos
from tests.support.depth import examples
from tests.support.solve_checks import (
    between_switches,
    check_backups,
    check_backups_apart,
    check_backups_avoid_switches,
    check_certificate,
    check_paths,
    plain_loads,
)
from tests.support.solve_fabrics import EACH, KINDS, damaged, leaf_of_nic
from tests.support.solve_flows import any_flows, permutations
from tests.support.solve_reference import is_joined

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)
SHARES = st.sampled_from([0.0, 0.05, 0.15, 0.35])


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(2, EACH))
@given(SEEDS, SHARES)
def test_plans_are_whole_true_and_backed_up(kind: str, seed: int, share: float) -> None:
    """Every plan is valid, its certificate is true, and its backups are as good as can be.

    Each QP has one path of usable links, unless no such links join its ends. The independent check
    accepts the plan. A backup shares no link and no switch with its path wherever that is possible.
    """
    sound(*drawn(kind, seed, share, examples(6, 12)))


def test_ways_that_share_all_links_but_their_own() -> None:
    """A drawn case with NICs on several leaves gives a sound plan."""
    sound(*drawn("homed-twice", 133771, 0.35, 12))


def test_ways_that_leave_a_zone_and_come_back() -> None:
    """The backup of a path over a core within one zone avoids both spines of the path."""
    sound(*drawn("mesh", 27590825, 0.0, 12))


def test_ways_that_end_at_the_leaf_they_begin_at() -> None:
    """If the destination is on the path's first leaf too, the backup goes there without a spine."""
    sound(*drawn("homed-twice", 138, 0.0, 12))


def drawn(kind: str, seed: int, share: float, most: int) -> tuple[Fabric, Flows]:
    """Draw a random fabric and flows."""
    rng = Random(seed)
    fabric = damaged(rng, KINDS[kind](rng), share)
    return fabric, any_flows(rng, fabric, most)


def sound(fabric: Fabric, flows: Flows) -> None:
    """Plan the flows and run every check on the plan."""
    plan = solve(fabric, flows)
    check_paths(plan)
    check_certificate(plan)
    ends = zip(flows.source.tolist(), flows.destination.tolist(), strict=True)
    cut_off = {row for row, (a, b) in enumerate(ends) if not is_joined(fabric, a, b)}
    assert {*plan.unrouted} == cut_off
    verify_plan(plan)
    check_backups(plan)
    check_backups_apart(plan)
    check_backups_avoid_switches(plan)


@settings(max_examples=examples(10))
@given(SEEDS, st.integers(1, 9), st.integers(2, 7), st.integers(1, 5), st.sampled_from([1, 2, 3]))
@example(86930, 5, 5, 5, 1)  # one flow but the slowest is faster where a spine's link is fuller
def test_healthy_permutations_meet_the_ceiling(
    seed: int, spines: int, leaves: int, sets: int, parallel: int
) -> None:
    """In 1:1 two tiers, the worst link has the fullest leaf's even share, rounded up.

    No plan of whole flows can have less, and the certificate proves it.
    """
    nics = spines * parallel
    fabric = clos(leaves=leaves, spines=spines, nics_per_leaf=nics, parallel=parallel)
    flows = permutations(fabric, Random(seed), sets)
    plan = solve(fabric, flows)
    leaf = leaf_of_nic(fabric)
    across = leaf[flows.source] != leaf[flows.destination]
    ends = (leaf[flows.source][across], leaf[flows.destination][across])
    most = max(int(np.bincount(end).max(initial=0)) for end in ends)
    used = plain_loads(fabric, flows, plan.paths) / fabric.structure.capacity
    assert used[between_switches(fabric)].max() == -(-most // nics)
    told = {tier.tier: tier for tier in plan.certificate.tiers}["leaf-spine"]
    assert told.lower_bound == told.max_utilization == -(-most // nics)


@settings(max_examples=examples(4))
@given(
    SEEDS,
    st.integers(2, examples(5, 8)),
    st.integers(2, examples(4, 6)),
    st.integers(1, 3),
    st.sampled_from([2, 4, 16]),
)
def test_qps_fill_healthy_fabrics_to_the_step(
    seed: int, spines: int, leaves: int, more: int, qps: int
) -> None:
    """Over-subscribed uplinks carry their leaf's even share, rounded up to whole QPs.

    Uplinks that are not over-subscribed slow no flow, so flows need not be split for them.
    """
    fabric = clos(leaves=leaves, spines=spines, nics_per_leaf=spines + more)
    plan = solve(fabric, permutations(fabric, Random(seed), 1, qps))
    told = {tier.tier: tier for tier in plan.certificate.tiers}["leaf-spine"]
    if told.lower_bound >= 1.0:
        assert told.max_utilization == pytest.approx(told.lower_bound, abs=1e-9)
    else:
        assert told.max_utilization <= 1.0 + 1e-9
