"""The reason why a flow has no path names the links of the empty cut, and no others."""

from __future__ import annotations

import re

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.solve import solve
from heddle_emulator.topology import clos, random_regular, three_tier
from tests.support.solve_flows import flows_of


def named(fabric: Fabric, source: str, destination: str) -> set[str]:
    """What the reason says of links, as "link is state", for a flow that has no path."""
    plan = solve(fabric, flows_of(fabric, (source, destination, 100.0, 1, "j", "")))
    assert not len(plan.paths)
    return {*re.findall(r"[\w,-]+ is (?:down|drained)", plan.unrouted[0])}


def states(fabric: Fabric, *changes: tuple[str, str, State]) -> Fabric:
    """The fabric with all links between the given pairs of nodes in other states."""
    rows = {row: state for a, b, state in changes for row in fabric.find_links(a, b)}
    return fabric.with_links(rows)


def test_a_nic_without_its_uplink() -> None:
    """The one link of the NIC is named, at either end of the flow."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    fabric = states(fabric, ("l0-h0-n0", "l0", State.DOWN))
    assert named(fabric, "l0-h0-n0", "l1-h0-n0") == {"l0-h0-n0,l0,0 is down"}
    assert named(fabric, "l1-h0-n0", "l0-h0-n0") == {"l0-h0-n0,l0,0 is down"}


def test_a_leaf_without_uplinks() -> None:
    """All uplinks of the leaf are named, each with its own state."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    fabric = states(fabric, ("l0", "s0", State.DOWN), ("l0", "s1", State.DRAINED))
    assert named(fabric, "l0-h0-n0", "l1-h0-n0") == {"l0,s0,0 is down", "l0,s1,0 is drained"}
    assert named(fabric, "l1-h0-n1", "l0-h0-n1") == {"l0,s0,0 is down", "l0,s1,0 is drained"}


def test_parallel_links_are_told_apart() -> None:
    """Links of one pair of switches are named with their keys."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=1, parallel=2)
    fabric = states(fabric, ("l0", "s0", State.DOWN))
    assert named(fabric, "l0-h0-n0", "l1-h0-n0") == {"l0,s0,0 is down", "l0,s0,1 is down"}


def test_dead_links_elsewhere_are_not_named() -> None:
    """Links that do not border on the part that is cut off are not named."""
    fabric = clos(leaves=3, spines=2, nics_per_leaf=1)
    fabric = states(
        fabric, ("l0", "s0", State.DOWN), ("l0", "s1", State.DOWN), ("l2", "s1", State.DOWN)
    )
    assert named(fabric, "l0-h0-n0", "l1-h0-n0") == {"l0,s0,0 is down", "l0,s1,0 is down"}


def test_dead_links_to_other_nics_are_not_named() -> None:
    """The dead link of another NIC is not named, since it leads no further."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=2)
    fabric = states(fabric, ("l0", "s0", State.DOWN), ("l0-h0-n1", "l0", State.DOWN))
    assert named(fabric, "l0-h0-n0", "l1-h0-n0") == {"l0,s0,0 is down"}


def test_a_switch_that_is_down_takes_its_links_with_it() -> None:
    """If the only spine is down, every link to it counts as down."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=1)
    fabric = fabric.with_nodes({fabric.structure.index["s0"]: State.DOWN})
    assert named(fabric, "l0-h0-n0", "l1-h0-n0") == {"l0,s0,0 is down"}


def test_a_zone_cut_off_is_told_by_its_core_links() -> None:
    """If a zone is cut off, its links to cores are named, and flows inside still have paths."""
    fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=1, cores=2, taper=2.0)
    fabric = states(fabric, ("z0-s0", "c0", State.DOWN), ("z0-s1", "c1", State.DRAINED))
    assert named(fabric, "z0-l0-h0-n0", "z1-l0-h0-n0") == {
        "z0-s0,c0,0 is down",
        "z0-s1,c1,0 is drained",
    }
    plan = solve(fabric, flows_of(fabric, ("z0-l0-h0-n0", "z0-l1-h0-n0", 1.0, 1, "j", "")))
    assert not plan.unrouted


def test_a_plain_switch_cut_off() -> None:
    """In a graph without tiers, all links of a switch that is cut off are named."""
    fabric = random_regular(switches=6, degree=3, nics_per_switch=1, seed=3)
    structure = fabric.structure
    ids, links = structure.nodes.ids, structure.links
    pairs = [(ids[a], ids[b]) for a, b in zip(links.a.tolist(), links.b.tolist(), strict=True)]
    around = [(a, b) for a, b in pairs if "x0" in {a, b} and "-" not in a + b]
    fabric = states(fabric, *((a, b, State.DOWN) for a, b in around))
    assert named(fabric, "x0-h0-n0", "x1-h0-n0") == {f"{a},{b},0 is down" for a, b in around}


def test_many_links_are_counted() -> None:
    """A reason names some of many links and says how many more there are."""
    fabric = clos(leaves=2, spines=40, nics_per_leaf=1)
    fabric = fabric.with_nodes({fabric.structure.index[f"s{i:02d}"]: State.DOWN for i in range(40)})
    plan = solve(fabric, flows_of(fabric, ("l0-h0-n0", "l1-h0-n0", 1.0, 1, "j", "")))
    told = len(re.findall(r"l0,s\d\d,0 is down", plan.unrouted[0]))
    assert 0 < told < 40
    assert f"and {40 - told} more" in plan.unrouted[0]


def test_others_are_routed_all_the_same() -> None:
    """A flow without a path keeps no other from its own, and does not count in the bound."""
    fabric = clos(leaves=3, spines=2, nics_per_leaf=1)
    fabric = states(fabric, ("l0", "s0", State.DOWN), ("l0", "s1", State.DOWN))
    ends = [("l0-h0-n0", "l1-h0-n0"), ("l1-h0-n0", "l2-h0-n0")]
    plan = solve(fabric, flows_of(fabric, *((a, b, 400.0, 1, "j", "") for a, b in ends)))
    assert [*plan.unrouted] == [0]
    assert plan.paths.flow.tolist() == [1]
    assert (plan.certificate.lower_bound, plan.certificate.max_utilization) == (1.0, 1.0)
