"""What a path was chosen from: the shortest paths between its ends, and the best of them.

Shortest paths are walked as the graph of next hops, away from the source, so that
thousands of paths cost no more than the links they share. *Cost* of an arc is its
utilisation if the QPs in question used it; a path is as good as its worst arc.

Who uses which arc of a plan: made once, and asked for every flow that is explained.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, UNREACHED, Floats, Ints, stable_order
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Plan, arc_loads, phased_loads
from heddle_controller.model.underlay import Underlay


@dataclass(frozen=True, slots=True, eq=False)
class ArcUsers:
    """The paths over each arc, and what they come to."""

    loads: Floats
    """Of each arc, Gbit/s."""
    first: Ints
    """Where the paths over each arc begin, shape (arcs + 1,)."""
    paths: Ints
    """Rows in the plan's paths, ascending for each arc."""

    def of(self, arcs: Ints) -> tuple[Ints, Ints]:
        """The uses of some arcs: which of them, by place, and the row of the path."""
        begin = self.first[arcs]
        counts = self.first[arcs + 1] - begin
        ends = np.cumsum(counts)
        place = np.repeat(np.arange(len(arcs)), counts)
        within = np.arange(len(place)) - np.repeat(ends - counts, counts)
        return place, self.paths[np.repeat(begin, counts) + within]


def arc_users(plan: Plan) -> ArcUsers:
    """Those of a plan."""
    arcs = len(plan.fabric.structure.tail)
    counts = np.bincount(plan.paths.arcs, minlength=arcs)
    return ArcUsers(
        loads=arc_loads(arcs, plan.flows, plan.paths),
        first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        paths=plan.paths.owner()[stable_order(plan.paths.arcs)],
    )


_Cost = Callable[[Ints], Floats]
"""Of arcs, each by itself."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The shortest paths between two NICs."""

    count: int
    hops: int
    """Links of each, both NICs' own included; 0 where there is no path."""
    best: float
    """The least worst cost that any of them has."""


def choice(plan: Plan, flow: int, ways: Underlay, cost: _Cost) -> Choice:
    """The shortest paths of a flow over arcs that carry; only these are asked what they cost."""
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


def _next_arcs(ways: Underlay, switches: list[int], destination: int) -> Ints:
    """Arcs by which any of some switches forwards to a NIC; all of them are asked at once."""
    first, arcs = ways.structure.out
    own = [arcs[first[switch] : first[switch + 1]] for switch in switches]
    out = np.concatenate([*own, np.empty(0, dtype=np.int64)])
    return out[ways.forwards(out, np.full(len(out), destination, dtype=np.int64))]


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


def free(arcs: Ints) -> Floats:
    """The cost where only the number of paths is asked for: none."""
    return np.zeros(len(arcs))


def cost_of(plan: Plan, path: int, uses: ArcUsers) -> _Cost:
    """Utilisation that arcs would have with the QPs of one path on them instead.

    Only what the flow's own job puts on the arcs in question is summed up anew, and of a flow
    that may run at any time not even that.
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
    """Rates of some paths, as ``Paths.gbps`` gives those of all."""
    paths, flow = plan.paths, plan.paths.flow[rows]
    qps = paths.last_qp[rows] - paths.first_qp[rows] + 1
    gbps: Floats = plan.flows.gbps[flow] * qps / plan.flows.qps[flow]
    return gbps
