"""Regression cases: small, seeded, each with what it shows."""

from __future__ import annotations

import tracemalloc
from random import Random

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.plan.programs import entries_of
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Repairer, solve
from heddle_emulator.topology import clos, random_regular
from tests.support.solve_checks import (
    check_backups_apart,
    check_certificate,
    check_paths,
    routed_rows,
    ways_of,
)
from tests.support.solve_fabrics import KINDS, damaged, inner_links, of_records
from tests.support.solve_flows import any_flows, flows_of, plain_flows
from tests.support.solve_reference import arcs_of_tier, least_over_all_paths


def check(repairer: Repairer, fabric: Fabric) -> None:
    """Repair the current plan for a fabric, and assert that the result is valid."""
    plan = repairer.repair(fabric, repairer.plan.flows)
    check_paths(plan)
    check_certificate(plan)
    verify_plan(plan)


@pytest.mark.parametrize(
    ("kind", "seed"), [("two-tiers", 39), ("mesh", 14), ("planes", 35), ("regular", 20)]
)
def test_splits_of_one_repair_do_not_confuse_the_next(kind: str, seed: int) -> None:
    """A repairer that has split a flow repairs on, with every QP on one path."""
    rng = Random(seed)
    fabric = KINDS[kind](rng)
    repairer = Repairer(solve(fabric, any_flows(rng, fabric, 14)))
    inner = np.flatnonzero(inner_links(fabric)).tolist()
    for _ in range(5):
        link = rng.choice(inner)
        up = fabric.link_state[link] == State.UP
        lost = rng.choice([State.DOWN, State.DOWN, State.DRAINED]) if up else State.UP
        fabric = fabric.with_links({link: lost})
        check(repairer, fabric)


def detour() -> Fabric:
    """Two leaves that share one spine; their other spines meet at a core only."""
    nodes = [{"id": n, "kind": "nic"} for n in ("a", "b", "c", "d")]
    nodes += [{"id": n, "kind": "leaf"} for n in ("l0", "l1")]
    nodes += [{"id": n, "kind": "spine"} for n in ("s0", "s1", "s2")]
    nodes += [{"id": "c0", "kind": "core"}]
    edges = [("a", "l0"), ("b", "l1"), ("c", "l0"), ("d", "l1")]
    edges += [("l0", "s0"), ("l1", "s0"), ("l0", "s1"), ("l1", "s2")]
    edges += [(f"s{i}", "c0") for i in range(3)]
    return of_records(nodes, edges)


def test_no_bound_rests_on_paths_left_out() -> None:
    """By hand: one flow over the shared spine and one over the core make a worst link of 1."""
    fabric = detour()
    flows = flows_of(fabric, ("a", "b", 100.0, 64, "j", ""), ("c", "d", 100.0, 64, "j", ""))
    told = {tier.tier: tier for tier in solve(fabric, flows).certificate.tiers}
    assert told["leaf-spine"].lower_bound <= 1.0 + 1e-6


@pytest.mark.parametrize("seed", [30, 61])
def test_nics_on_two_leaves_have_honest_bounds(seed: int) -> None:
    """Bounds for NICs on two leaves are at most one QP above the optimum of divisible flows."""
    rng = Random(seed)
    fabric = KINDS["homed-twice"](rng)
    fabric = damaged(rng, fabric) if seed % 2 else fabric
    flows = any_flows(rng, fabric).with_qps(512)
    plan = solve(fabric, flows)
    slack = float(flows.gbps.max() / 512 / fabric.structure.links.gbps.min())
    least = least_over_all_paths(fabric, flows, routed_rows(plan))
    assert plan.certificate.lower_bound <= least + slack + 1e-6
    arcs = arcs_of_tier(fabric, "leaf-spine")
    least = least_over_all_paths(fabric, flows, routed_rows(plan), arcs)
    told = {tier.tier: tier for tier in plan.certificate.tiers}
    assert told["leaf-spine"].lower_bound <= least + slack + 1e-6


def test_a_link_that_comes_back_is_a_backup_again() -> None:
    """By hand: with one spine link lost there is no backup; when it is back, there is one."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=1)
    flows = flows_of(fabric, ("l0-h0-n0", "l1-h0-n0", 100.0, 1, "j", ""))
    hurt = fabric.with_links({fabric.find_links("l0", "s0")[0]: State.DOWN})
    plan = solve(hurt, flows)
    assert not len(plan.backups.arcs)
    check_backups_apart(Repairer(plan).repair(fabric, flows))


@pytest.mark.parametrize("qps", [20_000, 1_000_003, 10_000_000])
def test_very_many_qps_are_planned_all_the_same(qps: int) -> None:
    """A flow may have far more QPs than there are links, also a prime number of them.

    Planning needs memory in proportion to paths, not to QPs.
    """
    fabric = clos(leaves=2, spines=3, nics_per_leaf=4)
    rows = [(f"l0-h0-n{i}", f"l1-h0-n{i}", 400.0, qps, "j", "") for i in range(4)]
    flows = flows_of(fabric, *rows)
    tracemalloc.start()
    plan = solve(fabric, flows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000
    verify_plan(plan)
    for row in range(4):
        ways = ways_of(plan, row)
        assert [first for first, *_ in ways] == [0, *(last + 1 for _, last, _ in ways[:-1])]
        assert ways[-1][1] == qps - 1
    assert len(plan.paths) <= 12
    assert plan.certificate.max_utilization == pytest.approx(4 / 3, rel=1e-2)


def test_very_many_qps_are_planned_without_tiers() -> None:
    """Very many QPs are planned in a graph of plain switches too, where nothing is coloured."""
    fabric = random_regular(switches=8, degree=3, nics_per_switch=2, seed=2)
    flows = plain_flows(fabric, Random(1), 6, 10_000_000)
    tracemalloc.start()
    plan = solve(fabric, flows)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4_000_000
    verify_plan(plan)
    assert len(plan.paths) < 6 * 128


def test_programs_of_very_many_qps_are_no_larger_than_ports() -> None:
    """A program of more QPs than the 16,384 ports of a pair needs no more entries or memory."""
    fabric = clos(leaves=2, spines=3, nics_per_leaf=4)
    rows = [(f"l0-h0-n{i}", f"l1-h0-n{i}", 400.0, 10_000_000, "j", "") for i in range(4)]
    plan = solve(fabric, flows_of(fabric, *rows))
    tracemalloc.start()
    entries = entries_of(plan)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(entries) <= 4 * 16_384
    assert peak < 80_000_000


def test_parts_that_meet_a_hole_do_not_lose_their_flow() -> None:
    """A flow is still routed if its colour is a hole for one of its parts only."""
    rng = Random(71284)
    fabric = damaged(rng, KINDS["planes"](rng), 0.05)
    ids = fabric.structure.nodes.ids
    plan = solve(fabric, flows_of(fabric, (ids[36], ids[30], 400.0, 32, "j", "")))
    check_paths(plan)
    assert not plan.unrouted
