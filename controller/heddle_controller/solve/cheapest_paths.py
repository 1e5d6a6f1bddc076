"""Cheapest paths between terminals under prices of arcs, over all usable arcs.

Uses Dijkstra's algorithm (scipy, compiled), with one tree for each terminal that paths leave.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints
from heddle_controller.model.fabric import NodeKind
from heddle_controller.solve.network import Network

_AT_ONCE = 1_000_000
"""Most sources times nodes in one call. No other thread runs during a call, and memory is
finite."""


class CheapestPaths:
    """The usable arcs of a network, sorted to find cheapest paths between terminals.

    A path begins and ends at switches or at NICs with several links, and passes through no other
    NIC. So each such NIC is two nodes here: one that paths leave and one that they enter.
    """

    def __init__(self, network: Network) -> None:
        self._network = network
        ends = np.flatnonzero((network.level != NodeKind.NIC) | network.several)
        nics = ends[network.several[ends]]
        self._leave = np.full(network.fabric.node_count, NONE, dtype=np.int64)
        self._leave[ends] = np.arange(len(ends))
        self._enter = self._leave.copy()
        self._enter[nics] = len(ends) + np.arange(len(nics))
        self._size = len(ends) + len(nics)
        tail, head = self._leave[network.tail], self._enter[network.head]
        arcs = np.flatnonzero(network.usable & (tail != NONE) & (head != NONE))
        pair = tail[arcs] * self._size + head[arcs]
        order = np.argsort(pair, kind="stable")
        self._arcs, pair = arcs[order], pair[order]
        self._first = np.flatnonzero(np.diff(pair, prepend=-1))
        """Where the arcs between each two neighbours begin. Of parallel arcs the cheapest
        counts."""
        self._pair = pair[self._first]
        counts = np.bincount(self._pair // self._size, minlength=self._size)
        self._begin = np.append(0, np.cumsum(counts))

    def costs(self, price: Floats, source: Ints, destination: Ints) -> Floats:
        """Return the least cost of a path for each pair of terminals; infinite where there is none.

        Args:
            price: Cost of each arc, 0 or more, shape (arcs,).
            source: Node where each path begins, shape (pairs,).
            destination: Node where it ends, different from the source, shape (pairs,).
        """
        return self._trees(price, (source, destination), None, np.inf)

    def paths(
        self, price: Floats, source: Ints, destination: Ints, limit: float = np.inf
    ) -> tuple[Floats, Ints]:
        """Return the least costs, as ``costs`` does, and a path of that cost for each pair.

        Paths are rows of arcs, padded, shape (pairs, hops). Paths that cost more than ``limit``
        count as none.
        """
        steps: list[tuple[Ints, Ints]] = []
        cost = self._trees(price, (source, destination), steps, limit)
        owner = np.concatenate([np.empty(0, dtype=np.int64), *(rows for rows, _ in steps)])
        back = np.concatenate([np.empty(0, dtype=np.int64), *(arcs for _, arcs in steps)])
        length = np.bincount(owner, minlength=len(source))
        paths = np.full(
            (len(source), int(length.max(initial=0))), self._network.pad, dtype=np.int64
        )
        order = np.argsort(owner, kind="stable")
        owner, back = owner[order], back[order]
        place = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
        paths[owner, length[owner] - 1 - place] = back
        return cost, paths

    def _trees(
        self,
        price: Floats,
        pairs: tuple[Ints, Ints],
        steps: list[tuple[Ints, Ints]] | None,
        limit: float,
    ) -> Floats:
        """Return costs, and append the arcs of paths to ``steps`` unless it is None.

        Arcs come with the rows of their paths, the last arc of each path first.
        """
        source, destination = self._leave[pairs[0]], self._enter[pairs[1]]
        cost = np.full(len(source), np.inf)
        if not len(self._first) or not len(source):
            return cost
        priced = price[self._arcs]
        least = np.minimum.reduceat(priced, self._first)
        size = self._size
        from scipy.sparse import csr_matrix  # noqa: PLC0415 - see model.graphs
        from scipy.sparse.csgraph import dijkstra  # noqa: PLC0415 - see model.graphs

        graph = csr_matrix((least, self._pair % size, self._begin), shape=(size, size))
        sources, of_row = np.unique(source, return_inverse=True)
        width = max(1, _AT_ONCE // size)
        for low in range(0, len(sources), width):
            own = np.flatnonzero((of_row >= low) & (of_row < low + width))
            part, end = of_row[own] - low, destination[own]
            some = sources[low : low + width]
            if steps is None:
                cost[own] = dijkstra(graph, indices=some)[part, end]
                continue
            distance, before = dijkstra(graph, indices=some, return_predecessors=True, limit=limit)
            cost[own] = distance[part, end]
            self._walk(before.astype(np.int64), self._best(priced, least), (own, part, end), steps)
        return cost

    def _best(self, priced: Floats, least: Floats) -> Ints:
        """Return the cheapest arc between each two neighbours."""
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
        """Follow paths back from their ends. ``ends`` has the row, tree and node of each path."""
        rows, tree, node = ends
        while len(rows):
            last = before[tree, node]
            going = last >= 0
            rows, tree, node, last = rows[going], tree[going], node[going], last[going]
            pair = np.searchsorted(self._pair, last * self._size + node)
            steps.append((rows, best[pair]))
            node = last
