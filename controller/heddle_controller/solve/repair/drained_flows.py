"""Flows that have no path left but through links in maintenance.

A drained link still carries and takes nothing new. A flow that stood on one moves as
soon as there is another path; where there is none it stays, since maintenance is not
the same as down: to take its path away would lose what the operator did not ask to
lose. It may even change its path, but never on to a drained link that it was not on.
A flow that never had a path gets none over drained links, in a repair as in a plan
made anew.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, starts
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, join_paths, no_paths
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.network import Network


def stranded_flows(candidates: Candidates, flows: Flows, homeless: Ints) -> Ints:
    """Those of some flows, ascending, that no link which takes new paths could carry."""
    terminal = candidates.network.terminal

    def has_path(flow: int) -> bool:
        ends = int(terminal[flows.source[flow]]), int(terminal[flows.destination[flow]])
        return NONE not in ends and len(candidates.between(*ends)) > 0

    rows = [flow for flow in np.unique(homeless).tolist() if not has_path(flow)]
    return np.array(rows, dtype=np.int64)


def keep_stranded(carried: Paths, network: Network, flows: Flows, stranded: Ints) -> Paths:
    """Paths, from NIC to NIC, of the stranded flows that may stay, with all their QPs.

    ``carried`` are the earlier paths in the rows of now (``carry.carried``). QPs whose
    path is dead join the flow's first path that is not.
    """
    kept = [
        _of_flow(carried.take(np.flatnonzero(carried.flow == flow)), network, flows)
        for flow in stranded[np.isin(stranded, carried.flow)].tolist()
    ]
    return join_paths([no_paths(), *kept])


def _of_flow(paths: Paths, network: Network, flows: Flows) -> Paths:
    carries = np.append(network.fabric.carries, False)
    dead = paths.crosses(~carries)
    if not dead.all():
        row = np.arange(len(paths), dtype=np.int64)
        living = paths.take(np.where(dead, np.flatnonzero(~dead)[0], row))
        return Paths(paths.flow, paths.first_qp, paths.last_qp, living.first, living.arcs)
    flow = paths.flow[:1]
    held = paths.arcs[carries[paths.arcs]]
    allowed = network.usable.copy()
    allowed[held] = True
    ends = int(flows.source[flow[0]]), int(flows.destination[flow[0]])
    path = _shortest_path(network, *ends, allowed)
    if not len(path):
        return no_paths()
    first = starts(np.array([len(path)], dtype=np.int64))
    return Paths(flow, np.zeros_like(flow), flows.qps[flow] - 1, first, path)


def _shortest_path(network: Network, start: int, end: int, allowed: Bools) -> Ints:
    """Arcs of the shortest path from node to node over the arcs allowed; empty if none.

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
    path: list[int] = []
    while end in came_by and end != start:
        path.append(came_by[end])
        end = int(network.tail[came_by[end]])
    return np.array(path[::-1], dtype=np.int64)
