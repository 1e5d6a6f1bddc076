"""Put the heaviest flows first, each on its emptiest path, as job-aware schedulers do.

Jobs are ordered by what they send times their priority, and the flows of a job by size, largest
first. Each flow as a whole takes the equal-cost path whose fullest link it leaves least full. No
choice is ever taken back, which is why a plan does better. Phases are ignored: all flows add up.

The best of all equal-cost paths is found stage by stage, without enumerating paths. A stage is the
set of links one hop further from the source.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths
from heddle_emulator.strategy.ways import EqualCostHops
from heddle_emulator.underlay import Underlay


def greedy_paths(fabric: Fabric, flows: Flows) -> Paths:
    """Return one path for each flow that has any."""
    placing = _Placing(fabric)
    ways = {
        row: placing.place(
            int(flows.source[row]), int(flows.destination[row]), float(flows.gbps[row])
        )
        for row in by_intensity(flows).tolist()
    }
    rows = [row for row in range(len(flows)) if ways[row]]
    lengths = [len(ways[row]) for row in rows]
    flow = np.array(rows, dtype=np.int64)
    return Paths(
        flow=flow,
        first_qp=np.zeros_like(flow),
        last_qp=flows.qps[flow] - 1,
        first=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        arcs=np.array([arc for row in rows for arc in ways[row]], dtype=np.int64),
    )


def by_intensity(flows: Flows) -> Ints:
    """Return the rows of all flows: the job that sends most first, its largest flow first."""
    intensity = np.bincount(
        flows.job, weights=flows.gbps * flows.weight, minlength=len(flows.job_names)
    )
    return np.lexsort((np.arange(len(flows)), -flows.gbps, flows.job, -intensity[flows.job]))


@dataclass(frozen=True, slots=True, eq=False)
class _Stage:
    """The links of equal-cost paths at the same distance from the source."""

    tail: Ints
    """Place of the node that each link leaves, among the nodes of this stage."""
    head: Ints
    """Place of the node that each link enters, among the nodes of the next stage."""
    arc: Ints
    width: int
    """Number of nodes of the next stage."""


class _Placing:
    """The load so far, and the stages between all pairs of ends seen so far."""

    def __init__(self, fabric: Fabric) -> None:
        self._fabric = fabric
        self._ways = EqualCostHops(Underlay(fabric))
        self._load: Floats = np.zeros(2 * fabric.link_count)
        self._stages: dict[tuple[int, int], list[_Stage]] = {}

    def place(self, source: int, destination: int, gbps: float) -> list[int]:
        """Return the arcs of the best path and add the load to them; [] if there is no path."""
        stages = self._between(source, destination)
        if not stages:
            return []
        path = self._best(stages, gbps)
        self._load[path] += gbps
        return path

    def _best(self, stages: list[_Stage], gbps: float) -> list[int]:
        capacity = self._fabric.structure.capacity
        fullest, total = np.zeros(1), np.zeros(1)
        chosen: list[Ints] = []
        for stage in stages:
            used = (self._load[stage.arc] + gbps) / capacity[stage.arc]
            worst = np.maximum(fullest[stage.tail], used)
            added = total[stage.tail] + used
            order = np.lexsort((added, worst, stage.head))
            best = order[np.searchsorted(stage.head[order], np.arange(stage.width))]
            chosen.append(best)
            fullest, total = worst[best], added[best]
        path: list[int] = []
        node = 0
        for stage, best in zip(reversed(stages), reversed(chosen), strict=True):
            link = best[node]
            path.append(int(stage.arc[link]))
            node = int(stage.tail[link])
        return path[::-1]

    def _between(self, source: int, destination: int) -> list[_Stage]:
        found = self._stages.get((source, destination))
        if found is None:
            found = self._stages[source, destination] = self._search(source, destination)
        return found

    def _search(self, source: int, destination: int) -> list[_Stage]:
        nodes = np.array([source], dtype=np.int64)
        stages: list[_Stage] = []
        while not (len(nodes) == 1 and nodes[0] == destination):
            pairs = [self._onward(node, source, destination) for node in nodes.tolist()]
            arcs = np.concatenate(pairs)
            if not len(arcs):
                return []
            tail = np.repeat(np.arange(len(nodes)), [len(pair) for pair in pairs])
            nodes, head = np.unique(self._fabric.structure.head[arcs], return_inverse=True)
            stages.append(_Stage(tail, head, arcs, len(nodes)))
        return stages

    def _onward(self, node: int, source: int, destination: int) -> Ints:
        """Return all arcs that lead on from a node towards the destination NIC."""
        structure = self._fabric.structure
        own = self._ways.underlay.arcs_of(node)
        if node == source:
            return self._nearest(own, destination)
        direct: Ints = own[structure.head[own] == destination]
        if len(direct):
            return direct
        arcs, usable = self._ways.towards(node, np.array([destination]))
        onward: Ints = arcs[usable[:, 0]]
        return onward

    def _nearest(self, arcs: Ints, destination: int) -> Ints:
        """Return a NIC's uplinks to the switches that are nearest to the destination NIC."""
        structure, underlay = self._fabric.structure, self._ways.underlay
        heads = structure.head[arcs]
        group = int(underlay.group[destination])
        switch = structure.nodes.kind[heads] != NodeKind.NIC
        if group == NONE or not switch.any():
            return arcs[:0]
        hops = np.where(switch, underlay.hops[underlay.place[heads], group], np.iinfo(np.int16).max)
        nearest: Ints = arcs[hops == hops.min()]
        return nearest
