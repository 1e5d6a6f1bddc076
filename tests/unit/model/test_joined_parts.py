"""Connected parts are those that networkx finds, numbered by their first nodes."""

from __future__ import annotations

import networkx as nx
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.graphs import joined_parts

SEEDS = st.integers(0, 2**32 - 1)


def check(tails: list[int], heads: list[int], count: int) -> None:
    """Assert that each node has the number of its part, in order of the parts' first nodes."""
    graph = nx.empty_graph(count)
    graph.add_edges_from(zip(tails, heads, strict=True))
    parts = sorted(nx.connected_components(graph), key=min)
    number = {node: place for place, part in enumerate(parts) for node in part}
    found = joined_parts(np.array(tails, dtype=np.int64), np.array(heads, dtype=np.int64), count)
    assert found.tolist() == [number[node] for node in range(count)]


@given(SEEDS, st.integers(1, 60), st.integers(0, 80))
def test_any_graph(seed: int, count: int, edges: int) -> None:
    """Parts of any graph are right, with few or many edges, parallel edges and loops."""
    random = np.random.default_rng(seed)
    tails, heads = random.integers(0, count, (2, edges)).tolist()
    check(tails, heads, count)


@given(SEEDS, st.integers(1, 300))
def test_a_long_chain(seed: int, count: int) -> None:
    """Parts of a long chain are right, with nodes in any order and some links missing."""
    random = np.random.default_rng(seed)
    order = random.permutation(count)
    kept = random.random(count - 1) < 0.95
    check(order[:-1][kept].tolist(), order[1:][kept].tolist(), count)


def test_no_nodes() -> None:
    """A graph of nothing has no parts."""
    check([], [], 0)
