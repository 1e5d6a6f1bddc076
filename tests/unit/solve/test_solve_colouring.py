"""Edge colouring: every vertex has every colour equally often, to within one."""

from __future__ import annotations

import random as chance

import networkx as nx
import numpy as np
import pytest

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import concatenate
from heddle_controller.model.job import Job, Parallelism
from heddle_controller.solve.colouring.balanced import equitable_colouring, striped_colouring
from heddle_controller.solve.colouring.planes import Planes
from heddle_controller.solve.network import Network
from heddle_controller.traffic.jobs import flows_of_job
from heddle_emulator.topology import three_tier


def edges(*pairs: tuple[int, int]) -> tuple[Ints, Ints]:
    """Edges as the two columns that the colouring takes."""
    table = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def check_equitable(left: Ints, right: Ints, colours: int) -> Ints:
    """Assert that each vertex has each colour the floor or the ceiling of its fair share."""
    colour = equitable_colouring(left, right, colours)
    assert colour.shape == left.shape
    assert ((colour >= 0) & (colour < colours)).all()
    for side in (left, right):
        for vertex in np.unique(side):
            used = np.bincount(colour[side == vertex], minlength=colours)
            degree = int(used.sum())
            assert used.min() >= degree // colours
            assert used.max() <= -(-degree // colours)
    return colour


@pytest.mark.parametrize("colours", range(1, 34))
def test_random_multigraphs_are_coloured_evenly(colours: int) -> None:
    """Multigraphs with vertices of any degree are coloured evenly, in any number of colours."""
    random = np.random.default_rng(colours)
    for count in (1, 2, 7, 40, 211):
        left, right = random.integers(0, 9, (2, count))
        check_equitable(left, right, colours)


@pytest.mark.parametrize("colours", range(1, 34))
def test_regular_graphs_get_each_colour_once(colours: int) -> None:
    """With as many colours as edges at each vertex, each colour class is a perfect matching."""
    random = np.random.default_rng(colours)
    left = np.tile(np.arange(6), colours)
    right = np.concatenate([random.permutation(6) for _ in range(colours)])
    colour = check_equitable(left, right, colours)
    for used in range(colours):
        assert sorted(left[colour == used].tolist()) == [*range(6)]
        assert sorted(right[colour == used].tolist()) == [*range(6)]


def test_no_edges_need_no_colour() -> None:
    """Without edges the answer is empty, for odd and even numbers of colours."""
    for colours in (1, 2, 3, 8):
        assert equitable_colouring(*edges(), colours).shape == (0,)


@pytest.mark.parametrize("count", [1, 3, 5, 9, 33])
def test_an_odd_number_of_parallel_edges(count: int) -> None:
    """Parallel edges fall evenly on the colours, also if their number is odd."""
    for colours in (2, 3, 4, 7):
        left = np.zeros(count, dtype=np.int64)
        check_equitable(left, left, colours)


def test_vertices_may_have_any_numbers() -> None:
    """Vertices may have any numbers, and the two sides may overlap."""
    left, right = edges((70_000, 5), (5, 70_000), (70_000, 70_000), (5, 5), (70_000, 5))
    check_equitable(left, right, 2)
    check_equitable(left, right, 3)


def test_a_star_is_divided() -> None:
    """A vertex with all edges has its fair share of each colour."""
    left, right = np.zeros(10, dtype=np.int64), np.arange(10)
    colour = check_equitable(left, right, 4)
    assert sorted(np.bincount(colour).tolist()) == [2, 2, 3, 3]


def test_equal_input_gives_equal_colours() -> None:
    """Colours depend on the edges and their order alone."""
    left, right = np.random.default_rng(1).integers(0, 20, (2, 500))
    for colours in (5, 16):
        first = equitable_colouring(left, right, colours)
        assert np.array_equal(first, equitable_colouring(left.copy(), right.copy(), colours))


def test_the_fewest_colours_are_enough() -> None:
    """With as many colours as the greatest degree, no vertex has one twice, as Konig proved."""
    for seed in range(20):
        graph = nx.bipartite.gnmk_random_graph(7, 8, 30, seed=seed)
        left, right = edges(*graph.edges)
        degree = max(d for _, d in graph.degree)
        colour = check_equitable(left, right, degree)
        for side in (left, right):
            assert len({*zip(side.tolist(), colour.tolist(), strict=True)}) == len(side)


@pytest.mark.parametrize("colours", [1, 2, 3, 8, 12, 16])
def test_edges_that_follow_one_another_have_different_colours(colours: int) -> None:
    """At each vertex the first so many edges differ in colour, then the next; all are even."""
    random = np.random.default_rng(colours)
    for count in (1, 7, 40, 211):
        left, right = random.integers(0, 5, (2, count))
        colour = striped_colouring(left, right, colours)
        for side in (left, right):
            for vertex in np.unique(side):
                own = colour[side == vertex]
                for first in range(0, len(own), colours):
                    stripe = own[first : first + colours]
                    assert len(set(stripe.tolist())) == len(stripe)


def test_large_flows_are_spread_evenly_among_small_ones() -> None:
    """Every link between a spine and cores has as many rings of whole lines as its neighbours.

    Sixteen jobs send rings of 400 Gbit/s and all-to-alls of many small flows over the cores.
    """
    fabric = three_tier(
        zones=4, leaves=24, spines=8, nics_per_leaf=8, cores=8, taper=1.0, nics_per_host=8
    )
    hosts = sorted(fabric.structure.nics_of_host)
    chance.Random(1).shuffle(hosts)
    jobs = [
        Job(
            f"j{row}", tuple(hosts[6 * row : 6 * row + 6]), 8, Parallelism(tp=8, ep=(2, 3)[row % 2])
        )
        for row in range(16)
    ]
    flows = concatenate([flows_of_job(job, fabric) for job in jobs])
    arcs = Planes(Network(fabric)).colour(flows).arcs
    large = np.flatnonzero(flows.gbps == flows.gbps.max())
    structure = fabric.structure
    counts = np.bincount(arcs[large][arcs[large] >= 0], minlength=len(structure.tail))
    cores = structure.tier_of_arc == structure.tiers.index("spine-core")
    for end in (structure.tail, structure.head):
        for node in np.unique(end[cores]):
            own = counts[cores & (end == node)]
            assert structure.nodes.kind[node] == NodeKind.CORE or own.max() - own.min() <= 1
