"""One way of making a plan, carried through to loads that can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from typing import TypeAlias

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, join_paths, no_paths, phased_loads
from heddle_controller.solve.assignment import Assignment, merged_chunks
from heddle_controller.solve.bounds.bound import Bound, in_whole_qps
from heddle_controller.solve.bounds.cuts import cut_bound
from heddle_controller.solve.bounds.prices import price_bounds, unrestricted_bounds, widen
from heddle_controller.solve.bounds.relaxation import FRESH, Descent, Relaxation
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.colouring.planes import Planes, coloured_paths
from heddle_controller.solve.commodities import Commodities, commodities_of, whole_shares
from heddle_controller.solve.network import Network
from heddle_controller.solve.options import Deadline
from heddle_controller.solve.search.chains import TOLERANCE, Chains, SearchLimits
from heddle_controller.solve.search.guided import GuidedSearch
from heddle_controller.solve.search.search import (
    WORTH_SEARCHING,
    LoadTarget,
    Search,
    place_greedily,
)

_FINEST = 256
"""Parts of one flow beyond which finer ones spread load no better."""
MOST_PARTS = 500_000
"""Parts of all flows together beyond which colouring them is not worth the memory."""

COARSEST, LESS_COARSE = 8.0, 0.7
"""Smoothing of the first stage in a graph without tiers, and what each stage leaves of it.

Coarse prices are those of short paths; finer ones find their way round what is full.
"""
KEMPE = SearchLimits(
    depth=100, width=1, budget=600, effort=100_000, spare=100_000, beneath=0, patience=200
)
"""Long chains without alternatives: of two spines, one step follows from the one before."""
SEARCHED_TOO = 200
"""Flows that are searched for a plan, too, where one is known that serves all: it is no fairer, but
tiers between switches may be less full."""
CLOSE = 1e-6
"""Utilisation by which an arc may be above a bound that it meets."""
_PATIENCE = 1000
"""Steps of guided search in a row without gain after which it ends."""
_EACH = 4
"""The same for each chunk of a small plan."""
GUIDED_STEPS = 12_000
"""Of guided search for one plan in all."""
_AS_IT_IS = 0.9
"""A tier that may stay this far from its bound, as a part of how far it is, need not be tried."""
NEAR = 0.003
"""A relaxation this close to its bound, relative to it, is not worth more candidates."""
GAINED = 0.0005
"""A stage that comes no more than this nearer, relative to before, ends the search for more."""
MOST_WIDENINGS = 16
"""Times that more candidates are looked for."""

Preference: TypeAlias = Callable[[Assignment, Assignment], Assignment]
"""Takes one of two assignments, of which the first is the one there was."""


@dataclass(slots=True)
class PlanningProblem:
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
    served: Assignment | None = None
    """One in which all flows get what the links of their NICs allow, where NICs lost some."""
    notes: tuple[str, ...] = ()
    """What was given up, for people."""
    steps: int = GUIDED_STEPS
    """Of guided search that are left."""

    def target(self) -> LoadTarget:
        """The load below which the search gains nothing more: its tier's bound.

        Up to the whole plan's bound no arc makes the plan worse, nor, up to 1, a flow
        slower; between the two a tier is worth all the trouble.
        """
        tiers = self.bound.aims
        if self.lp_tiers is not None:
            tiers = np.maximum(tiers, self.lp_tiers)
        overall = max(self.bound.overall, float(tiers.max(initial=0.0)))
        idle = min(overall, 1.0)
        arcs = None if self.bound.arcs is None else np.maximum(self.bound.arcs, idle)
        return LoadTarget(np.maximum(tiers, idle), overall, arcs)

    def exclude(self, stuck: list[int]) -> None:
        """Takes flows without a path out of the account."""
        if stuck:
            self.routed[stuck] = False
            self.bound = cut_bound(self.network, self.flows, self.routed)


def by_colouring(problem: PlanningProblem, planes: Planes) -> Assignment:
    """Colours whole flows; where that is too little, parts of them; and searches.

    Where no colour is a hole, all flows are taken apart alike, as far as it takes to
    be at the bounds: into ever more parts, since colours of equal parts are as even as
    parts can be; parts that alone are too much for a link of their NIC are tried last.
    Otherwise those that overfill an arc are, into QPs. Each arc has a bound
    of its own: a NIC with one of two links left does not excuse flows that are whole on
    one link of a NIC with two.
    """
    flows = problem.flows
    alike, whole = _in_equal_parts(problem, planes)
    if alike is None or not _is_met_everywhere(problem, alike):
        problem.served = _on_links_left(problem, planes)
        if problem.served is not None and len(flows) > SEARCHED_TOO:
            return problem.served
        if problem.served is None and (_line_shares(problem) < 1).any():
            # Bounds of NICs that lost links hide what arcs elsewhere have too much: search sees it.
            planes = planes.leaving_holes()
            alike, whole = _in_equal_parts(problem, planes)
    if alike is not None:
        return alike
    assignment = loaded(problem, whole)
    split = _overfilling(problem, assignment)
    if len(split):
        kept = whole.take(np.flatnonzero(np.isin(whole.flow, split, invert=True)))
        pieces = coloured_paths(planes, flows, np.repeat(split, _parts(flows.qps[split])))
        assignment = loaded(problem, join_paths([kept, pieces]))
    rest = np.flatnonzero(problem.routed)
    rest = rest[np.isin(rest, np.array(assignment.flow, dtype=np.int64), invert=True)]
    assignment = _finish(problem, assignment, rest, np.zeros_like(rest), flows.qps[rest] - 1)
    return to_bounds(problem, assignment)


def _in_equal_parts(problem: PlanningProblem, planes: Planes) -> tuple[Assignment | None, Paths]:
    """All flows in ever more equal parts, until all is met, and whole flows as colours place them.

    The best of these where all tiers are at their bounds, else None.
    """
    flows = problem.flows
    rungs = [np.ones(len(flows), dtype=np.int64), *ladder(flows)]
    coarse = [*takewhile(lambda parts: _is_too_coarse(problem, parts), rungs)]
    best, whole = None, no_paths()
    for parts in rungs[len(coarse) :]:
        pieces, found = _coloured(problem, planes, parts)
        if parts is rungs[0]:
            whole = pieces
        if found is None:
            break
        best = found if best is None else better(problem, best, found)
        if _is_met_everywhere(problem, best) or problem.deadline.passed():
            return best, whole
    for parts in reversed(coarse):
        whole, found = _coloured(problem, planes, parts)
        if found is not None:
            best = found if best is None else better(problem, found, best)
    return (best if best is not None and is_met(problem, best) else None), whole


def _on_links_left(problem: PlanningProblem, planes: Planes) -> Assignment | None:
    """Equal parts of what links of NICs let through, where nothing else holds any flow up.

    A NIC that lost one of its links sends no more than the others carry, so its flows are as many
    fewer parts, on these links; everything else is as it would be had it lost none. None where
    NICs hold no flow up, or switches do.
    """
    network, flows = problem.network, problem.flows
    if not network.several.any():
        return None
    share = _line_shares(problem)
    within = replace(flows, gbps=flows.gbps * share)
    bound = cut_bound(network, within, problem.routed)
    if (share == 1).all() or bound.overall > 1 + CLOSE:
        return None
    capped = replace(problem, flows=within, bound=bound)
    best: Assignment | None = None
    for parts in (np.ones(len(flows), dtype=np.int64), *ladder(flows)):
        pieces = np.maximum(np.rint(parts * share), 1).astype(np.int64)
        rows = np.repeat(np.arange(len(flows)), pieces)
        paths = coloured_paths(planes, within, rows, on_links_left=True)
        if _flows_on(paths) < np.count_nonzero(problem.routed):
            break
        if _is_met_everywhere(capped, loaded(capped, paths)):
            found = loaded(problem, paths)
            best = found if best is None else better(problem, best, found)
            if is_met(problem, best):
                break
    return best


def _line_shares(problem: PlanningProblem) -> Floats:
    """What part of each flow its NICs' usable links carry, if all flows of a NIC get the same."""
    network, flows = problem.network, problem.flows
    rows = np.flatnonzero(problem.routed)
    nodes, capacity = network.fabric.node_count, network.fabric.structure.capacity
    out = np.flatnonzero(network.usable & (network.level[network.tail] == NodeKind.NIC))
    share = np.ones(len(flows))
    for nics, arcs in ((flows.source, out), (flows.destination, out ^ 1)):
        line = np.bincount(network.tail[out], capacity[arcs], nodes)
        jobs = flows.job[rows], flows.phase[rows]
        asked = phased_loads(nodes, nics[rows], flows.gbps[rows], *jobs)
        least = np.divide(line, asked, out=np.ones(nodes), where=asked > line * (1 + CLOSE))
        np.minimum(share, least[nics], out=share)
    return share


def _coloured(
    problem: PlanningProblem, planes: Planes, parts: Ints
) -> tuple[Paths, Assignment | None]:
    """Paths of flows in so many parts each; no assignment where some part met a hole."""
    flows = problem.flows
    paths = coloured_paths(planes, flows, np.repeat(np.arange(len(flows)), parts))
    complete = _flows_on(paths) == np.count_nonzero(problem.routed)
    return paths, loaded(problem, paths) if complete else None


def _flows_on(paths: Paths) -> int:
    """How many flows have any of some paths, which are in order of flows."""
    return int(np.count_nonzero(np.diff(paths.flow, prepend=-1)))


def _is_too_coarse(problem: PlanningProblem, parts: Ints) -> bool:
    """Whether a part of some flow alone fills each link of a NIC of several beyond its target."""
    network, flows = problem.network, problem.flows
    rows = np.flatnonzero(problem.routed)
    several = [network.several[end[rows]] for end in (flows.source, flows.destination)]
    if not (several[0] | several[1]).any():
        return False
    target = problem.target()
    limit = np.append(target.bounds, np.inf)[network.tier]
    if target.arcs is not None:
        limit = np.minimum(limit, target.arcs)
    gbps = (flows.gbps * -(-flows.qps // parts) / flows.qps)[rows]
    out = np.flatnonzero(network.usable & network.several[network.tail])
    for nics, beside, arcs in zip(
        (flows.source, flows.destination), several, (out, out ^ 1), strict=True
    ):
        most = np.zeros(network.fabric.node_count)
        np.maximum.at(most, network.tail[out], (limit[arcs] + CLOSE) / network.per_gbps[arcs])
        if (gbps > most[nics[rows]])[beside].any():
            return True
    return False


def by_wish(problem: PlanningProblem, wished: Paths) -> Assignment:
    """The paths wished for, as far as they are candidates of their flows; the rest is searched.

    Where few paths are denied, each arc that lacks one is made up for along an alternating chain,
    as edge colouring does it (Kempe); chains are long, as candidates differ from flow to flow.
    Paths move whole at first: QPs that part fill what chains need. What is still too full is
    divided then.

    Args:
        problem: Its candidates may be any.
        wished: Paths between terminals of flows that have candidates.
    """
    assignment = loaded(problem, _wholes(problem, wished))
    Search(assignment, problem.candidates, problem.target(), problem.deadline).run()
    return nearer_bounds(problem, to_bounds(problem, assignment))


def _wholes(problem: PlanningProblem, wished: Paths) -> Paths:
    """As many paths, each moved whole to a candidate of its flow."""
    rows = np.arange(len(wished), dtype=np.int64)
    none = np.zeros_like(rows)
    flows = replace(
        problem.flows.take(wished.flow), gbps=wished.gbps(problem.flows), qps=np.ones_like(rows)
    )
    alone = Paths(rows, none, none, wished.first, wished.arcs)
    kept = [row for row in rows.tolist() if _is_candidate(problem, flows, alone, row)]
    assignment = Assignment(problem.network, flows)
    assignment.load_chunks(alone.take(np.array(kept, dtype=np.int64)))
    search = Search(assignment, problem.candidates, problem.target(), problem.deadline, KEMPE)
    denied = np.setdiff1d(rows, kept)
    place_greedily(search, denied, none[: len(denied)], none[: len(denied)])
    search.run()
    path = merged_chunks(assignment, renumber=False)
    return Paths(wished.flow, wished.first_qp, wished.last_qp, path.first, path.arcs)


def _is_candidate(problem: PlanningProblem, flows: Flows, paths: Paths, row: int) -> bool:
    """Whether a path is one that its flow may take."""
    flow = int(paths.flow[row])
    ends = problem.candidates.ends_of(flows, flow)
    known = problem.candidates.of_class(*ends, int(flows.traffic_class[flow]))
    arcs = paths.of(row)
    if len(arcs) > known.shape[1]:
        return False
    wide = np.full(known.shape[1], problem.network.pad, dtype=np.int64)
    wide[: len(arcs)] = arcs
    return bool((known == wide).all(axis=1).any())


def ladder(flows: Flows) -> Iterator[Ints]:
    """Ever more equal parts to take flows apart into: of each the most that divide its QPs."""
    qps, of_flow = np.unique(flows.qps, return_inverse=True)
    parts, most = 1, min(_FINEST, int(qps.max(initial=1)))
    while parts < most:
        parts *= 2
        least = [max(n for n in range(1, min(parts, q) + 1) if q % n == 0) for q in qps.tolist()]
        chosen = np.array(least, dtype=np.int64)[of_flow]
        if chosen.sum() > MOST_PARTS:
            return
        yield chosen


def _parts(qps: Ints) -> Ints:
    """Parts to take each of some flows into: its QPs, or as many as are worth the memory."""
    most = min(_FINEST, max(1, MOST_PARTS // max(1, len(qps))))
    return np.minimum(qps, most)


def loaded(problem: PlanningProblem, inner: Paths) -> Assignment:
    """An assignment of paths between terminals."""
    assignment = Assignment(problem.network, problem.flows)
    assignment.load_chunks(inner)
    return assignment


def _overfilling(problem: PlanningProblem, assignment: Assignment) -> Ints:
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


def by_relaxation(problem: PlanningProblem) -> Assignment:
    """Rounds the linear relaxation, places the rest greedily, searches.

    Improves the problem's bounds on the way.
    """
    flows = problem.flows
    commodities, relaxation = relaxed(problem)
    local = np.flatnonzero(problem.routed & (commodities.of_flow < 0))
    inner, left = whole_shares(flows, commodities, relaxation.shares, local)
    return _finish(problem, loaded(problem, inner), *left)


def relaxed(problem: PlanningProblem) -> tuple[Commodities, Relaxation]:
    """The relaxation, over more candidates where its prices say that they pay.

    It is solved over the candidates there are before others are looked for. Where there
    are few to begin with, more come with every stage, while prices are coarse. Improves
    the problem's bounds.
    """
    network, candidates, deadline = problem.network, problem.candidates, problem.deadline
    ends = problem.flows.source[problem.routed], problem.flows.destination[problem.routed]
    few = candidates.prepare(*(network.terminal[nics] for nics in ends))
    descent = Descent(network, _commodities(problem), problem.bound.tiers)
    smoothing, before = COARSEST if few else FRESH, np.inf
    relaxation = descent.relaxation()
    for turn in range(MOST_WIDENINGS):
        fine, last = smoothing <= FRESH, turn == MOST_WIDENINGS - 1
        if fine:
            descent.refine(smoothing, deadline)
        else:
            descent.coarsely(smoothing, deadline)
        smoothing = max(FRESH, smoothing * LESS_COARSE)
        relaxation = descent.relaxation()
        last |= deadline.passed()
        if fine or last:
            _note_bounds(problem, descent.commodities, relaxation)
            bound = in_whole_qps(network, problem.flows, problem.routed, problem.bound)
            reached = descent.reached
            if last or reached <= bound.overall * (1 + NEAR) or reached > before * (1 - GAINED):
                break
            before = reached
        if widen(network, candidates, descent.commodities, relaxation):
            descent = descent.extended(_commodities(problem), problem.bound.tiers)
        elif fine:
            break
    problem.bound = in_whole_qps(network, problem.flows, problem.routed, problem.bound)
    return descent.commodities, relaxation


def _commodities(problem: PlanningProblem) -> Commodities:
    """The flows by their terminals, over the candidates there are."""
    commodities = commodities_of(problem.network, problem.candidates, problem.flows, problem.routed)
    problem.exclude(commodities.stuck.tolist())
    return commodities


def _note_bounds(
    problem: PlanningProblem, commodities: Commodities, relaxation: Relaxation
) -> None:
    """Improves the problem's bounds by what prices prove."""
    network = problem.network
    problem.lp_tiers, _ = price_bounds(network, commodities, relaxation)
    tiers, overall = unrestricted_bounds(network, commodities, relaxation)
    problem.bound = _improved(problem.bound, tiers, overall)


def acceptable_utilization(problem: PlanningProblem, assignment: Assignment) -> Floats:
    """Utilisation up to which each arc and the padding is near enough to its bound.

    That is the bound in whole QPs or, where it is more, what QPs that could be divided
    at will would reach, and a bit, and one QP of the largest flow.
    """
    network = problem.network
    whole = problem.target().bounds
    divided = whole if problem.lp_tiers is None else problem.lp_tiers
    unit = float(assignment.unit.max(initial=0.0)) * network.per_gbps
    near = np.append(divided, np.inf)[network.tier] * (1 + WORTH_SEARCHING) + unit
    limit: Floats = np.maximum(near, np.append(whole, np.inf)[network.tier])
    return limit


def _finish(
    problem: PlanningProblem, assignment: Assignment, flow: Ints, first_qp: Ints, last_qp: Ints
) -> Assignment:
    search = Search(assignment, problem.candidates, problem.target(), problem.deadline)
    problem.exclude(place_greedily(search, flow, first_qp, last_qp))
    search.run()
    return assignment


def to_bounds(problem: PlanningProblem, assignment: Assignment) -> Assignment:
    """The assignment with each tier at its bound, if guided search finds one; else the better."""
    if is_met(problem, assignment):
        return assignment
    # Half of the steps: where bounds are not reached, the others come nearer to them.
    tried, _ = _guided(problem, assignment, problem.target().bounds, 0.0, problem.steps // 2)
    return better(problem, assignment, tried)


def nearer_bounds(problem: PlanningProblem, assignment: Assignment) -> Assignment:
    """The assignment with tiers nearer to bounds that they do not reach; see ``nearer``."""
    return nearer(problem, assignment, problem.target().bounds, partial(better, problem))


def nearer(
    problem: PlanningProblem, assignment: Assignment, bounds: Floats, choose: Preference
) -> Assignment:
    """The assignment with tiers as near to bounds that they do not reach as guided search gets.

    Halfway is tried first, and then less where that failed, more where it did not.

    Args:
        problem: Has the steps that are left.
        assignment: Stays as it is.
        bounds: Utilisation of each tier, shape (tiers,).
        choose: Takes one of the assignment and what was found.
    """
    share = 0.5
    while share < _AS_IT_IS and problem.steps > 0 and not problem.deadline.passed():
        if (tier_worst(problem.network, assignment) <= bounds + CLOSE).all():
            break
        tried, done = _guided(problem, assignment, bounds, share, problem.steps)
        assignment = choose(assignment, tried)
        share = share / 2 if done else (1 + share) / 2
    return assignment


def _guided(
    problem: PlanningProblem, assignment: Assignment, bounds: Floats, share: float, effort: int
) -> tuple[Assignment, bool]:
    """What guided search makes of an assignment, and whether it got to where it was to.

    ``share`` is how far from its bound a tier may stay, as a part of how far it is. The search
    takes ``effort`` steps at most, and draws otherwise than any before it.
    """
    network = problem.network
    reached = np.maximum(tier_worst(network, assignment), bounds)
    limit = np.append(bounds + share * (reached - bounds), np.inf)[network.tier]
    tried = assignment.copy()
    chains = Chains(tried, problem.candidates, problem.deadline, SearchLimits())
    search = GuidedSearch(chains, limit, seed=problem.steps)
    done = search.run(min(_PATIENCE, _EACH * len(tried.flow)), effort)
    problem.steps -= search.steps
    return tried, done


def _improved(bound: Bound, tiers: Floats, overall: float) -> Bound:
    """The bound, with what the linear programme proves where that is more."""
    better = overall > bound.overall * (1 + TOLERANCE)
    proof = "lp" if better else bound.proof
    tiers, overall = np.maximum(tiers, bound.tiers), max(overall, bound.overall)
    return replace(bound, tiers=tiers, overall=overall, proof=proof)


def is_met(problem: PlanningProblem, assignment: Assignment) -> bool:
    """Whether every tier is at its bound."""
    reached = tier_worst(problem.network, assignment)
    return bool((reached <= problem.target().bounds + CLOSE).all())


def _is_met_everywhere(problem: PlanningProblem, assignment: Assignment) -> bool:
    """Whether every tier is at its bound, and every arc at its own where more is known."""
    arcs, chosen = problem.target().arcs, problem.network.chosen
    if not is_met(problem, assignment) or arcs is None:
        return is_met(problem, assignment)
    return bool((assignment.utilization()[chosen] <= arcs[chosen] + CLOSE).all())


def tier_worst(network: Network, assignment: Assignment) -> Floats:
    """Worst utilisation of the arcs of each tier that there is a choice about."""
    tier, chosen = network.fabric.structure.tier_of_arc, network.chosen
    worst = np.zeros(len(network.fabric.structure.tiers))
    np.maximum.at(worst, tier[chosen], assignment.utilization()[chosen])
    return worst


def better(problem: PlanningProblem, first: Assignment, second: Assignment) -> Assignment:
    """The one that is less above what is worth having; or whose tiers exceed their bounds less.

    Tiers count worst first. Of equals the one whose arcs exceed their targets less,
    worst arc first.
    """
    target, chosen = problem.target(), problem.network.chosen
    bounds = target.bounds * (1 + WORTH_SEARCHING)

    def badness(assignment: Assignment) -> tuple[float, list[float], list[float], list[float]]:
        worst = tier_worst(problem.network, assignment)
        over = np.maximum(worst - bounds, 0.0)
        used = assignment.utilization()[chosen]
        beyond = float(
            (used - acceptable_utilization(problem, assignment)[chosen]).max(initial=0.0)
        )
        above = used if target.arcs is None else np.where(used > target.arcs[chosen], used, 0.0)
        arcs = np.sort(np.round(above[above > 0], 6))[::-1]
        tiers = sorted(np.round(over, 6), reverse=True), sorted(worst, reverse=True)
        return round(beyond, 6), *tiers, arcs.tolist()

    return second if badness(second) < badness(first) else first
