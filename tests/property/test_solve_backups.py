"""Backups spread what falls on links after any single failure."""

from __future__ import annotations

from collections import Counter
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.plan import Plan
from heddle_controller.solve import solve
from heddle_controller.solve.colouring.layers import spread
from heddle_emulator.topology import clos, three_tier
from tests.support.solve_checks import way
from tests.support.solve_flows import permutations

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


def fallen(plan: Plan, arcs: Ints) -> tuple[dict[int, int], Counter[int]]:
    """How many paths each lost arc had, and how many backups fall on each arc then."""
    lost: dict[int, int] = {}
    extra: Counter[int] = Counter()
    crossing = np.zeros(2 * plan.fabric.link_count, dtype=np.bool_)
    crossing[arcs] = True
    for row in np.flatnonzero(plan.paths.crosses(crossing)).tolist():
        for arc in way(plan.paths, row):
            if crossing[arc]:
                lost[arc] = lost.get(arc, 0) + 1
        extra.update(way(plan.backups, row)[1:-1])
    return lost, extra


def check_failure(plan: Plan, links: list[int], others: int) -> None:
    """Assert that no arc takes more than an even share of what the worst-hit arc lost."""
    arcs = np.array([arc for link in links for arc in (2 * link, 2 * link + 1)])
    lost, extra = fallen(plan, arcs)
    most = max(lost.values(), default=0)
    assert max(extra.values(), default=0) <= -(-most // others)


@settings(max_examples=12)
@given(SEEDS, st.integers(2, 7), st.integers(2, 5), st.integers(1, 5), st.sampled_from([1, 1, 2]))
def test_no_failure_falls_on_one_link(
    seed: int, spines: int, leaves: int, sets: int, parallel: int
) -> None:
    """In two healthy tiers, the others take even shares, rounded up, of a lost link or spine."""
    nics = spines * parallel
    fabric = clos(leaves=leaves, spines=spines, nics_per_leaf=nics, parallel=parallel)
    plan = solve(fabric, permutations(fabric, Random(seed), sets))
    links, kind = fabric.structure.links, fabric.structure.nodes.kind
    upper = np.maximum(kind[links.a], kind[links.b])
    others = (spines - 1) * parallel
    for link in np.flatnonzero(upper == NodeKind.SPINE).tolist():
        check_failure(plan, [link], others)
    if parallel == 1:
        for spine in np.flatnonzero(kind == NodeKind.SPINE).tolist():
            beside = np.flatnonzero((links.a == spine) | (links.b == spine)).tolist()
            check_failure(plan, beside, others)


@settings(max_examples=5)
@given(SEEDS)
def test_zones_share_the_promise_at_their_leaves(seed: int) -> None:
    """In healthy zones, links between leaves and spines take even shares of a lost one."""
    fabric = three_tier(zones=2, leaves=4, spines=4, nics_per_leaf=4, cores=4, taper=1.0)
    plan = solve(fabric, permutations(fabric, Random(seed), 2))
    links, kind = fabric.structure.links, fabric.structure.nodes.kind
    ends = np.stack([kind[links.a], kind[links.b]])
    beside_leaf = (ends.min(axis=0) == NodeKind.LEAF) & (ends.max(axis=0) == NodeKind.SPINE)
    for link in np.flatnonzero(beside_leaf).tolist():
        lost, extra = fallen(plan, np.array([2 * link, 2 * link + 1]))
        most = max((n for arc, n in extra.items() if beside_leaf[arc >> 1]), default=0)
        assert most <= -(-max(lost.values(), default=0) // 3)


@settings(max_examples=60)
@given(SEEDS, st.integers(1, 9), st.integers(1, 6), st.integers(0, 60))
def test_ways_are_even_at_every_vertex(seed: int, ways: int, vertices: int, edges: int) -> None:
    """At each vertex of either side, no way is used more than ceil(degree / ways) times."""
    rng = np.random.default_rng(seed)
    left, right = rng.integers(0, vertices, (2, edges))
    way_of = spread(left, right, np.full(edges, ways))
    assert ((way_of >= 0) & (way_of < ways)).all()
    for side in (left, right):
        used = Counter(zip(side.tolist(), way_of.tolist(), strict=True))
        degree = Counter(side.tolist())
        assert all(n <= -(-degree[vertex] // ways) for (vertex, _), n in used.items())
