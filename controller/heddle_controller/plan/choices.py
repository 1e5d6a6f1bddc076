"""What a path was chosen from: the shortest paths between its ends, and the best of them.

Shortest paths are walked as the graph of next hops, away from the source, so that
thousands of paths cost no more than the links they share. *Cost* of an arc is its
utilisation if the QPs in question used it; a path is as good as its worst arc.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Floats, Ints
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.load import arc_loads, utilization
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.model.reach import UNREACHED
from heddle_controller.model.underlay import Underlay, underlay


@dataclass(frozen=True, slots=True)
class Choice:
    """The shortest paths between two NICs."""

    count: int
    hops: int
    """Links of each, both NICs' own included; 0 where there is no path."""
    best: float
    """The least worst cost that any of them has."""


def choice(plan: Plan, flow: int, allowed: Bools, cost: Floats) -> Choice:
    """The shortest paths of a flow over the arcs allowed."""
    structure = plan.fabric.structure
    source, destination = int(plan.flows.source[flow]), int(plan.flows.destination[flow])
    ways = underlay(structure, allowed)
    first = _first_arcs(ways, source, destination)
    reached = {source: (1, 0.0)}
    arcs, hops = first, 0
    while len(arcs):
        hops += 1
        reached = _step(structure.tail[arcs], structure.head[arcs], cost[arcs], reached)
        nexts = [ways.next_hops(node, destination) for node in reached if node != destination]
        arcs = np.concatenate([*nexts, np.empty(0, dtype=np.int64)])
    count, best = reached.get(destination, (0, 0.0))
    return Choice(count, hops if count else 0, best)


def _first_arcs(ways: Underlay, source: int, destination: int) -> Ints:
    """Arcs out of a NIC that lead nearest to another."""
    structure, place = ways.structure, int(ways.reach.place[destination])
    first, arcs = structure.out
    own: Ints = arcs[first[source] : first[source + 1]]
    own = own[ways.carries[own]]
    if place == NONE or not len(own):
        return np.empty(0, dtype=np.int64)
    hops = ways.reach.distance[ways.reach.row[structure.head[own]], place]
    nearest: Ints = own[(hops == hops.min()) & (hops != UNREACHED)]
    return nearest


def _step(
    tail: Ints, head: Ints, cost: Floats, reached: dict[int, tuple[int, float]]
) -> dict[int, tuple[int, float]]:
    """Paths to the nodes one link further: how many, and the best one's worst cost."""
    found: dict[int, tuple[int, float]] = {}
    for before, node, own in zip(tail.tolist(), head.tolist(), cost.tolist(), strict=True):
        count, worst = reached[before]
        so_far, best = found.get(node, (0, np.inf))
        found[node] = (so_far + count, min(best, max(worst, own)))
    return found


def cost_of(plan: Plan, path: int, loads: Floats) -> Floats:
    """Utilisation each arc would have with the QPs of one path on it instead, shape (arcs,).

    ``loads`` are the plan's, of each arc. Only what the flow's own job puts on arcs is summed up
    anew, and of a flow that may run at any time not even that.
    """
    flow = int(plan.paths.flow[path])
    if plan.flows.phase[flow] == ANY_PHASE:
        gbps = float(plan.paths.gbps(plan.flows)[path])
        moved = loads + gbps
        moved[plan.paths.of(path)] -= gbps
        return utilization(plan.fabric, moved)
    arcs, own = len(loads), plan.flows.job[plan.paths.flow] == plan.flows.job[flow]
    before = plan.paths.take(np.flatnonzero(own))
    own[path] = False
    rest = plan.paths.take(np.flatnonzero(own))
    # Arcs do not depend on each other, so a path over all of them asks all at once.
    everywhere = Paths(
        flow=np.append(rest.flow, flow),
        first_qp=np.append(rest.first_qp, plan.paths.first_qp[path]),
        last_qp=np.append(rest.last_qp, plan.paths.last_qp[path]),
        first=np.append(rest.first, rest.first[-1] + arcs),
        arcs=np.concatenate([rest.arcs, np.arange(arcs, dtype=np.int64)]),
    )
    change = arc_loads(arcs, plan.flows, everywhere) - arc_loads(arcs, plan.flows, before)
    return utilization(plan.fabric, loads + change)
