"""A plan from the one before: only what must move moves.

Flows of both plans that are equal in all but their row keep their paths, as long
as these are still usable; the rest (flows over a lost link, new flows) is placed
where it weighs least, and then the search makes room where that overfills an arc
*because of the change*: arcs that were fuller than the bound before stay as they
are, since moving flows that nothing happened to is what repair is there to avoid.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Fabric, Floats, Ints
from heddle_controller.model.flows import Flows
from heddle_controller.model.load import arc_loads, utilization
from heddle_controller.model.plan import Plan
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.attempt import Problem
from heddle_controller.solve.bound import Bound
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.cuts import cut_bound
from heddle_controller.solve.export import paths_of
from heddle_controller.solve.greedy import place_greedily
from heddle_controller.solve.network import Network
from heddle_controller.solve.options import Options
from heddle_controller.solve.planes import Planes
from heddle_controller.solve.planner import attached, finished_plan
from heddle_controller.solve.search import Search, Target


class Repairer:
    """Holds a plan, ready to be repaired after the next change."""

    def __init__(self, previous: Plan, options: Options | None = None) -> None:
        self.previous = previous
        self.options = options or Options()
        fabric = previous.fabric
        loads = arc_loads(2 * fabric.link_count, previous.flows, previous.paths)
        self._worst_tiers: Floats = np.zeros(len(fabric.structure.tiers))
        np.maximum.at(self._worst_tiers, fabric.structure.tier_of_arc, utilization(fabric, loads))

    def repair(self, fabric: Fabric, flows: Flows) -> Plan:
        """A plan for the fabric and flows as they are now; the one held is unchanged."""
        network = Network(fabric)
        routed = attached(network, flows)
        problem = Problem(
            network,
            Candidates(network, self.options.candidate_limit),
            Planes(network) if network.tiered else None,
            flows,
            routed,
            cut_bound(network, flows, routed),
            self.options.deadline(),
        )
        assignment = Assignment(network, flows)
        homeless = self._keep(assignment)
        search = Search(
            assignment, problem.candidates, self._target(fabric, problem.bound), problem.deadline
        )
        flow, first_qp, last_qp = (column[routed[homeless[0]]] for column in homeless)
        problem.exclude(place_greedily(search, flow, first_qp, last_qp))
        search.run()
        return finished_plan(problem, paths_of(assignment, renumber=False))

    def _target(self, fabric: Fabric, bound: Bound) -> Target:
        """The bound, or what each tier had before: what has not got worse stays."""
        tiers = bound.tiers
        if fabric.structure.tiers == self.previous.fabric.structure.tiers:
            tiers = np.maximum(tiers, self._worst_tiers)
        overall = max(bound.overall, float(tiers.max(initial=0.0)))
        return Target(np.maximum(tiers, min(overall, 1.0)), overall)

    def _keep(self, assignment: Assignment) -> tuple[Ints, Ints, Ints]:
        """Loads the paths that still hold; returns the QPs that have none, as columns."""
        flows, paths = assignment.flows, self.previous.paths
        row_now = _rows_now(self.previous.flows, flows)
        arc_now = _arcs_now(self.previous.fabric, assignment.network.fabric)
        flow, arcs = row_now[paths.flow], arc_now[paths.arcs]
        broken = np.zeros(len(paths), dtype=np.bool_)
        usable = np.append(assignment.network.usable, False)
        broken[paths.owner()[~usable[arcs]]] = True
        keep = (flow != NONE) & ~broken
        inner = np.zeros(assignment.network.arc_count + 1, dtype=np.bool_)
        inner[:-1] = _choice_arcs(assignment.network)
        rows = np.flatnonzero(keep)
        pieces = [arcs[paths.first[r] : paths.first[r + 1]] for r in rows.tolist()]
        assignment.load_chunks(
            flow[rows], paths.first_qp[rows], paths.last_qp[rows], [p[inner[p]] for p in pieces]
        )
        return _without_path(flows, flow[rows], paths.first_qp[rows], paths.last_qp[rows])


def _choice_arcs(network: Network) -> Bools:
    """Arcs that an assignment keeps: all but those of single-homed NICs."""
    single = network.nic_arc[network.nic_arc != NONE]
    choice = np.ones(network.arc_count, dtype=np.bool_)
    choice[single] = False
    choice[single ^ 1] = False
    return choice


def _rows_now(before: Flows, now: Flows) -> Ints:
    """Row that each earlier flow has now; ``NONE`` where it is gone or has changed.

    Ends are compared by the caller's arcs: a path that no longer leads from source
    to destination is one of another fabric and breaks there.
    """
    if before is now:
        return np.arange(len(now), dtype=np.int64)
    row = {flow: number for number, flow in enumerate(now.ids)}
    rows = np.array([row.get(flow, NONE) for flow in before.ids], dtype=np.int64)
    found = rows != NONE
    same = before.qps[found] == now.qps[rows[found]]
    rows[np.flatnonzero(found)[~same]] = NONE
    return rows


def _arcs_now(before: Fabric, now: Fabric) -> Ints:
    """Arc that each earlier arc is now; the last, unusable one where it is gone."""
    if before.structure is now.structure:
        return np.arange(2 * now.link_count, dtype=np.int64)
    name = _link_names(now)
    row = {ends: number for number, ends in enumerate(name)}
    arcs = np.full(2 * before.link_count, 2 * now.link_count, dtype=np.int64)
    for number, (a, b, key) in enumerate(_link_names(before)):
        if (a, b, key) in row:
            arcs[2 * number] = 2 * row[a, b, key]
            arcs[2 * number + 1] = 2 * row[a, b, key] + 1
        elif (b, a, key) in row:
            arcs[2 * number] = 2 * row[b, a, key] + 1
            arcs[2 * number + 1] = 2 * row[b, a, key]
    return arcs


def _link_names(fabric: Fabric) -> list[tuple[str, str, str]]:
    ids, links = fabric.structure.nodes.ids, fabric.structure.links
    ends = zip(links.a.tolist(), links.b.tolist(), links.key, strict=True)
    return [(ids[a], ids[b], str(key)) for a, b, key in ends]


def _without_path(
    flows: Flows, flow: Ints, first_qp: Ints, last_qp: Ints
) -> tuple[Ints, Ints, Ints]:
    """Ranges of QPs that none of the given ranges holds, as columns."""
    held = np.bincount(flow, weights=last_qp - first_qp + 1, minlength=len(flows))
    missing: list[tuple[int, int, int]] = []
    for row in np.flatnonzero(held < flows.qps).tolist():
        ranges = np.flatnonzero(flow == row).tolist() if held[row] else []
        following = 0
        for place in sorted(ranges, key=lambda r: int(first_qp[r])):
            if first_qp[place] > following:
                missing.append((row, following, int(first_qp[place]) - 1))
            following = int(last_qp[place]) + 1
        if following < flows.qps[row]:
            missing.append((row, following, int(flows.qps[row]) - 1))
    columns = np.array(missing, dtype=np.int64).reshape(-1, 3)
    return columns[:, 0], columns[:, 1], columns[:, 2]
