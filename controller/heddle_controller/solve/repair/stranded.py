"""Flows that have no way left but through links in maintenance.

A drained link still carries and takes nothing new. A flow that stood on one moves as
soon as there is another way; where there is none it stays, since maintenance is not
the same as down: to take its path away would lose what the operator did not ask to
lose. It may even change its path, but never on to a drained link that it was not on.
A flow that never had a path gets none over drained links, in a repair as in a plan
made anew.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import NONE, Ints
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, join_paths, no_paths, starts
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.detour import shortest_way
from heddle_controller.solve.network import Network


def stranded_flows(candidates: Candidates, flows: Flows, homeless: Ints) -> Ints:
    """Those of some flows, ascending, that no link which takes new paths could carry."""
    terminal = candidates.network.terminal

    def has_way(flow: int) -> bool:
        ends = int(terminal[flows.source[flow]]), int(terminal[flows.destination[flow]])
        return NONE not in ends and len(candidates.between(*ends)) > 0

    rows = [flow for flow in np.unique(homeless).tolist() if not has_way(flow)]
    return np.array(rows, dtype=np.int64)


def stay_put(carried: Paths, network: Network, flows: Flows, stranded: Ints) -> Paths:
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
        ways = paths.take(np.where(dead, np.flatnonzero(~dead)[0], row))
        return Paths(paths.flow, paths.first_qp, paths.last_qp, ways.first, ways.arcs)
    flow = paths.flow[:1]
    held = paths.arcs[carries[paths.arcs]]
    allowed = network.usable.copy()
    allowed[held] = True
    ends = int(flows.source[flow[0]]), int(flows.destination[flow[0]])
    way = shortest_way(network, *ends, allowed)
    if not len(way):
        return no_paths()
    first = starts(np.array([len(way)], dtype=np.int64))
    return Paths(flow, np.zeros_like(flow), flows.qps[flow] - 1, first, way)
