"""The shortest way over some arcs, where no candidate will do."""

from __future__ import annotations

from collections import deque

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import dijkstra

from heddle_controller.model.fabric import Bools, Ints, NodeKind
from heddle_controller.model.plan import starts
from heddle_controller.solve.network import Network


def shortest_way(network: Network, start: int, end: int, allowed: Bools) -> Ints:
    """Arcs of the shortest way from node to node over the arcs allowed; empty if none.

    ``allowed`` has shape (arcs,). NICs other than the ends are no thoroughfares.
    """
    first, arcs = network.fabric.structure.out
    came_by: dict[int, int] = {start: -1}
    queue = deque([start])
    while queue and end not in came_by:
        node = queue.popleft()
        leaving = arcs[first[node] : first[node + 1]]
        for arc in leaving[allowed[leaving]].tolist():
            head = int(network.head[arc])
            through = network.level[head] != NodeKind.NIC or head == end
            if head not in came_by and through:
                came_by[head] = arc
                queue.append(head)
    way: list[int] = []
    while end in came_by and end != start:
        way.append(came_by[end])
        end = int(network.tail[came_by[end]])
    return np.array(way[::-1], dtype=np.int64)


class Graph:
    """The usable arcs of a network, sorted to look for cheapest ways again and again."""

    def __init__(self, network: Network) -> None:
        self._network = network
        usable = np.flatnonzero(network.usable)
        ends = network.tail[usable], network.head[usable]
        order = np.lexsort((ends[1], ends[0]))
        self._arcs: Ints = usable[order]
        tail, head = (end[order] for end in ends)
        beginning = np.append(True, (np.diff(tail) != 0) | (np.diff(head) != 0))[: len(order)]
        self._first: Ints = np.append(np.flatnonzero(beginning), len(order))
        """Where the arcs of each pair of neighbours begin among all."""
        self._tail, self._head = tail[beginning], head[beginning]
        nodes = network.fabric.node_count
        self._rows = starts(np.bincount(self._tail, minlength=nodes))

    def cheapest(self, start: int, end: int, cost: Ints, limit: int) -> Ints:
        """Arcs of the cheapest way from node to node; empty if none is as cheap as the limit.

        ``cost`` is what each arc costs, above 0, shape (arcs,). NICs other than the ends are no
        thoroughfares.
        """
        if not len(self._arcs):
            return self._arcs
        nic = self._network.level == NodeKind.NIC
        barred = (nic[self._tail] & (self._tail != start)) | (nic[self._head] & (self._head != end))
        each = np.minimum.reduceat(cost[self._arcs], self._first[:-1]).astype(np.float64)
        each[barred] = np.inf
        nodes = len(self._rows) - 1
        graph = csr_array((each, self._head, self._rows), shape=(nodes, nodes))
        _, before = dijkstra(  # type: ignore[call-overload]  # its stubs know only graphs of booleans
            graph, indices=start, return_predecessors=True, limit=float(limit)
        )
        way: list[int] = []
        while end != start and (tail := int(before[end])) >= 0:
            low, high = self._rows[tail], self._rows[tail + 1]
            pair = int(low + np.searchsorted(self._head[low:high], end))
            arcs = self._arcs[self._first[pair] : self._first[pair + 1]]
            way.append(int(arcs[cost[arcs].argmin()]))
            end = tail
        return np.array(way[::-1], dtype=np.int64)
