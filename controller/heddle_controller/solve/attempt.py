"""One way of making a plan, carried through to loads that can be compared."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Floats, Ints
from heddle_controller.model.flows import Flows
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.bound import Bound
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.commodities import commodities_of
from heddle_controller.solve.cuts import cut_bound
from heddle_controller.solve.greedy import place_greedily
from heddle_controller.solve.lp import relax
from heddle_controller.solve.network import Network
from heddle_controller.solve.options import Deadline
from heddle_controller.solve.planes import Planes
from heddle_controller.solve.prices import price_bounds, unrestricted_bound
from heddle_controller.solve.rounding import load_shares
from heddle_controller.solve.search import SLACK, TOLERANCE, Search, Target


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

    def target(self) -> Target:
        """Where there is nothing more to gain for the search."""
        tiers = self.bound.tiers
        if self.lp_tiers is not None:
            tiers = np.maximum(tiers, self.lp_tiers)
        overall = max(self.bound.overall, float(tiers.max(initial=0.0)))
        return Target(tiers, self.network.fabric.structure.tier_of_arc, overall)

    def exclude(self, stuck: list[int]) -> None:
        """Takes flows without a path out of the account."""
        if stuck:
            self.routed[stuck] = False
            self.bound = cut_bound(self.network, self.flows, self.routed)


def by_colours(problem: Problem, planes: Planes) -> Assignment:
    """Colours, places the rest greedily, searches."""
    assignment = Assignment(problem.network, problem.flows)
    coloured = planes.colour(problem.flows)
    rows = np.flatnonzero(coloured.placed)
    arcs = coloured.arcs[rows]
    lengths = (arcs != NONE).sum(axis=1)
    # Paths keep their arcs on the left: 0 within a leaf, 2 in a zone, 4 between.
    paths = [row[:length] for row, length in zip(arcs, lengths.tolist(), strict=True)]
    last_qp = problem.flows.qps - 1
    assignment.load_chunks(rows, np.zeros_like(rows), last_qp[rows], paths)
    rest = np.flatnonzero(~coloured.placed & problem.routed)
    return _finish(problem, assignment, rest, np.zeros_like(rest), last_qp[rest])


def by_relaxation(problem: Problem, seconds: float | None) -> Assignment:
    """Rounds the linear relaxation, places the rest greedily, searches.

    Improves the problem's bounds on the way.
    """
    network, flows = problem.network, problem.flows
    commodities = commodities_of(network, problem.candidates, flows, problem.routed)
    problem.exclude(commodities.stuck.tolist())
    relaxation = relax(network, commodities, problem.bound.tiers, seconds)
    problem.lp_tiers, _ = price_bounds(network, commodities, relaxation)
    problem.bound = _improved(problem, unrestricted_bound(network, commodities, relaxation))
    assignment = Assignment(network, flows)
    local = np.flatnonzero(problem.routed & (commodities.of_flow < 0))
    left = load_shares(assignment, commodities, relaxation.shares, local)
    return _finish(problem, assignment, *left)


def _finish(
    problem: Problem, assignment: Assignment, flow: Ints, first_qp: Ints, last_qp: Ints
) -> Assignment:
    search = Search(assignment, problem.candidates, problem.target(), problem.deadline)
    problem.exclude(place_greedily(assignment, search, flow, first_qp, last_qp))
    search.run()
    return assignment


def _improved(problem: Problem, overall: float) -> Bound:
    """The bound, with what the linear programme proves where that is more."""
    network, bound = problem.network, problem.bound
    inner = np.unique(network.fabric.structure.tier_of_arc[network.inner])
    tiers = bound.tiers.copy()
    if len(inner) == 1:
        # One tier of choice: what holds for the whole holds for it.
        tiers[inner] = np.maximum(tiers[inner], overall)
    elif network.tiered and problem.lp_tiers is not None:
        tiers = np.maximum(tiers, problem.lp_tiers)
        overall = max(overall, float(tiers.max(initial=0.0)))
    better = overall > bound.overall * (1 + TOLERANCE)
    return Bound(tiers, max(overall, bound.overall), "lp" if better else bound.proof)


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
    """The one whose tiers exceed their bounds less, worst tier first."""
    bounds = problem.target().bounds * (1 + SLACK)

    def badness(assignment: Assignment) -> tuple[list[float], list[float]]:
        worst = tier_worst(problem.network, assignment)
        over = np.maximum(worst - bounds, 0.0)
        return sorted(np.round(over, 6), reverse=True), sorted(worst, reverse=True)

    return second if badness(second) < badness(first) else first
