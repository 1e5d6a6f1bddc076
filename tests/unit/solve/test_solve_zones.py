"""Colours of flows between zones are even at every leaf and every zone at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.plan import arc_loads, worst_by_tier
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import solve
from heddle_controller.solve.colouring.exchange import Edges, colour_zones, even_out
from heddle_emulator.topology import three_tier
from tests.bench.workloads import permutations

LEAVES = 6
"""Leaves of a zone."""


def permuted(seed: int, zones: int, nics: int, sets: int) -> Edges:
    """Permutations of all NICs, as edges between leaves."""
    random = np.random.default_rng([seed, zones, nics, sets])
    leaf = np.repeat(np.arange(zones * LEAVES), nics)
    left = np.tile(leaf, sets)
    right = np.concatenate([random.permutation(leaf) for _ in range(sets)])
    return Edges(left, right, left // LEAVES, right // LEAVES)


def spread_within(vertex: Ints, colour: Ints, colours: int) -> int:
    """The most by which two colours differ in number at one vertex."""
    size = int(vertex.max()) + 1
    table = np.bincount(vertex * colours + colour, minlength=size * colours)
    counts = table.reshape(size, colours)
    return int((counts.max(axis=1) - counts.min(axis=1)).max())


def check_leaves(edges: Edges, up: Ints, down: Ints, colours: int) -> None:
    """Assert that each leaf has its colours evenly, up and down."""
    assert spread_within(edges.left, up, colours) <= 1
    assert spread_within(edges.right, down, colours) <= 1


def check_zones(edges: Edges, up: Ints, down: Ints, colours: int, links: int = 1) -> None:
    """Assert that no zone's links of one colour carry more than the fullest zone needs.

    Each colour has ``links`` links out of a zone and as many into it.
    """
    cross = edges.cross
    zones = (edges.zone_left[cross], edges.zone_right[cross])
    fullest = max(int(np.bincount(zone).max()) for zone in zones)
    for zone, colour in zip(zones, (up[cross], down[cross]), strict=True):
        used = np.bincount(zone * colours + colour)
        assert -(-used.max() // links) <= -(-fullest // (colours * links))


@pytest.mark.parametrize("colours", [3, 4, 8, 16])
@pytest.mark.parametrize("sets", [1, 2, 3])
@pytest.mark.parametrize("links", [2, LEAVES])
def test_planes_get_their_shares_of_what_leaves_a_zone(colours: int, sets: int, links: int) -> None:
    """With as many planes as NICs on a leaf, leaves are even and no plane of a zone is too full."""
    for seed in range(5):
        edges = permuted(seed, zones=3, nics=colours, sets=sets)
        up, down = colour_zones(edges, np.arange(colours), links)
        assert np.array_equal(up, down)
        check_leaves(edges, up, down, colours)
        check_zones(edges, up, down, colours, links)


@pytest.mark.parametrize("colours", [3, 4, 8])
def test_a_mesh_is_even_for_leaves_and_zones_always(colours: int) -> None:
    """In a mesh, leaves and zones are always exactly even.

    Any spine reaches any other, so each zone is coloured by itself.
    """
    for seed in range(20):
        edges = permuted(seed, zones=2, nics=colours, sets=1 + seed % 3)
        up, down = colour_zones(edges, np.zeros(colours, dtype=np.int64), links=1)
        check_leaves(edges, up, down, colours)
        check_zones(edges, up, down, colours)
        inside = edges.zone_left == edges.zone_right
        assert np.array_equal(up[inside], down[inside])


def test_planes_of_several_spines_are_kept_to() -> None:
    """A flow between zones goes up and down in one plane, not always over the same spine of it."""
    group = np.array([0, 1, 0, 1, 2, 2])
    edges = permuted(1, zones=3, nics=6, sets=2)
    up, down = colour_zones(edges, group, links=1)
    assert np.array_equal(group[up], group[down])
    assert (up != down).any()
    check_leaves(edges, up, down, 6)
    check_zones(edges, up, down, 6)


def test_exchanges_leave_leaves_alone_even_from_the_worst_start() -> None:
    """Exchanges even out zones and keep leaves even, although all flows start in one colour."""
    left = np.repeat(np.arange(8), 2)
    zone = left // 4
    right = np.where(np.arange(16) % 2 == 0, left, (left + 4) % 8)
    edges = Edges(left, right, zone, right // 4)
    colour = np.arange(16) % 2
    evened = even_out(edges, colour, 2, most=2)
    check_leaves(edges, evened, evened, 2)
    check_zones(edges, evened, evened, 2)


def odd_planes() -> Fabric:
    """Four zones of five planes with two cores each."""
    return three_tier(zones=4, leaves=3, spines=5, nics_per_leaf=5, cores=10)


def meshed() -> Fabric:
    """Four zones of four spines, each joined to each of six cores."""
    return three_tier(zones=4, leaves=6, spines=4, nics_per_leaf=4, cores=6, wiring="mesh")


def tight() -> Fabric:
    """Three zones of eight planes with a core each."""
    return three_tier(zones=3, leaves=8, spines=8, nics_per_leaf=8, cores=8)


@pytest.mark.parametrize("build", [odd_planes, meshed, tight])
@pytest.mark.parametrize("qps", [1, 4])
def test_healthy_zones_are_at_the_bound(build: Callable[[], Fabric], qps: int) -> None:
    """With one to five permutations, the worst link, and each tier above 1, is at its bound."""
    fabric = build()
    for sets in range(1, 6):
        flows = permutations(fabric, seed=1, sets=sets, qps=qps)
        plan = solve(fabric, flows)
        verify_plan(plan)
        assert plan.certificate.max_utilization == pytest.approx(plan.certificate.lower_bound)
        worst = worst_by_tier(fabric, arc_loads(2 * fabric.link_count, flows, plan.paths))
        for tier in plan.certificate.tiers:
            assert worst[tier.tier] <= max(tier.lower_bound, 1.0) + 1e-9
