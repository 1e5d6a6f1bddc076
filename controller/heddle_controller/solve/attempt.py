"""One way of making a plan, carried through to loads that can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from heddle_controller.model.fabric import Bools, Floats, Ints
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, join_paths
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.bound import Bound
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.chains import TOLERANCE
from heddle_controller.solve.commodities import LINEAR, commodities_of
from heddle_controller.solve.cuts import cut_bound
from heddle_controller.solve.greedy import place_greedily
from heddle_controller.solve.lp import relax
from heddle_controller.solve.network import Network
from heddle_controller.solve.options import Deadline
from heddle_controller.solve.planes import Planes, coloured_paths
from heddle_controller.solve.prices import price_bounds, unrestricted_bounds
from heddle_controller.solve.residue import place_residue
from heddle_controller.solve.rounding import whole_shares
from heddle_controller.solve.search import SLACK, Search, Target

FINEST = 256
"""Parts of one flow beyond which finer ones spread load no better."""
MOST_PARTS = 500_000
"""Parts of all flows together beyond which colouring them is not worth the memory."""


@dataclass(slots=True)
class Problem:
    """What is to be planned, and what is known about it so far."""

    network: Network
    candidates: Candidates
    planes: Planes | None
    flows: Flows
    routed: Bools
    """Flows that have a path, as far as is known; shape (flows,)."""
    bound: Bound
    deadline: Deadline
    lp_tiers: Floats | None = field(default=None)
    """Bounds by linear programme over the candidate paths, once known."""
    notes: tuple[str, ...] = ()
    """What was given up, for people."""

    def target(self) -> Target:
        """Where there is nothing more to gain for the search: at its tier's bound.

        Up to the whole plan's bound no arc makes the plan worse, nor, up to 1, a flow
        slower; between the two a tier is worth all the trouble.
        """
        tiers = self.bound.tiers
        if self.lp_tiers is not None:
            tiers = np.maximum(tiers, self.lp_tiers)
        overall = max(self.bound.overall, float(tiers.max(initial=0.0)))
        idle = min(overall, 1.0)
        arcs = None if self.bound.arcs is None else np.maximum(self.bound.arcs, idle)
        return Target(np.maximum(tiers, idle), overall, arcs)

    def exclude(self, stuck: list[int]) -> None:
        """Takes flows without a path out of the account."""
        if stuck:
            self.routed[stuck] = False
            self.bound = cut_bound(self.network, self.flows, self.routed)


def by_colours(problem: Problem, planes: Planes) -> Assignment:
    """Colours whole flows; where that is too little, parts of them; and searches.

    Where no colour is a hole, all flows are taken apart alike, as far as it takes to
    be at the bounds: into ever more parts, since colours of equal parts are as even as
    parts can be. Otherwise those that overfill an arc are, into QPs.
    """
    flows = problem.flows
    whole = coloured_paths(planes, flows, np.arange(len(flows), dtype=np.int64))
    assignment = _loaded(problem, whole)
    if len(np.unique(whole.flow)) == np.count_nonzero(problem.routed):
        for parts in _ladder(flows):
            if is_met(problem, assignment):
                return assignment
            rows = np.repeat(np.arange(len(flows), dtype=np.int64), parts)
            pieces = coloured_paths(planes, flows, rows)
            if len(np.unique(pieces.flow)) < len(np.unique(whole.flow)):
                break  # some part of a flow met a hole, where the whole did not
            assignment = _loaded(problem, pieces)
        if is_met(problem, assignment):
            return assignment
        assignment = _loaded(problem, whole)
    split = _overfilling(problem, assignment)
    if len(split):
        kept = whole.take(np.flatnonzero(np.isin(whole.flow, split, invert=True)))
        pieces = coloured_paths(planes, flows, np.repeat(split, _parts(flows.qps[split])))
        assignment = _loaded(problem, join_paths([kept, pieces]))
    rest = np.flatnonzero(problem.routed)
    rest = rest[np.isin(rest, np.array(assignment.flow, dtype=np.int64), invert=True)]
    return _finish(problem, assignment, rest, np.zeros_like(rest), flows.qps[rest] - 1)


def _ladder(flows: Flows) -> Iterator[Ints]:
    """Ever more equal parts to take flows apart into: of each the most that divide its QPs."""
    qps, of_flow = np.unique(flows.qps, return_inverse=True)
    parts, most = 1, min(FINEST, int(qps.max(initial=1)))
    while parts < most:
        parts *= 2
        least = [max(n for n in range(1, min(parts, q) + 1) if q % n == 0) for q in qps.tolist()]
        chosen = np.array(least, dtype=np.int64)[of_flow]
        if chosen.sum() > MOST_PARTS:
            return
        yield chosen


def _parts(qps: Ints) -> Ints:
    """Parts to take each of some flows into: its QPs, or as many as are worth the memory."""
    most = min(FINEST, max(1, MOST_PARTS // max(1, len(qps))))
    return np.minimum(qps, most)


def _loaded(problem: Problem, inner: Paths) -> Assignment:
    assignment = Assignment(problem.network, problem.flows)
    assignment.load_chunks(inner)
    return assignment


def _overfilling(problem: Problem, assignment: Assignment) -> Ints:
    """Flows to take apart: on each arc over its target, as many as it has too many.

    None where every flow is a single QP.
    """
    flows, network = problem.flows, problem.network
    if not len(flows) or int(flows.qps.max()) == 1:
        return np.empty(0, dtype=np.int64)
    bounds = np.append(problem.target().bounds, np.inf)
    used = assignment.utilization()
    over = np.flatnonzero(used > bounds[network.tier] + TOLERANCE)
    chosen: set[int] = set()
    for arc in over.tolist():
        excess = assignment.load[arc] - bounds[network.tier[arc]] / network.per_gbps[arc]
        for chunk in assignment.members(arc):
            if excess <= 0:
                break
            chosen.add(assignment.flow[chunk])
            excess -= assignment.gbps(chunk)
    return np.array(sorted(chosen), dtype=np.int64)


def by_relaxation(problem: Problem, seconds: float | None) -> Assignment:
    """Rounds the linear relaxation, places the rest greedily, searches.

    Improves the problem's bounds on the way.
    """
    network, flows = problem.network, problem.flows
    commodities = commodities_of(network, problem.candidates, flows, problem.routed)
    problem.exclude(commodities.stuck.tolist())
    relaxation = relax(network, commodities, problem.bound.tiers, seconds)
    problem.lp_tiers, _ = price_bounds(network, commodities, relaxation)
    problem.bound = _improved(problem.bound, *unrestricted_bounds(network, commodities, relaxation))
    local = np.flatnonzero(problem.routed & (commodities.of_flow < 0))
    inner, left = whole_shares(flows, commodities, relaxation.shares, local)
    assignment = _finish(problem, _loaded(problem, inner), *left)
    if (commodities.job == LINEAR).all() and not within_reach(problem, assignment):
        exact = _with_residue(problem, inner, left)
        assignment = assignment if exact is None else better(problem, assignment, exact)
    return assignment


def _with_residue(
    problem: Problem, inner: Paths, left: tuple[Ints, Ints, Ints]
) -> Assignment | None:
    """The rounded relaxation with what it left over placed by constraint programming."""
    base = _loaded(problem, inner)
    search = Search(base, problem.candidates, problem.target(), problem.deadline)
    limit = np.append(problem.target().bounds, np.inf)[problem.network.tier] * (1 + SLACK)
    largest = float(base.unit[left[0]].max(initial=0.0))
    placed = place_residue(base, search, left, limit + largest * problem.network.per_gbps)
    if placed is None:
        return None
    whole = _loaded(problem, join_paths([inner, placed]))
    Search(whole, problem.candidates, problem.target(), problem.deadline).run()
    return whole


def within_reach(problem: Problem, assignment: Assignment) -> bool:
    """Whether every arc is within a QP of the largest flow, and a bit, of its bound."""
    network = problem.network
    limit = np.append(problem.target().bounds, np.inf)[network.tier] * (1 + SLACK)
    limit += float(assignment.unit.max(initial=0.0)) * network.per_gbps
    inner = network.inner
    return bool((assignment.utilization()[inner] <= limit[inner] + TOLERANCE).all())


def _finish(
    problem: Problem, assignment: Assignment, flow: Ints, first_qp: Ints, last_qp: Ints
) -> Assignment:
    search = Search(assignment, problem.candidates, problem.target(), problem.deadline)
    problem.exclude(place_greedily(search, flow, first_qp, last_qp))
    search.run()
    return assignment


def _improved(bound: Bound, tiers: Floats, overall: float) -> Bound:
    """The bound, with what the linear programme proves where that is more."""
    better = overall > bound.overall * (1 + TOLERANCE)
    proof = "lp" if better else bound.proof
    return Bound(np.maximum(tiers, bound.tiers), max(overall, bound.overall), proof, bound.arcs)


def is_met(problem: Problem, assignment: Assignment) -> bool:
    """Whether every tier is at its bound."""
    reached = tier_worst(problem.network, assignment)
    return bool((reached <= problem.target().bounds + 1e-6).all())


def tier_worst(network: Network, assignment: Assignment) -> Floats:
    """Worst utilisation of the switch-to-switch arcs of each tier."""
    tier = network.fabric.structure.tier_of_arc
    worst = np.zeros(len(network.fabric.structure.tiers))
    np.maximum.at(worst, tier[network.inner], assignment.utilization()[network.inner])
    return worst


def better(problem: Problem, first: Assignment, second: Assignment) -> Assignment:
    """The one whose tiers exceed their bounds less, worst tier first.

    Of equals the one whose arcs exceed their targets less, worst arc first.
    """
    target, inner = problem.target(), problem.network.inner
    bounds = target.bounds * (1 + SLACK)

    def badness(assignment: Assignment) -> tuple[list[float], list[float], list[float]]:
        worst = tier_worst(problem.network, assignment)
        over = np.maximum(worst - bounds, 0.0)
        used = assignment.utilization()[inner]
        above = used if target.arcs is None else np.where(used > target.arcs[inner], used, 0.0)
        arcs = np.sort(np.round(above[above > 0], 6))[::-1]
        return sorted(np.round(over, 6), reverse=True), sorted(worst, reverse=True), arcs.tolist()

    return second if badness(second) < badness(first) else first
