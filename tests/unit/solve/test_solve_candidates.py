"""Candidate paths between two terminals: which exist, and which may not."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import networkx as nx
import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.network import Network
from heddle_emulator.topology import clos, dragonfly, random_regular, three_tier
from tests.support.solve_fabrics import KINDS, damaged, of_records

LIMIT = 128
ALL = 10**6


def paths_between(fabric: Fabric, a: str, b: str, limit: int = ALL) -> list[list[int]]:
    """Candidates between two nodes by id, without padding."""
    network = Network(fabric)
    index = fabric.structure.index
    found = Candidates(network, limit).between(index[a], index[b])
    return [[arc for arc in row if arc != network.pad] for row in found.tolist()]


def words(fabric: Fabric, arcs: list[int]) -> str:
    """The nodes of a path by id."""
    ids, structure = fabric.structure.nodes.ids, fabric.structure
    tail = [ids[structure.tail[arcs[0]]]] if arcs else []
    return " ".join([*tail, *(ids[structure.head[arc]] for arc in arcs)])


def check_sound(fabric: Fabric, source: int, destination: int, paths: list[list[int]]) -> None:
    """Assert that paths are distinct, gapless, loop-free and usable, and pass switches only."""
    structure = fabric.structure
    assert len({tuple(path) for path in paths}) == len(paths)
    for path in paths:
        nodes = [source, *(int(structure.head[arc]) for arc in path)]
        assert all(int(structure.tail[arc]) == node for arc, node in zip(path, nodes, strict=False))
        assert nodes[-1] == destination
        assert len(set(nodes)) == len(nodes)
        assert (structure.nodes.kind[nodes[1:-1]] != NodeKind.NIC).all()
        assert fabric.plannable[path].all()


def test_two_tiers_go_over_every_spine() -> None:
    """Between two leaves there is one path over each spine, up and down."""
    fabric = clos(leaves=3, spines=4, nics_per_leaf=2)
    found = {words(fabric, path) for path in paths_between(fabric, "l0", "l2")}
    assert found == {f"l0 s{spine} l2" for spine in range(4)}


def test_parallel_links_multiply() -> None:
    """Two links each way over each of three spines are twelve paths."""
    fabric = clos(leaves=2, spines=3, nics_per_leaf=1, parallel=2)
    paths = paths_between(fabric, "l0", "l1")
    assert len(paths) == 12
    assert len({tuple(path) for path in paths}) == 12


def test_planes_keep_to_their_cores() -> None:
    """Between zones a path stays in its plane: spine i up, one of its cores, spine i down."""
    fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=1, cores=4)
    found = {words(fabric, path) for path in paths_between(fabric, "z0-l0", "z1-l1")}
    plane = {0: ("c0", "c1"), 1: ("c2", "c3")}
    assert found == {
        f"z0-l0 z0-s{spine} {core} z1-s{spine} z1-l1" for spine in plane for core in plane[spine]
    }


def test_a_mesh_of_cores_joins_any_spines() -> None:
    """Where every spine meets every core there are spines x cores x spines paths."""
    fabric = three_tier(zones=2, leaves=2, spines=2, nics_per_leaf=1, cores=3, wiring="mesh")
    found = {words(fabric, path) for path in paths_between(fabric, "z0-l0", "z1-l0")}
    assert found == {
        f"z0-l0 z0-s{up} c{core} z1-s{down} z1-l0"
        for up in range(2)
        for core in range(3)
        for down in range(2)
    }


def test_neighbours_on_a_leaf_need_no_link() -> None:
    """From a terminal to itself there is one path, without arcs."""
    assert paths_between(clos(leaves=2, spines=2, nics_per_leaf=2), "l1", "l1") == [[]]


def test_a_nic_on_two_leaves_chooses_among_them() -> None:
    """NICs with two uplinks have a path over each of their leaves and each spine."""
    nodes = [{"id": n, "kind": "nic"} for n in ("a", "b")]
    nodes += [{"id": f"l{i}", "kind": "leaf"} for i in range(4)]
    nodes += [{"id": f"s{i}", "kind": "spine"} for i in range(2)]
    edges = [("a", "l0"), ("a", "l1"), ("b", "l2"), ("b", "l3")]
    edges += [(f"l{i}", f"s{j}") for i in range(4) for j in range(2)]
    fabric = of_records(nodes, edges)
    found = {words(fabric, path) for path in paths_between(fabric, "a", "b")}
    assert found == {f"a l{i} s{j} l{k} b" for i in (0, 1) for j in (0, 1) for k in (2, 3)}


def test_nics_that_share_a_leaf_meet_there() -> None:
    """Two NICs on the same pair of leaves need no spine."""
    nodes = [{"id": n, "kind": "nic"} for n in ("a", "b")]
    nodes += [{"id": "l0", "kind": "leaf"}, {"id": "l1", "kind": "leaf"}]
    nodes += [{"id": "s0", "kind": "spine"}]
    edges = [("a", "l0"), ("a", "l1"), ("b", "l0"), ("b", "l1"), ("l0", "s0"), ("l1", "s0")]
    fabric = of_records(nodes, edges)
    assert {words(fabric, path) for path in paths_between(fabric, "a", "b")} == {"a l0 b", "a l1 b"}


@pytest.mark.parametrize("state", [State.DOWN, State.DRAINED])
def test_links_that_take_no_paths_are_absent(state: State) -> None:
    """No candidate uses a down or drained link, or any link of such a switch."""
    fabric = clos(leaves=2, spines=3, nics_per_leaf=1)
    lost = fabric.with_links({fabric.find_links("l0", "s1")[0]: state})
    assert {words(lost, p) for p in paths_between(lost, "l0", "l1")} == {"l0 s0 l1", "l0 s2 l1"}
    lost = fabric.with_nodes({fabric.structure.index["s1"]: state})
    assert {words(lost, p) for p in paths_between(lost, "l0", "l1")} == {"l0 s0 l1", "l0 s2 l1"}


def test_without_a_common_spine_a_detour_is_found() -> None:
    """Two leaves that share no live spine are joined through a third leaf."""
    fabric = clos(leaves=3, spines=2, nics_per_leaf=1)
    dead = [*fabric.find_links("l0", "s0"), *fabric.find_links("l1", "s1")]
    fabric = fabric.with_links(dict.fromkeys(dead, State.DOWN))
    found = {words(fabric, path) for path in paths_between(fabric, "l0", "l1")}
    assert found == {"l0 s1 l2 s0 l1"}


def test_cut_off_terminals_have_no_paths() -> None:
    """Terminals that no usable links join have no candidates."""
    fabric = clos(leaves=2, spines=1, nics_per_leaf=1)
    fabric = fabric.with_nodes({fabric.structure.index["s0"]: State.DOWN})
    assert paths_between(fabric, "l0", "l1") == []


def irregular_graphs() -> list[Fabric]:
    """Graphs of plain switches, some damaged."""
    graphs = [random_regular(switches=8, degree=3, nics_per_switch=1, seed=s) for s in range(4)]
    graphs.append(dragonfly(routers=3, global_links=1, nics_per_switch=1))
    return graphs + [damaged(Random(seed), fabric) for seed, fabric in enumerate(graphs)]


def simple_routes(
    graph: nx.MultiGraph[int], source: int, destination: int, cutoff: int
) -> set[tuple[int, ...]]:
    """Link rows of all loop-free routes of at most ``cutoff`` hops, by networkx."""
    # The stubs do not know that a multigraph's edges come with keys.
    routes: Any = nx.all_simple_edge_paths(graph, source, destination, cutoff=cutoff)
    return {tuple(int(edge[2]) for edge in route) for route in routes}


@pytest.mark.parametrize("fabric", irregular_graphs(), ids=lambda fabric: fabric.name)
def test_irregular_graphs_take_least_hops_first(fabric: Fabric) -> None:
    """Candidates are all paths of at most two hops more than the least, as networkx finds them."""
    network, structure = Network(fabric), fabric.structure
    candidates = Candidates(network, ALL)
    graph: nx.MultiGraph[int] = nx.MultiGraph()
    switches = np.flatnonzero(structure.nodes.kind != NodeKind.NIC).tolist()
    graph.add_nodes_from(switches)
    inner = [arc for arc in network.inner.tolist() if network.usable[arc] and arc % 2 == 0]
    graph.add_edges_from((int(structure.tail[a]), int(structure.head[a]), a >> 1) for a in inner)
    for source in switches[:3]:
        for destination in switches[-3:]:
            found = candidates.between(source, destination).tolist()
            paths = [[arc for arc in row if arc != network.pad] for row in found]
            if source == destination or not nx.has_path(graph, source, destination):
                assert len(paths) == (source == destination)
                continue
            least = int(nx.shortest_path_length(graph, source, destination))
            told = simple_routes(graph, source, destination, least + 2)
            assert {tuple(arc >> 1 for arc in path) for path in paths} == told
            lengths = [len(path) for path in paths]
            assert lengths == sorted(lengths)
            check_sound(fabric, source, destination, paths)


def test_a_limit_keeps_the_shortest() -> None:
    """If there are more paths than the limit, those of more hops are left out."""
    fabric = random_regular(switches=12, degree=4, nics_per_switch=1, seed=1)
    every = [len(path) for path in paths_between(fabric, "x00", "x11")]
    few = [len(path) for path in paths_between(fabric, "x00", "x11", 5)]
    assert few == every[:5]


def test_a_limit_leaves_no_uplink_idle() -> None:
    """In a large mesh, the limited candidates use all uplinks and all downlinks evenly."""
    fabric = three_tier(zones=2, leaves=1, spines=8, nics_per_leaf=1, cores=8, wiring="mesh")
    paths = paths_between(fabric, "z0-l0", "z1-l0", LIMIT)
    assert 0 < len(paths) <= LIMIT
    for hop in range(4):
        used = np.unique([path[hop] for path in paths], return_counts=True)[1]
        assert len(used) == (8 if hop in {0, 3} else 64)
        assert used.max() - used.min() <= 1


@pytest.mark.parametrize("kind", KINDS)
def test_candidates_are_sound_everywhere(kind: str) -> None:
    """Candidates are sound in any fabric, whole or damaged, between any two terminals."""
    for seed in range(12):
        rng = Random(seed)
        fabric = KINDS[kind](rng)
        fabric = damaged(rng, fabric) if seed % 2 else fabric
        network = Network(fabric)
        candidates = Candidates(network, LIMIT)
        ends = sorted({int(t) for t in network.terminal[fabric.rows_of_kind(NodeKind.NIC)]} - {-1})
        for source, destination in pairwise([*ends, *ends[:1], *ends[::-1]]):
            rows = candidates.between(source, destination).tolist()
            paths = [[arc for arc in row if arc != network.pad] for row in rows]
            assert all(
                row == [*p, *[network.pad] * (len(row) - len(p))]
                for row, p in zip(rows, paths, strict=True)
            )
            check_sound(fabric, source, destination, paths)
