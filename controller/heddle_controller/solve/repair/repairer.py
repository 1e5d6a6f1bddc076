"""Makes the next plan from the one before and moves only what must move.

Paths that still work stay. Flows that lost their path, or never had one, are placed where they add
least. Then the search makes room, but only on arcs that would otherwise be fuller than the bound
*and* fuller than anything in their tier was before. The purpose of a repair is to leave alone the
flows that nothing happened to.

Usually nothing is rebuilt: ``IncrementalPlan`` keeps the plan's loads and indexes, and the work is
in proportion to what was lost or added.

A drained link still carries its flows but takes no new ones. A flow on a drained link moves as soon
as there is another path. Without another path it stays: maintenance is not the same as down, and
the operator did not ask to lose a path. Such a flow may change its path, but never to a drained
link that it was not on before. A flow that never had a path gets none over drained links, neither
in a repair nor in a plan made from scratch.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, distinct, starts
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.kept import rows_by_id
from heddle_controller.model.plan import Paths, Plan, arc_loads, join_paths, no_paths, utilization
from heddle_controller.solve.assignment import Assignment, exported_paths, inner_paths
from heddle_controller.solve.attempt import PlanningProblem
from heddle_controller.solve.bounds.cuts import Bound, cut_bound
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.colouring.planes import Planes, coloured_paths
from heddle_controller.solve.fairness.balance import balance_qps
from heddle_controller.solve.network import Network, attached
from heddle_controller.solve.options import Options
from heddle_controller.solve.phases import copied
from heddle_controller.solve.planner import finished_plan, solve
from heddle_controller.solve.repair.few_moves import few_moves
from heddle_controller.solve.repair.incremental_plan import IncrementalPlan
from heddle_controller.solve.search.search import LoadTarget, Search, place_greedily
from heddle_controller.solve.tables import is_told_anew, limited, short_of_ports


def stranded_flows(candidates: Candidates, flows: Flows, homeless: Ints) -> Ints:
    """Return the flows of ``homeless``, ascending, that have no path over links open to new paths.

    Drained links take no new paths.
    """
    terminal = candidates.network.terminal

    def has_path(flow: int) -> bool:
        ends = int(terminal[flows.source[flow]]), int(terminal[flows.destination[flow]])
        return NONE not in ends and len(candidates.between(*ends)) > 0

    rows = [flow for flow in distinct(homeless).tolist() if not has_path(flow)]
    return np.array(rows, dtype=np.int64)


def keep_stranded(carried: Paths, network: Network, flows: Flows, stranded: Ints) -> Paths:
    """Return paths from NIC to NIC for all QPs of the stranded flows that can keep one.

    Args:
        carried: The earlier paths with current flow rows and arcs (``carried``).
        network: The current network.
        flows: The current flows.
        stranded: Rows of flows that only drained links could carry.

    Returns:
        QPs whose path is dead join the flow's first path that is not. If all are dead, the flow
        gets the shortest path over usable links and over drained links that it was on. A flow
        without such a path is left out.
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
    """Return the arcs of the shortest path between two nodes; empty if there is none.

    ``allowed`` marks the arcs that may be used, shape (arcs,). Paths do not pass through NICs.
    """
    came_by: dict[int, int] = {start: -1}
    queue = deque([start])
    while queue and end not in came_by:
        node = queue.popleft()
        leaving = network.fabric.structure.leaving(node)
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


_MANY = 64
"""With at least this many flows without a path, they are coloured among themselves first."""


class Repairer:
    """Holds the newest plan and repairs it after each change."""

    def __init__(self, previous: Plan, options: Options | None = None) -> None:
        self.options = options or Options()
        self.plan = previous
        """The newest plan: at first the given one, then the last that a method made."""
        self._known: tuple[Network, Planes | None] | None = None
        self._incremental: IncrementalPlan | None = self._indexed()

    def copy(self, *, backups: bool = True) -> Repairer:
        """Return a copy, whose repairs do not change this one.

        Without ``backups``, the paths that an incremental repair of the copy makes have no backups.
        """
        indexed = self._incremental and self._incremental.copy(backups=backups)
        return copied(self, _incremental=indexed)

    def beside(self, fabric: Fabric, flows: Flows) -> tuple[Plan, bool] | None:
        """Return the plan with one new job added while all other flows keep their paths.

        Also returns whether ``repair`` would give the same plan. The newest plan does not change.
        Returns None where only the repair of a copy can tell.
        """
        indexed = self._incremental
        return None if indexed is None else indexed.beside(fabric, flows, self.options)

    def repair(self, fabric: Fabric, flows: Flows) -> Plan:
        """Return a plan for the given fabric and flows, and hold it as the newest plan."""
        incremental, mended = self._incremental or self._indexed(), None
        self._incremental = None  # so that changed indexes are not used again if this fails
        incremental.take_flows(fabric, flows)
        if incremental.can_repair(fabric, flows):
            mended = incremental.repair(fabric, flows, self.options)
        if mended is not None:
            self._incremental, self.plan = incremental, mended
            return mended
        self._known = incremental.network, incremental.planes
        tied = short_of_ports(flows).any()  # flows that share a port must share a path
        self.plan = (
            self._replanned(fabric, flows)
            if not tied
            else plan_by_entries(fabric, flows, self.plan, self.options)
        )
        return self.plan

    def restored(self, worth: float, options: Options) -> Plan:
        """Return the newest plan, improved if a plan from scratch could be better by ``worth``.

        A few flows are moved first. If that is not enough, or if limited tables leave flows without
        a path, a plan is made from scratch with ``options``. If it is better by the share ``worth``
        (``Plan.beats``), it replaces the newest plan, unless a plan that ``few_moves``
        yields is as good up to that share. The result is held as the newest plan.
        """
        crowded = bool(self.plan.unrouted) and bool(limited(self.plan.fabric).any())
        if not crowded and not self.plan.certificate.within(worth):
            self.relieved()
        if crowded or not self.plan.certificate.within(worth):
            fresh = plan_by_entries(self.plan.fabric, self.plan.flows, self.plan, options)
            if fresh.beats(self.plan, worth):
                enough = (
                    other
                    for other in few_moves(self.plan, options)
                    if not fresh.beats(other, worth)
                )
                self._incremental, self.plan = None, next(enough, fresh)
        return self.plan

    def relieved(self) -> Plan | None:
        """Bring the newest plan to its bound by moving a few flows, and hold and return the result.

        Returns None if a little effort does not achieve this. The newest plan then stays.
        """
        tried = None if self._incremental is None else self._incremental.copy()
        plan = None if tried is None else tried.relieve(self.options)
        if plan is not None:
            self._incremental, self.plan = tried, plan
        return plan

    def is_ready_for(self, plan: Plan) -> bool:
        """Whether the next repair begins with this very plan object and has its indexes built."""
        return self.plan is plan and self._incremental is not None

    def _indexed(self) -> IncrementalPlan:
        incremental = IncrementalPlan(self.plan, *self._network(self.plan.fabric))
        incremental.warm_up(self.options)
        return incremental

    def _network(self, fabric: Fabric) -> tuple[Network, Planes | None]:
        """Return network and planes of a fabric; the known ones if no link or switch changed."""
        known = self._known
        if known is None or not _alike(known[0].fabric, fabric):
            network = Network(fabric)
            known = self._known = network, Planes(network) if network.tiered else None
        return known

    def _replanned(self, fabric: Fabric, flows: Flows) -> Plan:
        network, planes = self._network(fabric)
        candidates = Candidates(network, self.options.candidate_limit)
        routed = attached(network, flows)
        every = carried(self.plan, network, flows)
        kept, homeless = carry_over(every, candidates, flows)
        stranded = stranded_flows(candidates, flows, np.intersect1d(homeless[0], every.flow))
        staying = keep_stranded(every, network, flows, stranded)
        routed[stranded] = False  # they have no choice of path, so bounds ignore them
        bound, deadline = cut_bound(network, flows, routed), self.options.deadline()
        problem = PlanningProblem(network, candidates, planes, flows, routed, bound, deadline)
        problem.notes = tuple(note for note in self.plan.notes if not is_told_anew(note))
        flow, first_qp, last_qp = (column[routed[homeless[0]]] for column in homeless)
        movable = frozenset(flow.tolist())
        if problem.planes and len(flow) >= _MANY:
            whole = flow[last_qp - first_qp + 1 == flows.qps[flow]]
            coloured = coloured_paths(problem.planes, flows, whole)
            kept = join_paths([kept, coloured])
            rest = np.isin(flow, coloured.flow, invert=True)
            flow, first_qp, last_qp = flow[rest], first_qp[rest], last_qp[rest]
        assignment = Assignment(network, flows)
        assignment.load_chunks(kept)
        for row, gbps in enumerate(staying.gbps(flows).tolist()):
            assignment.add(int(staying.flow[row]), gbps, staying.of(row))
        target = _no_worse(self.plan, fabric, problem.bound)
        search = Search(assignment, problem.candidates, target, problem.deadline)
        problem.exclude(place_greedily(search, flow, first_qp, last_qp))
        search.run_sparing(movable)
        balance_qps(search, movable)
        paths = join_paths([exported_paths(assignment, renumber=False), staying])
        return finished_plan(problem, paths.take(np.argsort(paths.flow, kind="stable")))


def plan_by_entries(
    fabric: Fabric, flows: Flows, before: Plan | None = None, options: Options | None = None
) -> Plan:
    """Make a plan from scratch, but keep flows on drained links if they have no other path.

    Only flows that have a path in the plan ``before`` are kept in this way.
    """
    plan = solve(fabric, flows, options)
    if before is None or not plan.unrouted:
        return plan
    options = options or Options()
    network = Network(fabric)
    candidates = Candidates(network, options.candidate_limit)
    every = carried(before, network, flows)
    bare = np.intersect1d(every.flow, np.array([*plan.unrouted], dtype=np.int64))
    stranded = stranded_flows(candidates, flows, bare)
    staying = keep_stranded(every, network, flows, stranded)
    if not len(staying):
        return plan
    routed = np.bincount(plan.paths.flow, minlength=len(flows)) > 0
    tiers = np.array([tier.lower_bound for tier in plan.certificate.tiers])
    bound = Bound(tiers, plan.certificate.lower_bound, plan.certificate.proof)
    planes = Planes(network) if network.tiered else None
    deadline = options.deadline()
    problem = PlanningProblem(network, candidates, planes, flows, routed, bound, deadline)
    problem.notes = plan.notes
    paths = join_paths([plan.paths, staying])
    whole = finished_plan(problem, paths.take(np.argsort(paths.flow, kind="stable")))
    unrouted = {row: plan.unrouted.get(row, why) for row, why in whole.unrouted.items()}
    return replace(whole, unrouted=unrouted)


def _alike(one: Fabric, other: Fabric) -> bool:
    """Whether two fabrics share their structure and the states of all links and switches."""
    states = ((one.link_state, other.link_state), (one.node_state, other.node_state))
    return one.structure is other.structure and all(np.array_equal(a, b) for a, b in states)


def _no_worse(plan: Plan, fabric: Fabric, bound: Bound) -> LoadTarget:
    """Return a target of the bound, or of each tier's load in an earlier plan if that is more."""
    tiers, structure = bound.aims, plan.fabric.structure
    if fabric.structure.tiers == structure.tiers:
        loads = arc_loads(len(structure.tail), plan.flows, plan.paths)
        tiers = np.maximum(tiers, structure.worst_by_tier(utilization(plan.fabric, loads)))
    overall = max(bound.overall, float(tiers.max(initial=0.0)))
    return LoadTarget(np.maximum(tiers, min(overall, 1.0)), overall)


def carried(previous: Plan, network: Network, flows: Flows) -> Paths:
    """Return the earlier paths of all flows that still exist unchanged, with current numbers.

    Paths over links that are down are included. Flow rows and arcs are the current ones. An arc
    that no longer exists gets the number one past the last arc. A flow is unchanged if its ID, its
    ends and its number of QPs are.
    """
    paths = previous.paths
    flow = rows_now(previous, network.fabric, flows)[paths.flow]
    arcs = _arcs_now(previous.fabric, network.fabric)[paths.arcs]
    every = Paths(flow, paths.first_qp, paths.last_qp, paths.first, arcs)
    return every if (flow != NONE).all() else every.take(np.flatnonzero(flow != NONE))


def carry_over(
    every: Paths, candidates: Candidates, flows: Flows
) -> tuple[Paths, tuple[Ints, Ints, Ints]]:
    """Return the paths that still work, between terminals, and the ranges of QPs without one.

    ``every`` is the result of ``carried``. A path works if every arc of it is usable, and if its
    class allows its length. The ranges are three columns: flow row, first and last QP.
    """
    network = candidates.network
    unusable = ~np.append(network.usable, False)
    kept = inner_paths(network, every.take(np.flatnonzero(~every.crosses(unusable))))
    staying = np.ones(len(kept), dtype=np.bool_)
    staying[candidates.detours(flows, kept)] = False
    kept = kept.take(np.flatnonzero(staying))
    return kept, _without_path(flows, kept)


def rows_now(previous: Plan, fabric: Fabric, flows: Flows) -> Ints:
    """Return the current row of each earlier flow.

    ``NONE`` stands for a flow that is gone, or whose ends or number of QPs changed.
    """
    before = previous.flows
    rows = rows_by_id(before, flows)
    node_now = np.arange(fabric.node_count, dtype=np.int64)
    if previous.fabric.structure is not fabric.structure:
        index = fabric.structure.index
        ids = previous.fabric.structure.nodes.ids
        node_now = np.array([index.get(node, NONE) for node in ids], dtype=np.int64)
    found = np.flatnonzero(rows != NONE)
    now = rows[found]
    same = (
        (before.qps[found] == flows.qps[now])
        & (node_now[before.source[found]] == flows.source[now])
        & (node_now[before.destination[found]] == flows.destination[now])
    )
    rows[found[~same]] = NONE
    return rows


def _arcs_now(before: Fabric, now: Fabric) -> Ints:
    """Return the current number of each earlier arc; one past the last arc where it is gone."""
    if before.structure is now.structure:
        return np.arange(2 * now.link_count, dtype=np.int64)
    row = {ends: number for number, ends in enumerate(_link_names(now))}
    arcs = np.full(2 * before.link_count, 2 * now.link_count, dtype=np.int64)
    for number, (a, b, key) in enumerate(_link_names(before)):
        if (a, b, key) in row:
            arcs[2 * number : 2 * number + 2] = 2 * row[a, b, key] + np.arange(2)
        elif (b, a, key) in row:
            arcs[2 * number : 2 * number + 2] = 2 * row[b, a, key] + 1 - np.arange(2)
    return arcs


def _link_names(fabric: Fabric) -> list[tuple[str, str, str]]:
    ids, links = fabric.structure.nodes.ids, fabric.structure.links
    ends = zip(links.a.tolist(), links.b.tolist(), links.key, strict=True)
    return [(ids[a], ids[b], str(key)) for a, b, key in ends]


def _without_path(flows: Flows, kept: Paths) -> tuple[Ints, Ints, Ints]:
    """Return the ranges of QPs without a path as columns: flow row, first and last QP."""
    held = np.bincount(kept.flow, weights=kept.qp_count, minlength=len(flows))
    bare = np.flatnonzero(held == 0)
    missing = [np.stack([bare, np.zeros_like(bare), flows.qps[bare] - 1])]
    for row in np.flatnonzero((held > 0) & (held < flows.qps)).tolist():
        ranges = np.flatnonzero(kept.flow == row)
        ranges = ranges[np.argsort(kept.first_qp[ranges])]
        begin = np.append(0, kept.last_qp[ranges] + 1)
        end = np.append(kept.first_qp[ranges], flows.qps[row]) - 1
        gaps = end >= begin
        missing.append(np.stack([np.full(int(gaps.sum()), row), begin[gaps], end[gaps]]))
    flow, first_qp, last_qp = np.concatenate(missing, axis=1)
    return flow, first_qp, last_qp
