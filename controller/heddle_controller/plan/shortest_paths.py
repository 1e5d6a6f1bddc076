"""The choice behind a path: the shortest paths between its ends, and how good the best one is.

Shortest paths are walked as a graph of next hops, away from the source. So thousands of paths take
no more time than the links that they share. The *cost* of an arc is its utilisation if the QPs in
question used it. A path is as good as its worst arc.

``ArcUsers`` lists the paths over each arc. It is made once for a plan and used for every flow that
is explained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, UNREACHED, Floats, Ints, ranges, stable_order
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Plan, arc_loads, phased_loads
from heddle_controller.model.underlay import Underlay


@dataclass(frozen=True, slots=True, eq=False)
class ArcUsers:
    """The paths over each arc of a plan, and its load."""

    loads: Floats
    """Gbit/s on each arc, shape (arcs,)."""
    first: Ints
    """Where the paths over each arc begin, shape (arcs + 1,)."""
    paths: Ints
    """Rows in the plan's paths, ascending for each arc."""

    def of(self, arcs: Ints) -> tuple[Ints, Ints]:
        """Return the uses of some arcs as pairs: index in ``arcs``, and row of the path."""
        begin, end = self.first[arcs], self.first[arcs + 1]
        return np.repeat(np.arange(len(arcs)), end - begin), self.paths[ranges(begin, end)]


def arc_users(plan: Plan) -> ArcUsers:
    """Return the users of each arc of a plan."""
    arcs = len(plan.fabric.structure.tail)
    counts = np.bincount(plan.paths.arcs, minlength=arcs)
    return ArcUsers(
        loads=arc_loads(arcs, plan.flows, plan.paths),
        first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        paths=plan.paths.owner()[stable_order(plan.paths.arcs)],
    )


_Cost = Callable[[Ints], Floats]
"""Returns the cost of each of some arcs."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The shortest paths between two NICs."""

    count: int
    hops: int
    """Links of each path, both NICs' links included; 0 if there is no path."""
    best: float
    """Cost of the best path, which is the cost of its worst arc."""


def choice(plan: Plan, flow: int, ways: Underlay, cost: _Cost) -> Choice:
    """Return the shortest paths of a flow over the arcs that ``ways`` may use.

    ``cost`` is called only for arcs on these paths.
    """
    structure = plan.fabric.structure
    source, destination = int(plan.flows.source[flow]), int(plan.flows.destination[flow])
    reached = {source: (1, 0.0)}
    arcs, hops = _first_arcs(ways, source, destination), 0
    while len(arcs):
        hops += 1
        reached = _step(structure.tail[arcs], structure.head[arcs], cost(arcs), reached)
        arcs = _next_arcs(ways, [node for node in reached if node != destination], destination)
    count, best = reached.get(destination, (0, 0.0))
    return Choice(count, hops if count else 0, best)


def _first_arcs(ways: Underlay, source: int, destination: int) -> Ints:
    """Return the arcs out of the source NIC that begin a shortest way to the destination."""
    structure, place = ways.structure, int(ways.reach.place[destination])
    own = structure.leaving(source)
    own = own[ways.carries[own]]
    if place == NONE or not len(own):
        return np.empty(0, dtype=np.int64)
    hops = ways.reach.distance[ways.reach.row[structure.head[own]], place]
    nearest: Ints = own[(hops == hops.min()) & (hops != UNREACHED)]
    return nearest


def _next_arcs(ways: Underlay, switches: list[int], destination: int) -> Ints:
    """Return the arcs by which some switches forward packets to a NIC."""
    own = [ways.structure.leaving(switch) for switch in switches]
    out = np.concatenate([*own, np.empty(0, dtype=np.int64)])
    return out[ways.forwards(out, np.full(len(out), destination, dtype=np.int64))]


def _step(
    tail: Ints, head: Ints, cost: Floats, reached: dict[int, tuple[int, float]]
) -> dict[int, tuple[int, float]]:
    """Return, for each node one link further, the number of paths and the cost of the best."""
    found: dict[int, tuple[int, float]] = {}
    for before, node, own in zip(tail.tolist(), head.tolist(), cost.tolist(), strict=True):
        count, worst = reached[before]
        so_far, best = found.get(node, (0, np.inf))
        found[node] = (so_far + count, min(best, max(worst, own)))
    return found


def free(arcs: Ints) -> Floats:
    """Return a cost of 0 for each arc, for callers who only want the number of paths."""
    return np.zeros(len(arcs))


def cost_of(plan: Plan, path: int, uses: ArcUsers) -> _Cost:
    """Return a function for the utilisation of arcs if the QPs of one path moved to them.

    It sums up again only what the flow's own job puts on these arcs. For a flow that may run at any
    time, even this is not needed.
    """
    flow, own_arcs = int(plan.paths.flow[path]), plan.paths.of(path)
    (own_gbps,) = _gbps(plan, np.array([path]))
    capacity = plan.fabric.structure.capacity

    def steady(arcs: Ints) -> Floats:
        moved = uses.loads[arcs] + own_gbps
        moved[(arcs[:, None] == own_arcs).any(axis=1)] -= own_gbps
        utilization: Floats = moved / capacity[arcs]
        return utilization

    def phased(arcs: Ints) -> Floats:
        place, row = uses.of(arcs)
        own = plan.flows.job[plan.paths.flow[row]] == plan.flows.job[flow]
        before = _summed(place[own], row[own], len(arcs))
        own &= row != path
        every = np.arange(len(arcs))
        after = _summed(
            np.append(place[own], every), np.append(row[own], np.full(len(arcs), path)), len(arcs)
        )
        utilization: Floats = (uses.loads[arcs] + after - before) / capacity[arcs]
        return utilization

    def _summed(place: Ints, row: Ints, count: int) -> Floats:
        of = plan.paths.flow[row]
        return phased_loads(
            count, place, _gbps(plan, row), plan.flows.job[of], plan.flows.phase[of]
        )

    return steady if plan.flows.phase[flow] == ANY_PHASE else phased


def _gbps(plan: Plan, rows: Ints) -> Floats:
    """Return the rates of some paths in Gbit/s."""
    paths, flow = plan.paths, plan.paths.flow[rows]
    qps = paths.last_qp[rows] - paths.first_qp[rows] + 1
    gbps: Floats = plan.flows.gbps[flow] * qps / plan.flows.qps[flow]
    return gbps
