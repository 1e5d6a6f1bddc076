"""Cheapest ways between many terminals under prices of arcs, over every usable arc.

Dijkstra's algorithm (scipy, compiled), one tree for each terminal that ways leave.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from heddle_controller.model.fabric import NONE, Floats, Ints, NodeKind
from heddle_controller.solve.network import Network

AT_ONCE = 1_000_000
"""Sources times nodes looked at in one go: no other thread runs meanwhile, and memory is finite."""


class CheapestWays:
    """Ways from ``source[i]`` to ``destination[i]``, both nodes, shapes (pairs,).

    No way passes through a NIC: one that is left stands for itself, and one that is reached
    for another.
    """

    def __init__(self, network: Network, source: Ints, destination: Ints) -> None:
        self._network = network
        is_nic = network.level == NodeKind.NIC
        nodes = np.unique(np.concatenate([np.flatnonzero(~is_nic), source, destination]))
        place = np.full(network.fabric.node_count, NONE, dtype=np.int64)
        place[nodes] = np.arange(len(nodes))
        enter, nics = place.copy(), nodes[is_nic[nodes]]
        enter[nics] = len(nodes) + np.arange(len(nics))
        self._source, self._destination = place[source], enter[destination]
        self._size = len(nodes) + len(nics)
        tail, head = place[network.tail], place[network.head]
        arcs = np.flatnonzero(network.usable & (tail != NONE) & (head != NONE))
        tail, head = tail[arcs], enter[network.head[arcs]]
        pair = tail * self._size + head
        order = np.argsort(pair, kind="stable")
        self._arcs, pair = arcs[order], pair[order]
        self._first = np.flatnonzero(np.diff(pair, prepend=-1))
        """Where the arcs of each two neighbours begin: of parallel ones the cheapest counts."""
        self._pair = pair[self._first]
        counts = np.bincount(self._pair // self._size, minlength=self._size)
        self._begin = np.append(0, np.cumsum(counts))

    def costs(self, price: Floats, rows: Ints) -> Floats:
        """Least cost of a way of some pairs; infinite where there is none."""
        return self._trees(price, rows, None)

    def ways(self, price: Floats, rows: Ints) -> tuple[Floats, Ints]:
        """The same, and a way that costs that: arcs, padded, shape (rows, hops)."""
        steps: list[tuple[Ints, Ints]] = []
        cost = self._trees(price, rows, steps)
        owner = np.concatenate([np.empty(0, dtype=np.int64), *(rows for rows, _ in steps)])
        back = np.concatenate([np.empty(0, dtype=np.int64), *(arcs for _, arcs in steps)])
        length = np.bincount(owner, minlength=len(rows))
        paths = np.full((len(rows), int(length.max(initial=0))), self._network.pad, dtype=np.int64)
        order = np.argsort(owner, kind="stable")
        owner, back = owner[order], back[order]
        place = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
        paths[owner, length[owner] - 1 - place] = back
        return cost, paths

    def _trees(self, price: Floats, rows: Ints, steps: list[tuple[Ints, Ints]] | None) -> Floats:
        """Costs; arcs of the ways, last first, are appended to ``steps`` with their rows."""
        cost = np.full(len(rows), np.inf)
        if not len(self._first) or not len(rows):
            return cost
        priced = price[self._arcs]
        least = np.minimum.reduceat(priced, self._first)
        size = self._size
        graph = csr_matrix((least, self._pair % size, self._begin), shape=(size, size))
        sources, of_row = np.unique(self._source[rows], return_inverse=True)
        width = max(1, AT_ONCE // size)
        for low in range(0, len(sources), width):
            own = np.flatnonzero((of_row >= low) & (of_row < low + width))
            part, end = of_row[own] - low, self._destination[rows[own]]
            some = sources[low : low + width]
            if steps is None:
                cost[own] = dijkstra(graph, indices=some)[part, end]
                continue
            distance, before = dijkstra(graph, indices=some, return_predecessors=True)
            cost[own] = distance[part, end]
            self._walk(before.astype(np.int64), self._best(priced, least), (own, part, end), steps)
        return cost

    def _best(self, priced: Floats, least: Floats) -> Ints:
        """The cheapest arc between each two neighbours."""
        counts = np.diff(np.append(self._first, len(priced)))
        cheapest = np.flatnonzero(priced == np.repeat(least, counts))
        pair = np.searchsorted(self._first, cheapest, side="right") - 1
        best = np.empty(len(self._first), dtype=np.int64)
        best[pair[::-1]] = self._arcs[cheapest[::-1]]
        return best

    def _walk(
        self,
        before: Ints,
        best: Ints,
        ends: tuple[Ints, Ints, Ints],
        steps: list[tuple[Ints, Ints]],
    ) -> None:
        """Goes back from the ends of ways; rows, trees and nodes are those of ``ends``."""
        rows, tree, node = ends
        while len(rows):
            last = before[tree, node]
            going = last >= 0
            rows, tree, node, last = rows[going], tree[going], node[going], last[going]
            pair = np.searchsorted(self._pair, last * self._size + node)
            steps.append((rows, best[pair]))
            node = last
