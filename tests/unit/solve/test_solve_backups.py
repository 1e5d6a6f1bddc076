"""Backups avoid the links and switches of their paths, and spread what falls on them."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan
from heddle_controller.solve import solve
from heddle_emulator.topology import clos, dual_tor, three_tier
from tests.support.solve_checks import (
    between_switches,
    check_backups,
    check_backups_apart,
    way,
)
from tests.support.solve_fabrics import KINDS, damaged, of_records
from tests.support.solve_flows import any_flows, flows_of, permutations


def switches_of(plan: Plan, arcs: list[int]) -> set[int]:
    """The switches on a path, without those of its two NICs."""
    head = plan.fabric.structure.head
    return {int(head[arc]) for arc in arcs[1:-2]}


def one_flow(fabric: Fabric, source: str, destination: str) -> Plan:
    """A plan of a single flow."""
    return solve(fabric, flows_of(fabric, (source, destination, 100.0, 1, "j", "")))


def test_another_spine_is_taken() -> None:
    """With two spines the backup goes over the other one."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=1)
    plan = one_flow(fabric, "l0-h0-n0", "l1-h0-n0")
    check_backups_apart(plan)
    first, second = (switches_of(plan, way(p, 0)) for p in (plan.paths, plan.backups))
    assert first | second == {fabric.structure.index["s0"], fabric.structure.index["s1"]}


def test_parallel_links_back_each_other_up() -> None:
    """With one spine but two links each way, the backup takes the other two."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=1, parallel=2)
    plan = one_flow(fabric, "l0-h0-n0", "l1-h0-n0")
    check_backups_apart(plan)
    assert len({*way(plan.paths, 0), *way(plan.backups, 0)}) == 6


def test_other_switches_go_before_other_links() -> None:
    """With two spines of two links each, the backup leaves the switch, not only the link."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=1, parallel=2)
    plan = one_flow(fabric, "l0-h0-n0", "l1-h0-n0")
    assert not switches_of(plan, way(plan.paths, 0)) & switches_of(plan, way(plan.backups, 0))


def test_between_zones_all_three_switches_differ() -> None:
    """A backup between zones is in another plane: no spine and no core in common."""
    fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=2, cores=2)
    plan = solve(fabric, permutations(fabric, Random(1), 1))
    check_backups_apart(plan)
    rows = [row for row in range(len(plan.paths)) if len(plan.paths.of(row)) == 6]
    assert rows
    for row in rows:
        used, spare = (switches_of(plan, way(p, row)) for p in (plan.paths, plan.backups))
        assert len(spare) == 3
        assert not used & spare


def test_without_another_way_there_is_no_backup() -> None:
    """There is no backup over a single spine with one link, nor between NICs on one leaf."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=2)
    assert not len(one_flow(fabric, "l0-h0-n0", "l1-h0-n0").backups.arcs)
    assert not len(one_flow(fabric, "l0-h0-n0", "l0-h0-n1").backups.arcs)


def test_a_shared_bridge_does_not_cost_the_rest() -> None:
    """Where all ways cross one link, the backup still avoids the links beyond it."""
    nodes = [{"id": n, "kind": "nic"} for n in ("a", "b")]
    nodes += [{"id": f"x{i}", "kind": "switch"} for i in range(3)]
    fabric = of_records(nodes, [("a", "x0"), ("b", "x2"), ("x0", "x1"), ("x1", "x2"), ("x1", "x2")])
    plan = one_flow(fabric, "a", "b")
    assert len({*way(plan.paths, 0)} & {*way(plan.backups, 0)}) == 3
    assert len(plan.backups.of(0)) == 4


def test_dead_links_are_no_backup() -> None:
    """Of three spines one is used and one is dead: the backup is over the third."""
    fabric = clos(leaves=2, spines=3, nics_per_leaf=1)
    for lost in ("s0", "s1", "s2"):
        for state in (State.DOWN, State.DRAINED):
            hurt = fabric.with_nodes({fabric.structure.index[lost]: state})
            plan = one_flow(hurt, "l0-h0-n0", "l1-h0-n0")
            check_backups(plan)
            check_backups_apart(plan)


@pytest.mark.parametrize("spines", [2, 3, 4, 8])
def test_a_lost_link_falls_evenly_on_the_rest(spines: int) -> None:
    """After any single failure no other uplink takes on more than its even share of flows."""
    fabric = clos(leaves=4, spines=spines, nics_per_leaf=spines)
    plan = solve(fabric, permutations(fabric, Random(spines), 3))
    tail, level = fabric.structure.tail, fabric.structure.nodes.kind
    head = fabric.structure.head
    for arc in np.flatnonzero((level[tail] == 1) & (level[head] == 2)).tolist():
        lost = [row for row in range(len(plan.paths)) if arc in plan.paths.of(row)]
        extra = np.bincount([way(plan.backups, row)[1] for row in lost], minlength=1)
        assert extra.max() <= -(-len(lost) // (spines - 1))


def test_a_detour_through_a_third_leaf_is_backed_up() -> None:
    """A path of six links between switches has a backup that ends where it ends."""
    rng = Random(41)
    fabric = damaged(rng, KINDS["planes"](rng))
    check_backups(solve(fabric, any_flows(rng, fabric)))


def test_no_link_between_switches_is_told_by_nics() -> None:
    """Path and backup share the NICs' uplinks and no link between switches."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=1)
    plan = one_flow(fabric, "l0-h0-n0", "l1-h0-n0")
    shared = {*way(plan.paths, 0)} & {*way(plan.backups, 0)}
    assert len(shared) == 2
    assert not between_switches(fabric)[[*shared]].any()


def neighbours(nics: int, planes: int = 1) -> tuple[Fabric, Flows]:
    """Two pairs of leaves; each NIC of the first pair sends to the next NIC of that pair.

    There are four spines for each plane.
    """
    fabric = dual_tor(
        pairs=2, spines=4 * planes, nics_per_pair=nics, nics_per_host=nics, planes=planes
    )
    names = [f"p0-h0-n{number}" for number in range(nics)]
    records = [(a, b, 400.0, 8, "j", "") for a, b in zip(names, names[1:] + names[:1], strict=True)]
    return fabric, flows_of(fabric, *records)


@pytest.mark.parametrize("nics", [2, 3, 8])
def test_neighbours_fall_evenly_on_the_spines(nics: int) -> None:
    """A backup between NICs on one leaf goes over a spine to the destination's other leaf.

    It begins with the path's first link. Backups of paths that end with the same link use different
    spines.
    """
    fabric, flows = neighbours(nics)
    plan = solve(fabric, flows)
    check_backups(plan)
    fallen: dict[int, list[int]] = {}
    for row in range(len(plan.paths)):
        path, spare = way(plan.paths, row), way(plan.backups, row)
        assert (len(path), len(spare)) == (2, 4)
        assert spare[0] == path[0]
        assert spare[-1] != path[-1]
        fallen.setdefault(path[-1], []).append(spare[1])
    for spines in fallen.values():
        assert len(set(spines)) == len(spines)


def test_neighbours_in_two_planes_back_up_over_the_other_leaf() -> None:
    """In two planes nothing joins the two leaves, so a backup uses the NICs' other links."""
    plan = solve(*neighbours(4, planes=2))
    check_backups(plan)
    for row in range(len(plan.paths)):
        path, spare = way(plan.paths, row), way(plan.backups, row)
        assert len(path) == len(spare) == 2
        assert not {*path} & {*spare}


@pytest.mark.parametrize("lost", [("p0-h0-n0",), ("p0-h0-n1",), ("p0-h0-n0", "p0-h0-n1")])
def test_neighbours_that_lost_a_link_have_what_backup_there_is(lost: tuple[str, ...]) -> None:
    """A backup uses the NIC link that is left; if neither NIC has another, there is no backup."""
    fabric, _ = neighbours(2)
    rows = [fabric.find_links(nic, "p0b")[0] for nic in lost]
    hurt = fabric.with_links(dict.fromkeys(rows, State.DOWN))
    plan = solve(hurt, flows_of(hurt, ("p0-h0-n0", "p0-h0-n1", 100.0, 1, "j", "")))
    check_backups(plan)
    path, spare = way(plan.paths, 0), way(plan.backups, 0)
    assert len(path) == 2
    if len(lost) == 2:
        assert not spare
    else:
        assert len(spare) == 4
        assert (spare[0] == path[0], spare[-1] == path[-1]) == (
            lost == ("p0-h0-n0",),
            lost != ("p0-h0-n0",),
        )


def test_a_spine_without_leaves_is_no_backup() -> None:
    """A spine that has links to cores alone changes nothing about the backups of others."""
    nodes = [{"id": "top", "kind": "core"}, {"id": "peak", "kind": "core"}]
    nodes += [{"id": "bare", "kind": "spine"}]
    edges = [("bare", "top"), ("bare", "peak")]
    for zone in ("a", "b"):
        nodes += [{"id": zone, "kind": "leaf"}, {"id": f"{zone}0", "kind": "nic"}]
        edges.append((f"{zone}0", zone))
        for core in ("top", "peak"):
            nodes.append({"id": f"{zone}-{core}", "kind": "spine"})
            edges += [(zone, f"{zone}-{core}"), (f"{zone}-{core}", core)]
    fabric = of_records(nodes, edges)
    plan = one_flow(fabric, "a0", "b0")
    check_backups_apart(plan)
    ids = fabric.structure.nodes.ids
    both = switches_of(plan, way(plan.paths, 0)) | switches_of(plan, way(plan.backups, 0))
    assert {ids[row] for row in both} >= {"top", "peak"}
