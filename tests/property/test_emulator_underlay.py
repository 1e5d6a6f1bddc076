"""Routes of the underlay against networkx's shortest paths, with random links down."""

from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heddle_agent.fib import Link, Packet, Steering
from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_emulator.switches import Switches, next_hop, seed_of
from heddle_emulator.topology import clos, random_regular, three_tier
from heddle_emulator.underlay import UNREACHABLE, Underlay

SHAPES = {
    "clos": clos(leaves=4, spines=3, nics_per_leaf=2, parallel=2),
    "tapered": three_tier(zones=2, leaves=3, spines=2, nics_per_leaf=2, cores=2, taper=3),
    "random": random_regular(switches=10, degree=3, nics_per_switch=1, seed=4),
}


@st.composite
def damaged(draw: st.DrawFn) -> Fabric:
    """A small fabric with up to half of its links down."""
    fabric = SHAPES[draw(st.sampled_from(sorted(SHAPES)))]
    links = st.integers(0, fabric.link_count - 1)
    down = draw(st.sets(links, max_size=fabric.link_count // 2))
    return fabric.with_links(dict.fromkeys(down, State.DOWN))


def _graph(fabric: Fabric) -> nx.MultiGraph[int]:
    """Live links between switches as a networkx graph."""
    structure = fabric.structure
    graph: nx.MultiGraph[int] = nx.MultiGraph()
    nic = structure.nodes.kind == NodeKind.NIC
    graph.add_nodes_from(np.flatnonzero(~nic).tolist())
    for arc in np.flatnonzero(fabric.carries)[::2].tolist():
        ends = int(structure.tail[arc]), int(structure.head[arc])
        if not nic[list(ends)].any():
            graph.add_edge(*ends, key=arc >> 1)
    return graph


def _leaf(fabric: Fabric, nic: int) -> int | None:
    first, arcs = fabric.structure.out
    own = arcs[first[nic] : first[nic + 1]]
    live = own[fabric.carries[own]]
    return int(fabric.structure.head[live[0]]) if len(live) else None


@given(damaged())
def test_hops_are_shortest(fabric: Fabric) -> None:
    """The distance of every switch to every NIC is that of the graph, or unreachable in both."""
    underlay, graph = Underlay(fabric), _graph(fabric)
    for nic in fabric.rows_of_kind(NodeKind.NIC).tolist():
        leaf = _leaf(fabric, nic)
        hops = {} if leaf is None else nx.single_source_shortest_path_length(graph, leaf)
        found = underlay.hops[:, underlay.group[nic]]
        for switch in graph.nodes:
            expected = hops.get(switch, UNREACHABLE)
            assert found[underlay.place[switch]] == expected


@given(damaged())
def test_next_hops_are_all_links_one_hop_closer(fabric: Fabric) -> None:
    """A table's next hops are exactly the live links one hop closer, parallel ones included."""
    switches, graph = Switches(fabric), _graph(fabric)
    ids = fabric.structure.nodes.ids
    for nic in fabric.rows_of_kind(NodeKind.NIC).tolist()[::2]:
        leaf = _leaf(fabric, nic)
        hops = {} if leaf is None else nx.single_source_shortest_path_length(graph, leaf)
        for switch in graph.nodes:
            expected = {
                (ids[other], str(fabric.structure.links.key[link]))
                for _, other, link in graph.edges(switch, keys=True)
                if hops.get(other, UNREACHABLE) == hops.get(switch, UNREACHABLE) - 1
            }
            if switch == leaf:
                expected = {(ids[nic], "0")}
            told = switches.routes[switch].next_hops(ids[nic])
            assert {hop.port for hop in told} == expected
            assert len(told) == len(expected)


@given(damaged(), st.data())
def test_arrays_of_packets_go_where_each_one_goes(fabric: Fabric, data: st.DataObject) -> None:
    """Routing packets as arrays or one by one gives the same hops, past dead local links."""
    switches, nodes = Switches(fabric), fabric.structure.nodes
    switch = data.draw(st.sampled_from(sorted(switches.fibs)))
    fib, nics = switches.fibs[switch], fabric.rows_of_kind(NodeKind.NIC)
    lost = data.draw(st.lists(st.sampled_from(fib.next_hops), unique=True))
    here = nodes.ids[switch]
    fib.steer(Steering({}, frozenset(Link.between(here, hop.node, hop.key) for hop in lost)))
    port = data.draw(st.integers(1000, 60000))
    at, source, ports = (np.full(len(nics), value) for value in (switch, nics[0], port))
    found = switches.forward(at, source, nics, ports)
    for arc, nic in zip(found.tolist(), nics.tolist(), strict=True):
        hop = fib.lookup(Packet(nodes.ids[nics[0]], nodes.ids[nic], port))
        assert hop == (None if arc == NONE else next_hop(fabric, arc))


def test_one_object_for_all_destinations_that_share_their_next_hops() -> None:
    """A leaf gives the same sequence object for all NICs that share their next hops."""
    fabric = SHAPES["clos"]
    switches = Switches(fabric)
    routes = switches.routes[int(fabric.structure.index["l0"])]
    elsewhere = [f"l{leaf}-h0-n{nic}" for leaf in (1, 2, 3) for nic in (0, 1)]
    assert len({id(routes.next_hops(nic)) for nic in elsewhere}) == 1
    assert routes.next_hops("l0-h0-n0") != routes.next_hops("l0-h0-n1")


def test_routes_change_only_when_bgp_has_converged() -> None:
    """A link that went down is avoided after ``converge`` and not before."""
    fabric = SHAPES["clos"]
    switches = Switches(fabric)
    routes = switches.routes[int(fabric.structure.index["l0"])]
    cut = dict.fromkeys(fabric.find_links("s1", "l3"), State.DOWN)
    switches.change(cut)
    assert {hop.node for hop in routes.next_hops("l3-h0-n0")} == {"s0", "s1", "s2"}
    switches.converge()
    assert {hop.node for hop in routes.next_hops("l3-h0-n0")} == {"s0", "s2"}
    assert {hop.node for hop in routes.next_hops("l2-h0-n0")} == {"s0", "s1", "s2"}


def test_routes_know_no_more_than_bgp_has_told() -> None:
    """After BGP has converged on one lost link only, routes still use another lost link."""
    fabric = SHAPES["clos"]
    switches = Switches(fabric)
    routes = switches.routes[int(fabric.structure.index["l0"])]
    first, second = (
        dict.fromkeys(fabric.find_links(spine, "l3"), State.DOWN) for spine in ("s0", "s1")
    )
    switches.change(first | second)
    switches.converge(first)
    assert {hop.node for hop in routes.next_hops("l3-h0-n0")} == {"s1", "s2"}
    switches.converge(second)
    assert {hop.node for hop in routes.next_hops("l3-h0-n0")} == {"s2"}


def test_switches_hash_apart() -> None:
    """Hash seeds differ between switches and runs, and the same run seed gives the same ones."""
    assert seed_of(1, 5) == seed_of(1, 5)
    assert len({seed_of(seed, switch) for seed in range(10) for switch in range(10)}) == 100
