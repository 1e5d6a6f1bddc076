"""Baseline strategies on fabrics small enough to calculate by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.plan import Paths
from heddle_emulator.strategy import Pinned, strategy
from heddle_emulator.strategy.greedy import by_intensity, greedy_paths
from heddle_emulator.topology import clos, dragonfly, rail_optimised, random_regular, three_tier
from heddle_emulator.traffic import flows_between
from heddle_emulator.walk import Fate, Measurement, measure, walk
from tests.unit.bench.bench_flows import flows_of, without

static, dmodk, greedy = (strategy(name) for name in ("static", "dmodk", "greedy"))


def _via(fabric: Fabric, found: Measurement, kind: NodeKind = NodeKind.SPINE) -> list[list[str]]:
    """Return the switches of one kind on the path of each packet."""
    structure = fabric.structure
    ways = []
    for arcs in found.walk.arcs:
        heads = structure.head[arcs[arcs >= 0]]
        ways.append([structure.nodes.ids[n] for n in heads if structure.nodes.kind[n] == kind])
    return ways


def test_static_pins_by_the_place_of_the_destination() -> None:
    """The n-th NIC of a leaf is reached over the n-th spine, from every leaf."""
    fabric = clos(leaves=3, spines=2, nics_per_leaf=2)
    rows = [
        (f"l0-h0-n{i}", f"l{leaf}-h0-n{place}") for i, leaf in ((0, 1), (1, 2)) for place in (0, 1)
    ]
    flows = flows_of(fabric, *((a, b, 100.0, "j") for a, b in rows))
    assert _via(fabric, static(fabric, flows, 0)) == [["s0"], ["s1"], ["s0"], ["s1"]]


def test_static_collides_where_places_are_equal() -> None:
    """Two flows to the first NICs of two leaves share an uplink, although another is free."""
    fabric = clos(leaves=3, spines=2, nics_per_leaf=2)
    ends = [("l0-h0-n0", "l1-h0-n0"), ("l0-h0-n1", "l2-h0-n0")]
    flows = flows_of(fabric, *((a, b, 400.0, "j") for a, b in ends))
    found = static(fabric, flows, 0)
    assert found.worst["leaf-spine"] == 2.0
    assert found.slowest == 0.5


@pytest.mark.parametrize("dead", [("l0", "s0"), ("s0", "l1")])
def test_static_leaves_dead_ways_to_the_hash(dead: tuple[str, str]) -> None:
    """If the pinned uplink is dead or does not lead to the destination, another spine is used."""
    fabric = without(clos(leaves=3, spines=2, nics_per_leaf=2), dead)
    flows = flows_of(fabric, ("l0-h0-n0", "l1-h0-n0", 400.0, "j"))
    found = static(fabric, flows, 0)
    assert _via(fabric, found) == [["s1"]]
    assert found.slowest == 1.0


def test_dmodk_numbers_through_the_whole_fabric() -> None:
    """With 3 spines, NICs 2 and 3, on the second leaf, are reached over spines 2 and 0."""
    fabric = clos(leaves=2, spines=3, nics_per_leaf=2)
    ends = [("l0-h0-n0", "l1-h0-n0"), ("l0-h0-n1", "l1-h0-n1")]
    flows = flows_of(fabric, *((a, b, 400.0, "j") for a, b in ends))
    assert _via(fabric, dmodk(fabric, flows, 0)) == [["s2"], ["s0"]]
    assert _via(fabric, static(fabric, flows, 0)) == [["s0"], ["s1"]]


def test_dmodk_counts_anew_after_a_loss() -> None:
    """Without spine 0, leaf 0 has spines 1 and 2, and NICs 2 and 3 take them in turn."""
    fabric = without(clos(leaves=2, spines=3, nics_per_leaf=2), ("l0", "s0"))
    ends = [("l0-h0-n0", "l1-h0-n0"), ("l0-h0-n1", "l1-h0-n1")]
    flows = flows_of(fabric, *((a, b, 400.0, "j") for a, b in ends))
    assert _via(fabric, dmodk(fabric, flows, 0)) == [["s1"], ["s2"]]


SHIFTED = {
    "two-tiers": clos(leaves=4, spines=4, nics_per_leaf=4),
    "parallel": clos(leaves=3, spines=2, nics_per_leaf=4, parallel=2),
    "planes": three_tier(zones=2, leaves=4, spines=4, nics_per_leaf=4, cores=4),
}


@pytest.mark.parametrize("name", SHIFTED)
def test_dmodk_carries_every_shift_without_collision(name: str) -> None:
    """Cyclic shifts in the order of the tree never collide under d-mod-k, as is known."""
    fabric = SHIFTED[name]
    nics = fabric.rows_of_kind(NodeKind.NIC)
    for offset in range(1, len(nics)):
        flows = replace(flows_between(fabric, "shift"), destination=np.roll(nics, -offset))
        found = dmodk(fabric, flows, 0)
        assert len(found.walk.lost) == 0
        assert found.slowest == 1.0, offset


def test_greedy_takes_jobs_by_what_they_send() -> None:
    """The job with most Gbit/s times priority comes first, and within a job its largest flow."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=3)
    rows = [("l0-h0-n0", "l1-h0-n0", 100.0, "a"), ("l0-h0-n1", "l1-h0-n1", 200.0, "a")]
    flows = flows_of(fabric, *rows, ("l0-h0-n2", "l1-h0-n2", 250.0, "b"))
    assert by_intensity(flows).tolist() == [1, 0, 2]
    heavier = replace(flows, weight=np.array([1.0, 1.0, 2.0]))
    assert by_intensity(heavier).tolist() == [2, 1, 0]


def test_greedy_fills_the_emptiest_way() -> None:
    """The flow of 400 has a spine to itself and both of 200 share one, so no link is above 1."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=3)
    rates = [(0, 200.0), (1, 400.0), (2, 200.0)]
    flows = flows_of(fabric, *((f"l0-h0-n{i}", f"l1-h0-n{i}", gbps, "j") for i, gbps in rates))
    found = greedy(fabric, flows, 0)
    spines = _via(fabric, found)
    assert spines[0] == spines[2] != spines[1]
    assert found.worst["leaf-spine"] == 1.0


def test_greedy_never_takes_back() -> None:
    """Earlier flows keep their paths, so the last one collides, though a plan has room for all."""
    fabric = clos(leaves=3, spines=2, nics_per_leaf=2)
    # The first two take s0, because they share no link. Then l0 has only s1 left upwards for the
    # first NIC of l2, and l1 has only s1 for its second NIC, so both use the link from s1 to l2.
    # All four would fit if the first two took different spines.
    ends = [("l0-h0-n0", "l1-h0-n0"), ("l1-h0-n0", "l0-h0-n0")]
    ends += [("l0-h0-n1", "l2-h0-n0"), ("l1-h0-n1", "l2-h0-n1")]
    flows = flows_of(fabric, *((a, b, 400.0, "j") for a, b in ends))
    found = greedy(fabric, flows, 0)
    assert _via(fabric, found)[:3] == [["s0"], ["s0"], ["s1"]]
    assert found.worst["leaf-spine"] == 2.0
    assert found.slowest == 0.5


def test_greedy_looks_at_the_fullest_link_of_each_way() -> None:
    """For random permutations, each flow gets a path as good as the best of all its paths."""
    fabric = three_tier(zones=2, leaves=3, spines=2, nics_per_leaf=2, cores=2)
    flows = flows_between(fabric, "permutation", seed=3)
    structure = fabric.structure
    load = np.zeros(2 * fabric.link_count)
    paths = greedy_paths(fabric, flows)
    for row in by_intensity(flows).tolist():
        ways = _all_shortest(fabric, int(flows.source[row]), int(flows.destination[row]))
        worst = [max((load[way] + 400.0) / structure.capacity[way]) for way in ways]
        taken = paths.of(int(np.searchsorted(paths.flow, row)))
        assert max((load[taken] + 400.0) / structure.capacity[taken]) == min(worst)
        load[taken] += 400.0


def _all_shortest(fabric: Fabric, source: int, destination: int) -> list[list[int]]:
    """Return every path with the fewest hops, found by breadth-first search."""
    structure = fabric.structure
    found: list[list[int]] = []
    level: list[tuple[int, list[int]]] = [(source, [])]
    while not found:
        level = [
            (int(structure.head[arc]), [*path, arc])
            for node, path in level
            for arc in np.flatnonzero(structure.tail == node).tolist()
        ]
        found = [path for node, path in level if node == destination]
    return found


FABRICS = {
    "two-tiers": clos(leaves=4, spines=3, nics_per_leaf=4, parallel=2),
    "planes": three_tier(zones=2, leaves=3, spines=2, nics_per_leaf=2, cores=4, taper=2.0),
    "mesh": three_tier(zones=2, leaves=3, spines=2, nics_per_leaf=2, cores=3, wiring="mesh"),
    "rails": rail_optimised(units=2, servers=4, rails=4, spines=2),
    "regular": random_regular(switches=8, degree=3, nics_per_switch=2),
    "dragonfly": dragonfly(routers=2, global_links=2, nics_per_switch=2),
}


@pytest.mark.parametrize("name", ["static", "dmodk", "greedy", "ecmp", "e-ecmp:4"])
@pytest.mark.parametrize("shape", FABRICS)
def test_all_packets_arrive_over_shortest_paths(name: str, shape: str) -> None:
    """On any fabric, whole or damaged, nothing is lost and no path is longer than ECMP's."""
    fabric = FABRICS[shape]
    nic = fabric.structure.nodes.kind == NodeKind.NIC
    links = fabric.structure.links
    inner = np.flatnonzero(~nic[links.a] & ~nic[links.b]).tolist()
    for world in (fabric, fabric.with_links({inner[0]: State.DOWN, inner[-1]: State.DOWN})):
        flows = flows_between(world, "permutation", seed=4, qps=2)
        found, hashed = strategy(name)(world, flows, 1), strategy("ecmp")(world, flows, 1)
        assert len(found.walk.lost) == 0
        assert _hops(found) == _hops(hashed)


def _hops(found: Measurement) -> set[tuple[int, int]]:
    """Return (flow, links that its packet crosses) of all packets."""
    hops = (found.walk.arcs >= 0).sum(axis=1)
    return {*zip(found.walk.flow.tolist(), hops.tolist(), strict=True)}


@pytest.mark.parametrize("name", ["static", "dmodk", "greedy"])
def test_what_cannot_arrive_is_lost(name: str) -> None:
    """A NIC that is cut off loses the flows from it and to it, and no others."""
    fabric = without(clos(leaves=2, spines=2, nics_per_leaf=2), ("l0-h0-n0", "l0"))
    ends = [("l0-h0-n0", "l1-h0-n0"), ("l1-h0-n1", "l0-h0-n0"), ("l0-h0-n1", "l1-h0-n1")]
    flows = flows_of(fabric, *((a, b, 400.0, "j") for a, b in ends))
    found = strategy(name)(fabric, flows, 0)
    assert found.walk.lost.tolist() == [0, 1]
    assert found.ratios.tolist() == [0.0, 0.0, 1.0]


def test_pinned_packets_keep_to_their_paths() -> None:
    """Packets follow the given paths, QP by QP. A QP without a path is dropped."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    flows = flows_of(fabric, *[("l0-h0-n0", "l1-h0-n0", 100.0, "j")] * 2, qps=4)
    hashed = strategy("ecmp")(fabric, flows, 5).paths
    kept = hashed.take(np.flatnonzero((hashed.flow == 0) | (hashed.first_qp > 0)))
    found = measure(fabric, flows, Pinned(fabric, flows, kept))
    for column in ("flow", "first_qp", "last_qp", "first", "arcs"):
        assert (getattr(found.paths, column) == getattr(kept, column)).all()
    dropped = found.walk.lost
    assert dropped.tolist() == [4 + int(q) for q in range(int(kept.first_qp[kept.flow == 1][0]))]
    assert (found.walk.fate[dropped] == Fate.BLACK_HOLE).all()


def test_pinned_knows_no_way_off_its_paths() -> None:
    """Without any path, everything is dropped at the first switch."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=2)
    flows = flows_between(fabric, "shift")
    none = np.empty(0, dtype=np.int64)
    nothing = Paths(none, none, none, np.zeros(1, dtype=np.int64), none)
    walked = walk(fabric, flows, Pinned(fabric, flows, nothing))
    assert (walked.fate == Fate.BLACK_HOLE).all()
