"""Paths over a higher tier are used if a damaged zone leaves its leaves too few others."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import attempt, solve
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.bounds.cuts import cut_bound
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.network import Network, attached
from heddle_controller.solve.options import Options
from heddle_controller.solve.search.small_problems import solve_small
from heddle_emulator.topology import clos, random_regular, three_tier
from tests.bench.workloads import permutations
from tests.support.solve_flows import Row, flows_of, nic_ids


def split_zone() -> Fabric:
    """Two meshed zones; in the first, half of the leaves share only one spine with the others."""
    fabric = three_tier(zones=2, leaves=8, spines=8, nics_per_leaf=8, cores=8, wiring="mesh")
    leaves = fabric.rows_of_kind(NodeKind.LEAF)[:8].tolist()
    spines = fabric.rows_of_kind(NodeKind.SPINE)[:8].tolist()
    links = fabric.structure.links
    lower, upper = np.minimum(links.a, links.b), np.maximum(links.a, links.b)
    kind = fabric.structure.nodes.kind
    lower, upper = np.where(kind[lower] < kind[upper], [lower, upper], [upper, lower])
    lost = np.zeros(fabric.link_count, dtype=np.bool_)
    for half, gone in ((leaves[:4], spines[:4]), (leaves[4:], spines[4:7])):
        lost |= np.isin(lower, half) & np.isin(upper, gone)
    return fabric.with_links(dict.fromkeys(np.flatnonzero(lost).tolist(), State.DOWN))


def permutation_of_first_zone(fabric: Fabric) -> list[Row]:
    """A permutation of the first zone's NICs, at line rate in four QPs."""
    nics = [nic for nic in nic_ids(fabric) if nic.startswith("z0")]
    to = Random(1).sample(nics, len(nics))
    return [(a, b, 400.0, 4, "job", "") for a, b in zip(nics, to, strict=True) if a != b]


def test_a_torn_zone_uses_its_cores() -> None:
    """Over the one common spine, links would carry eight flows each; over cores, two suffice."""
    fabric = split_zone()
    plan = solve(fabric, flows_of(fabric, *permutation_of_first_zone(fabric)))
    verify_plan(plan)
    tiers = {tier.tier: tier.max_utilization for tier in plan.certificate.tiers}
    assert tiers["spine-core"] > 0
    assert plan.certificate.max_utilization == pytest.approx(plan.certificate.lower_bound)


def test_leaves_that_share_one_spine_use_a_third_leaf() -> None:
    """Of four flows between leaves with one common spine, two take a detour over a third leaf."""
    whole = clos(leaves=3, spines=4, nics_per_leaf=4)
    lost = {"l0,s0,0", "l0,s1,0", "l1,s2,0"}
    rows = [row for row in range(whole.link_count) if whole.link_name(row) in lost]
    fabric = whole.with_links(dict.fromkeys(rows, State.DOWN))
    nics = nic_ids(fabric)
    across = [(nics[n], nics[4 + n], 400.0, 4, "job", "") for n in range(4)]
    plan = solve(fabric, flows_of(fabric, *across))
    verify_plan(plan)
    assert plan.certificate.max_utilization == pytest.approx(2.0)
    assert plan.certificate.lower_bound == pytest.approx(2.0)


def test_a_whole_zone_leaves_its_cores_alone() -> None:
    """If the spines are enough, no flow within a zone goes up to the cores."""
    fabric = three_tier(zones=2, leaves=8, spines=8, nics_per_leaf=8, cores=8, wiring="mesh")
    plan = solve(fabric, flows_of(fabric, *permutation_of_first_zone(fabric)))
    assert {t.tier: t.max_utilization for t in plan.certificate.tiers}["spine-core"] == 0


def test_ways_over_every_apex_climb_and_then_fall() -> None:
    """All paths over a spine, and all over a core and down by another spine, are found."""
    fabric = three_tier(zones=2, leaves=3, spines=3, nics_per_leaf=1, cores=2, wiring="mesh")
    network = Network(fabric)
    candidates = Candidates(network, limit=128)
    first, second = fabric.rows_of_kind(NodeKind.LEAF)[:2].tolist()
    paths = candidates.over_every_apex(first, second)
    hops = np.count_nonzero(paths != network.pad, axis=1)
    core_links = len(network.up(int(fabric.rows_of_kind(NodeKind.SPINE)[0]))) // 2
    assert np.count_nonzero(hops == 2) == 3
    assert np.count_nonzero(hops == 4) == 3 * 2 * 2 * core_links**2
    assert len(hops) == np.count_nonzero((hops == 2) | (hops == 4))


def test_candidates_take_on_each_path_once() -> None:
    """``add`` puts new paths behind the known ones, and returns whether there were any."""
    fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=1, cores=2, wiring="mesh")
    candidates = Candidates(Network(fabric), limit=128)
    first, second = fabric.rows_of_kind(NodeKind.LEAF)[:2].tolist()
    before = candidates.between(first, second)
    everything = candidates.over_every_apex(first, second)
    assert candidates.add(first, second, everything)
    after = candidates.between(first, second)
    assert len(after) == len(everything) > len(before)
    assert np.array_equal(after[: len(before), : before.shape[1]], before)
    assert not candidates.add(first, second, everything)


def _large_problem() -> attempt.PlanningProblem:
    """The planning problem of a permutation on a graph of 100 switches without tiers."""
    fabric = random_regular(switches=100, degree=8, nics_per_switch=5, seed=1)
    flows = permutations(fabric, 1, 1, 8)
    network = Network(fabric)
    routed = attached(network, flows)
    candidates = Candidates(network, Options().candidate_limit)
    bound = cut_bound(network, flows, routed)
    deadline = Options().deadline()
    return attempt.PlanningProblem(network, candidates, None, flows, routed, bound, deadline)


def test_no_longer_ways_are_looked_for_where_there_are_too_many_paths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A problem with too many paths for the integer programme is left as it is, at once."""
    problem = _large_problem()
    rows = np.arange(len(problem.flows))
    assignment = Assignment(problem.network, problem.flows)
    assignment.place_whole(rows.tolist())
    for row in rows.tolist():
        ends = problem.candidates.ends_of(problem.flows, row)
        first = problem.candidates.between(*ends)[0]
        assignment.move(row, first[first != problem.network.pad])
    before = assignment.load.tolist()
    monkeypatch.delattr(Candidates, "with_longer")
    solve_small(problem, assignment)
    assert assignment.load.tolist() == before


@pytest.mark.parametrize("times", [1, 4, 16])
def test_shares_are_of_the_paths_they_were_found_for(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """However often more paths are added, each has its share, and shares add up to 1."""
    monkeypatch.setattr(attempt, "MOST_WIDENINGS", times)
    commodities, relaxation = attempt.relaxed(_large_problem())
    assert len(relaxation.shares) == commodities.path_count
    of_all = np.bincount(commodities.path_commodity, relaxation.shares)
    assert of_all == pytest.approx(np.ones(commodities.count))
