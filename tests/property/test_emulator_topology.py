"""Fabric builders give the right degrees, connectivity, over-subscription and names."""

from __future__ import annotations

from functools import partial

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.arrays import Floats
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.topology import clos, dragonfly, rail_optimised, random_regular, three_tier
from heddle_emulator.topology.clos import Wiring

few = st.integers(1, 5)


def degrees(fabric: Fabric, kind: NodeKind, towards: NodeKind) -> list[int]:
    """The number of links from each node of one kind to nodes of another."""
    structure = fabric.structure
    kinds = structure.nodes.kind
    arcs = (kinds[structure.tail] == kind) & (kinds[structure.head] == towards)
    count = np.bincount(structure.tail[arcs], minlength=fabric.node_count)
    return [int(number) for number in count[kinds == kind]]


def gbps(fabric: Fabric, kind: NodeKind, towards: NodeKind) -> Floats:
    """The Gbit/s from each node of one kind to all nodes of another, shape (nodes of the kind,)."""
    structure = fabric.structure
    kinds = structure.nodes.kind
    arcs = (kinds[structure.tail] == kind) & (kinds[structure.head] == towards)
    total = np.bincount(
        structure.tail[arcs], weights=structure.capacity[arcs], minlength=fabric.node_count
    )
    return np.asarray(total[kinds == kind], dtype=np.float64)


def check_sound(fabric: Fabric) -> None:
    """Assert that a fabric is connected, its names are unique and its hosts have whole rails."""
    structure, nodes = fabric.structure, fabric.structure.nodes
    graph = nx.Graph(zip(structure.links.a.tolist(), structure.links.b.tolist(), strict=True))
    assert graph.number_of_nodes() == fabric.node_count
    assert nx.is_connected(graph)
    assert len(set(nodes.ids)) == len(set(nodes.address)) == fabric.node_count
    ends = zip(structure.links.a.tolist(), structure.links.b.tolist(), strict=True)
    assert len(set(zip(ends, structure.links.key, strict=True))) == fabric.link_count
    nics = fabric.rows_of_kind(NodeKind.NIC)
    assert sorted(n for rows in structure.nics_of_host.values() for n in rows) == nics.tolist()
    for rows in structure.nics_of_host.values():
        assert nodes.rail[list(rows)].tolist() == list(range(len(rows)))


@given(few, few, few, few, st.integers(1, 3))
def test_clos(leaves: int, spines: int, nics: int, per_host: int, parallel: int) -> None:
    """Each leaf has its NICs and ``parallel`` links to every spine."""
    fabric = clos(
        leaves=leaves, spines=spines, nics_per_leaf=nics, nics_per_host=per_host, parallel=parallel
    )
    check_sound(fabric)
    assert degrees(fabric, NodeKind.LEAF, NodeKind.NIC) == [nics] * leaves
    assert degrees(fabric, NodeKind.LEAF, NodeKind.SPINE) == [spines * parallel] * leaves
    assert degrees(fabric, NodeKind.SPINE, NodeKind.LEAF) == [leaves * parallel] * spines


@given(
    st.integers(2, 3), st.integers(1, 20), few, few, st.integers(1, 3), st.sampled_from([1, 2.5, 7])
)
def test_three_tiers_have_just_their_taper(  # noqa: PLR0917 - drawn in this order
    zones: int, leaves: int, spines: int, nics: int, reach: int, taper: float
) -> None:
    """A spine's capacity to cores is its capacity to leaves over the taper, in both wirings.

    No link to a core is slower than a leaf uplink, unless even one link to each core is too much.
    """
    wirings: list[tuple[Wiring, int]] = [("plane", spines * reach), ("mesh", reach)]
    for wiring, cores in wirings:
        fabric = three_tier(
            zones=zones,
            leaves=leaves,
            spines=spines,
            nics_per_leaf=nics,
            cores=cores,
            taper=taper,
            wiring=wiring,
        )
        check_sound(fabric)
        up = gbps(fabric, NodeKind.SPINE, NodeKind.CORE)
        down = gbps(fabric, NodeKind.SPINE, NodeKind.LEAF)
        assert np.allclose(up * taper, down)
        core = fabric.structure.tiers.index("spine-core")
        slowest = fabric.structure.capacity[fabric.structure.tier_of_arc == core].min()
        assert slowest >= min(400.0, leaves * 400 / taper / reach) * (1 - 1e-9)


def test_planes_keep_apart() -> None:
    """With planes, spine i of each zone connects to the cores of plane i and to no others."""
    fabric = three_tier(zones=3, leaves=4, spines=2, nics_per_leaf=2, cores=4, taper=1)
    nodes, structure = fabric.structure.nodes, fabric.structure
    core = structure.tier_of_arc == structure.tiers.index("spine-core")
    tails, heads = nodes.plane[structure.tail[core]], nodes.plane[structure.head[core]]
    assert (tails == heads).all()
    assert set(tails.tolist()) == {0, 1}


@given(st.integers(1, 3), few, few, few)
def test_rails(units: int, servers: int, rails: int, spines: int) -> None:
    """NIC r of each server of a unit is on the unit's leaf r."""
    fabric = rail_optimised(units=units, servers=servers, rails=rails, spines=spines)
    check_sound(fabric)
    nodes, structure = fabric.structure.nodes, fabric.structure
    assert degrees(fabric, NodeKind.LEAF, NodeKind.NIC) == [servers] * (units * rails)
    down = structure.tier_of_arc == structure.tiers.index("nic-leaf")
    assert (nodes.rail[structure.tail[down]] == nodes.rail[structure.head[down]]).all()


@given(st.integers(2, 10), st.integers(2, 4), few, st.integers(0, 9))
def test_random_regular(half: int, degree: int, nics: int, seed: int) -> None:
    """Every switch connects to ``degree`` others, and the same seed gives the same fabric."""
    switches = 2 * half + 2
    build = partial(
        random_regular, switches=switches, degree=degree, nics_per_switch=nics, seed=seed
    )
    fabric = build()
    check_sound(fabric)
    assert degrees(fabric, NodeKind.SWITCH, NodeKind.SWITCH) == [degree] * switches
    again = build()
    assert fabric.structure.links.a.tolist() == again.structure.links.a.tolist()
    assert fabric.structure.links.b.tolist() == again.structure.links.b.tolist()


@given(st.integers(1, 5), st.integers(1, 3), few)
def test_dragonfly(routers: int, global_links: int, nics: int) -> None:
    """Groups are full meshes, any two groups share one link, and all ports are used."""
    fabric = dragonfly(routers=routers, global_links=global_links, nics_per_switch=nics)
    check_sound(fabric)
    switches = routers * (routers * global_links + 1)
    wanted = [routers - 1 + global_links] * switches
    assert degrees(fabric, NodeKind.SWITCH, NodeKind.SWITCH) == wanted
    links, inner = fabric.structure.links, fabric.structure.nodes.kind == NodeKind.SWITCH
    between = inner[links.a] & inner[links.b] & (links.a // routers != links.b // routers)
    pairs = {
        (min(a, b), max(a, b))
        for a, b in zip(links.a[between] // routers, links.b[between] // routers, strict=True)
    }
    groups = routers * global_links + 1
    assert len(pairs) == int(between.sum()) == groups * (groups - 1) // 2


@pytest.mark.parametrize("count", [9, 10, 11, 100])
def test_names_sort_as_numbers(count: int) -> None:
    """Sorting names gives the order of their numbers, for any count."""
    fabric = clos(leaves=count, spines=1, nics_per_leaf=1)
    names = [fabric.structure.nodes.ids[row] for row in fabric.rows_of_kind(NodeKind.LEAF)]
    assert names == sorted(names)
