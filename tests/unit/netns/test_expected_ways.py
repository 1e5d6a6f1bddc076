"""The routes that BGP is expected to have in a lab, on paper: no kernel is asked."""

from __future__ import annotations

from heddle_controller.model.fabric import Fabric, State
from heddle_emulator.netns import mark
from heddle_emulator.netns.converge import expected_ways
from heddle_emulator.netns.lab import Lab
from heddle_emulator.netns.layout import lay_out
from heddle_emulator.topology import clos, random_regular, three_tier


def _hops(fabric: Fabric, *cut: tuple[str, str]) -> dict[tuple[str, str], set[str]]:
    """Next hops by switch and NIC, in a lab of a fabric with some links cut."""
    lab = Lab(mark.Claim("paper"), lay_out(fabric))
    down = {row: State.DOWN for pair in cut for row in fabric.find_links(*pair)}
    nodes = fabric.structure.nodes
    nic = dict(zip(nodes.address, nodes.ids, strict=True))
    peer = {
        (port.node, port.name): port.peer for ports in lab.layout.ports.values() for port in ports
    }
    return {
        (switch, nic[address]): {peer[switch, name] for name in names}
        for switch, ways in expected_ways(lab, fabric.with_links(down)).items()
        for address, names in ways.items()
    }


def test_a_spine_does_not_reach_a_leaf_by_another_spine() -> None:
    """A spine without its link to a leaf has no route there; all others keep what is left."""
    found = _hops(clos(leaves=3, spines=3, nics_per_leaf=1), ("l0", "s0"))
    assert ("s0", "l0-h0-n0") not in found
    assert found["s0", "l1-h0-n0"] == {"l1"}
    assert found["s1", "l0-h0-n0"] == {"l0"}
    assert found["l1", "l0-h0-n0"] == {"s1", "s2"}
    assert found["l0", "l1-h0-n0"] == {"s1", "s2"}


def test_leaves_without_a_spine_in_common_are_apart() -> None:
    """No spine can lead them to each other, so nobody has a route that is longer than usual."""
    found = _hops(clos(leaves=3, spines=2, nics_per_leaf=1), ("l0", "s0"), ("l1", "s1"))
    assert ("l0", "l1-h0-n0") not in found
    assert ("l1", "l0-h0-n0") not in found
    assert found["l0", "l2-h0-n0"] == {"s1"}
    assert found["l2", "l1-h0-n0"] == {"s0"}


def test_a_spine_without_any_link_is_no_way() -> None:
    """All others go by the other spine, and it has no routes itself."""
    found = _hops(clos(leaves=2, spines=2, nics_per_leaf=1), ("l0", "s0"), ("l1", "s0"))
    assert found == {
        ("l0", "l1-h0-n0"): {"s1"},
        ("l1", "l0-h0-n0"): {"s1"},
        ("s1", "l0-h0-n0"): {"l0"},
        ("s1", "l1-h0-n0"): {"l1"},
    }


def test_cores_do_not_pass_on_to_cores() -> None:
    """A core without its way into a zone has no route there, and the other zone avoids it."""
    fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=1, cores=4)
    links = fabric.structure.links
    ids = fabric.structure.nodes.ids
    ends = [(ids[a], ids[b]) for a, b in zip(links.a.tolist(), links.b.tolist(), strict=True)]
    own = [pair for pair in ends if "c0" in pair and any(end.startswith("z1") for end in pair)]
    assert own
    found, nic = _hops(fabric, *own), "z1-l0-h0-n0"
    assert ("c0", nic) not in found
    assert found["c0", "z0-l0-h0-n0"]
    assert all("c0" not in hops for (_, to), hops in found.items() if to == nic)
    assert found["z0-l0", nic] == {"z0-s0", "z0-s1"}


def test_a_longer_way_through_other_ases_is_expected() -> None:
    """In a ring of switches with an AS each, all reach all others when a link is cut."""
    ring = random_regular(switches=4, degree=2, nics_per_switch=1)
    links, ids, kind = ring.structure.links, ring.structure.nodes.ids, ring.structure.nodes.kind
    row = next(row for row in range(ring.link_count) if kind[links.a[row]] == kind[links.b[row]])
    found = _hops(ring, (ids[int(links.a[row])], ids[int(links.b[row])]))
    assert len(found) == 4 * 3
    assert all(len(hops) == 1 for hops in found.values())
