"""The shortest way over some arcs, where no candidate will do."""

from __future__ import annotations

from collections import deque

import numpy as np

from heddle_controller.model.fabric import Bools, Ints, NodeKind
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
