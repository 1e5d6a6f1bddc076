"""Making a plan from scratch.

1. In a fabric with tiers, colouring places every flow whose colour has a usable link. On a
   healthy fabric these are all flows, and their loads meet the bound that cuts prove. The other
   flows are placed greedily, and local search takes load off arcs above the bound.
2. Where that does not meet the bound, and in graphs without tiers from the start, the linear
   relaxation is rounded, and the other QPs are placed and searched in the same way. The
   relaxation also proves a better bound. The better of the two plans stays.
3. Where no link is overloaded, QPs are spread further to leave room (``headroom``), if tables
   hold the entries. Where links stay overloaded, flows exchange QPs until the slowest flow is as
   fast as equal loads allow (``fairness``). Ties go to the flow that sends more bytes. In small
   cases, one of the plans that are equally fair is chosen by how soon jobs end in queues
   (``fairness.queue_search``). Then victims of incasts move away from them where that costs
   nothing (``victims``).
4. Where tables have no room to split flows, or switches cannot tell flows apart, these flows are
   tied to one path (``tables``) and planned again. What then still exceeds a table is left
   to the underlay (``tables``).
5. Each path gets a backup, and the plan gets its certificate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from heddle_controller.model.arrays import Bools
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import SOURCE_PORT_COUNT, Flows
from heddle_controller.model.plan import Paths, Plan, arc_loads
from heddle_controller.solve.assignment import Assignment, exported_paths
from heddle_controller.solve.attempt import (
    PlanningProblem,
    better,
    by_colouring,
    by_relaxation,
    is_met,
    nearer_bounds,
    to_bounds,
)
from heddle_controller.solve.bounds.cuts import Bound, certify, cut_bound, scaled
from heddle_controller.solve.bounds.relaxation import power_of_two
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.colouring.planes import Planes
from heddle_controller.solve.fairness.balance import even
from heddle_controller.solve.fairness.queue_search import shortened
from heddle_controller.solve.fairness.sharing import Shares
from heddle_controller.solve.headroom import with_headroom
from heddle_controller.solve.network import Network, attached
from heddle_controller.solve.options import Deadline, Options
from heddle_controller.solve.repair.backups import backups_of
from heddle_controller.solve.search.small_problems import solve_small
from heddle_controller.solve.tables import (
    ColocatedFlows,
    colocation_groups,
    fit_tables,
    pairs_of,
    short_of_ports,
    tie,
    too_parted,
)
from heddle_controller.solve.unrouted import Reasons
from heddle_controller.solve.victims import with_victims_apart

_MOST_ROUNDS = 8
"""Most plans that are made to find out which flows the tables have no room to split."""

TIES = 2.0**16, 2.0**40
"""Sizes of flows in bytes: 64 KiB and 1 TiB. Between them, more bytes decide ties of fairness."""

_NO_ROOM = "flows are not parted for room after a loss, to fit the tables"

IMPROVING = 0.6
"""Part of a time limit that is for improvement. Backups and tables need some time after it."""

_Step: TypeAlias = Callable[[PlanningProblem, Assignment], Assignment | None]
"""A step that improves a plan without making its worst link fuller. It returns None where it finds
nothing to improve."""

MOST_LOAD = 2.0**20
"""Bound on the worst utilisation above which sums of loads are too coarse to compare."""


def solve(fabric: Fabric, flows: Flows, options: Options | None = None) -> Plan:
    """Return a plan of all flows, made from scratch.

    Pure, unless a time limit cuts the search short.

    Loads count as equal within a fixed tolerance. Demands that are far below or far above capacity
    are therefore scaled for planning (``unit_of``).
    """
    options = options or Options()
    deadline = options.deadline().part(IMPROVING)
    network = Network(fabric)
    routed = attached(network, flows) & Reasons(network).joined(flows)
    bound = cut_bound(network, flows, routed)
    unit = unit_of(bound)
    if unit == 1:
        return _solved(network, flows, routed, (options, deadline), bound)
    plan = _solved(network, replace(flows, gbps=flows.gbps / unit), routed, (options, deadline))
    return replace(plan, flows=flows, certificate=scaled(plan.certificate, unit))


def unit_of(bound: Bound) -> float:
    """Return the number that demands with this bound are divided by for planning.

    It is a power of two: 1 for bounds above 0.5 and up to ``MOST_LOAD``, and for a bound of 0.
    """
    size = power_of_two(bound.overall)
    return min(size, 1.0) * max(size / MOST_LOAD, 1.0)


def _solved(
    network: Network,
    flows: Flows,
    routed: Bools,
    effort: tuple[Options, Deadline],
    known: Bound | None = None,
) -> Plan:
    """Return the plan. ``known`` is the cut bound of ``flows``, if it was already computed."""
    options, deadline = effort
    steps = (with_headroom, *FINISHING) if options.objective == "headroom" else FINISHING
    candidates = Candidates(network, options.candidate_limit)
    planes = Planes(network) if network.tiered else None

    def planned(ties: ColocatedFlows) -> tuple[PlanningProblem, Paths]:
        few, usable = ties.flows, routed[ties.leader]
        bound = cut_bound(network, few, usable) if known is None or few is not flows else known
        problem = PlanningProblem(network, candidates, planes, few, usable, bound, deadline)
        assignment = _assign(problem, options)
        paths = ties.expand(exported_paths(assignment, renumber=True))
        for step in steps:
            other = step(problem, assignment)
            if other is None:
                continue
            found = ties.expand(exported_paths(other, renumber=True))
            if not too_parted(network, flows, found, pair).any():
                assignment, paths = other, found
            elif step is with_headroom:
                problem.notes = (_NO_ROOM,)
        return problem, paths

    pair = pairs_of(flows)
    short = short_of_ports(flows)
    parted = np.zeros_like(short)
    ties = tie(flows, colocation_groups(flows, pair, parted), short)
    problem, paths = planned(ties)
    for _ in range(_MOST_ROUNDS):
        more = too_parted(network, flows, paths, pair)
        if not more.any() or deadline.passed():
            break
        parted |= more
        ties = tie(flows, colocation_groups(flows, pair, parted), short | parted)
        problem, paths = planned(ties)
    if ties.tied.any():
        problem.flows, problem.routed = flows, problem.routed[ties.stands]
        problem.bound = cut_bound(network, flows, problem.routed)
        problem.notes += _notes(short & ~parted, parted)
    return finished_plan(problem, paths)


def _fairest(problem: PlanningProblem, assignment: Assignment) -> Assignment | None:
    """Return the assignment with a faster slowest flow, or None; see ``fairness.balance``."""
    return even(_by_bytes(assignment), problem.candidates, problem.target(), problem.deadline)


def _soonest(problem: PlanningProblem, assignment: Assignment) -> Assignment | None:
    """Return the assignment with jobs that end sooner in queues, or None; see ``queue_search``."""
    return shortened(assignment, problem.candidates, problem.target(), problem.deadline)


FINISHING: tuple[_Step, ...] = (_fairest, _soonest, with_victims_apart)
"""The steps that make flows faster or independent while links stay as full as they are."""


def _by_bytes(assignment: Assignment) -> Assignment:
    """Return the assignment with weights that let a flow with more bytes win ties of fairness.

    Weights grow by a hundredth from one end of ``TIES`` to the other, in proportion to the
    logarithm of the size. That is enough to choose among plans that are equally fair, and too
    little to slow any flow down much.
    """
    size = assignment.flows.bytes
    if not len(size) or (size == size[0]).all():
        return assignment
    low, high = TIES
    hair = 1 + np.log2(np.clip(size, low, high) / low) / np.log2(high / low) / 100
    other = copy(assignment)
    other.flows = replace(assignment.flows, weight=assignment.flows.weight * hair)
    return other


def _notes(short: Bools, parted: Bools) -> tuple[str, ...]:
    notes = []
    if parted.any():
        notes.append(f"{parted.sum()} flows are not split, to fit the tables")
    if short.any():
        why = f"their NICs have more than {SOURCE_PORT_COUNT} QPs between them"
        notes.append(f"{short.sum()} flows share UDP source ports and so paths: {why}")
    return tuple(notes)


def _assign(problem: PlanningProblem, options: Options) -> Assignment:
    assignment, served = _searched(problem, options), problem.served
    if served is None or served is assignment:
        return assignment
    values = [Shares(_fairest(problem, one) or one).sorted_values for one in (served, assignment)]
    if values[0] != values[1]:
        return served if values[0] > values[1] else assignment
    return better(problem, assignment, served)


def _searched(problem: PlanningProblem, options: Options) -> Assignment:
    coloured = by_colouring(problem, problem.planes) if problem.planes else None
    if coloured is not None and (
        coloured is problem.served
        or is_met(problem, coloured)
        or problem.deadline.passed()
        or len(problem.flows) > options.relaxation_limit
    ):
        return coloured
    relaxed = by_relaxation(problem)
    if coloured is None:
        assignment = to_bounds(problem, relaxed)
    else:
        assignment = better(problem, coloured, relaxed)
    assignment = nearer_bounds(problem, assignment)
    solve_small(problem, assignment)
    return assignment


def finished_plan(
    problem: PlanningProblem, paths: Paths, left: Mapping[int, str] | None = None
) -> Plan:
    """Return a plan of the paths: with backups, a certificate and reasons for unrouted flows.

    ``left`` are flows, not routed, that are left to the underlay because tables are full: row and
    reason.
    """
    network, flows = problem.network, problem.flows
    fitted = fit_tables(network, problem.candidates, flows, paths, left)
    bare = np.bincount(paths.flow, minlength=len(flows)) == 0
    bare[[*fitted.dropped]] = False
    reasons = Reasons(network)
    unrouted = {
        row: reasons.of(int(flows.source[row]), int(flows.destination[row]))
        for row in np.flatnonzero(bare & ~problem.routed).tolist()
    }
    problem.exclude([row for row in fitted.dropped if problem.routed[row]])
    loads = arc_loads(network.arc_count, flows, fitted.paths)
    return Plan(
        network.fabric,
        flows,
        fitted.paths,
        backups_of(problem.candidates, problem.planes, flows, fitted.paths, loads),
        certify(network.fabric, loads, problem.bound),
        unrouted | fitted.dropped,
        problem.notes + fitted.notes,
    )
