"""Ways of making a plan, each carried through to loads that can be compared."""

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
from heddle_controller.solve.bounds.cuts import Bound, cut_bound, in_whole_qps
from heddle_controller.solve.bounds.prices import price_bounds, unrestricted_bounds, widen
from heddle_controller.solve.bounds.relaxation import FRESH, Descent, Relaxation
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.colouring.planes import Planes, coloured_paths
from heddle_controller.solve.commodities import Commodities, commodities_of, whole_shares
from heddle_controller.solve.network import Network
from heddle_controller.solve.options import Deadline
from heddle_controller.solve.search.guided import GuidedSearch
from heddle_controller.solve.search.search import (
    TOLERANCE,
    WORTH_SEARCHING,
    Chains,
    LoadTarget,
    Search,
    SearchLimits,
    place_greedily,
)

_FINEST = 256
"""Most parts that one flow is split into. Finer parts spread load no better."""
MOST_PARTS = 500_000
"""Most parts of all flows together. Colouring more is not worth the memory."""

COARSEST, LESS_COARSE = 8.0, 0.7
"""Smoothing of the first stage in a graph without tiers, and its factor from stage to stage.

Coarse prices favour short paths. Finer prices lead around full arcs."""
KEMPE = SearchLimits(
    depth=100, width=1, budget=600, effort=100_000, spare=100_000, beneath=0, patience=200
)
"""Limits for long chains without alternatives. In a chain that exchanges two spines, each step
determines the next."""
SEARCHED_TOO = 200
"""Most flows for which search also makes a plan where ``PlanningProblem.served`` is known. Its
slowest flow is no faster, but tiers between switches may be less full."""
CLOSE = 1e-6
"""Utilisation by which an arc may exceed a bound and still count as meeting it."""
_PATIENCE = 1000
"""Steps of guided search in a row without gain after which it ends."""
_EACH = 4
"""The same limit for each chunk of a plan; small plans end at this one."""
GUIDED_STEPS = 36_000
"""Most steps of guided search for one plan."""
_AS_IT_IS = 0.9
"""Part of a tier's distance to its bound. A target that leaves this much or more is not tried."""
NEAR = 0.003
"""A relaxation within this of its bound, relative to the bound, is not worth more candidates."""
GAINED = 0.0005
"""The search for more candidates ends after a stage that gains no more than this, relative to the
stage before."""
MOST_WIDENINGS = 16
"""Most stages of the relaxation; more candidates are looked for between two stages."""

Preference: TypeAlias = Callable[[Assignment, Assignment], Assignment]
"""Returns one of two assignments. The first is the one that was there before."""


@dataclass(slots=True)
class PlanningProblem:
    """The input of planning, and what is known about it so far."""

    network: Network
    candidates: Candidates
    planes: Planes | None
    flows: Flows
    routed: Bools
    """Marks the flows that have a path, as far as is known; shape (flows,)."""
    bound: Bound
    deadline: Deadline
    lp_tiers: Floats | None = field(default=None)
    """Bound of each tier over the candidate paths, by linear programme; None until it is known."""
    served: Assignment | None = None
    """An assignment in which all flows get what the usable links of their NICs allow. Only where
    NICs lost links and such an assignment was found."""
    notes: tuple[str, ...] = ()
    """What was given up, as sentences for people."""
    steps: int = GUIDED_STEPS
    """Steps of guided search that are left."""

    def target(self) -> LoadTarget:
        """Return the utilisation below which search gains nothing more, for tiers and for arcs.

        It is the bound of the tier or the arc, raised to the smaller of 1 and the whole plan's
        bound. Up to that value an arc makes neither the plan worse nor a flow slower.
        """
        tiers = self.bound.aims
        if self.lp_tiers is not None:
            tiers = np.maximum(tiers, self.lp_tiers)
        overall = max(self.bound.overall, float(tiers.max(initial=0.0)))
        idle = min(overall, 1.0)
        arcs = None if self.bound.arcs is None else np.maximum(self.bound.arcs, idle)
        return LoadTarget(np.maximum(tiers, idle), overall, arcs)

    def exclude(self, stuck: list[int]) -> None:
        """Stop counting flows that have no path, by row, and prove the cut bound of the others."""
        if stuck:
            self.routed[stuck] = False
            self.bound = cut_bound(self.network, self.flows, self.routed)


def by_colouring(problem: PlanningProblem, planes: Planes) -> Assignment:
    """Colour whole flows, or parts of flows where whole ones do not suffice, and search.

    Where no flow's colour is missing, all flows are split alike, into ever more equal parts, until
    the bounds are met: a colouring of equal parts is as even as these parts can be. Numbers of
    parts that leave a part too large for one link of its NIC are tried last.

    Otherwise only flows that overfill an arc are split, into QPs. Each arc has a bound of its own:
    where one NIC has lost one of its two links, that does not excuse a NIC with both links from
    splitting its flows over them.
    """
    flows = problem.flows
    alike, whole = _in_equal_parts(problem, planes)
    if alike is None or not _is_met_everywhere(problem, alike):
        problem.served = _on_links_left(problem, planes)
        if problem.served is not None and len(flows) > SEARCHED_TOO:
            return problem.served
        hidden = problem.served is None and planes.around_holes
        if hidden and (_line_shares(problem) < 1).any():
            # The bounds of NICs that lost links hide excess load elsewhere. Search sees it.
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
    """Split all flows into ever more equal parts, until every arc meets its bound.

    Returns:
        The best assignment, or None if no number of parts brings every tier to its bound; and the
        paths of whole flows as far as colours place them. If the deadline passes, it is the best
        assignment so far.
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
    """Return flows in equal parts on the usable links of their NICs, where only NICs limit flows.

    A NIC that lost one of its links sends no more than its other links carry. So its flows are
    split into fewer parts, in proportion, on these links. All else is as if the NIC had lost no
    link. Returns None where NICs do not slow any flow, where switches do, or where no number of
    parts that colours place meets the bounds.
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
    """Return the part of each flow that its NICs' usable links carry, shape (flows,).

    All flows of a NIC get the same part.
    """
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
    """Colour flows in ``parts`` parts each. The assignment is None if some part has no path."""
    flows = problem.flows
    paths = coloured_paths(planes, flows, np.repeat(np.arange(len(flows)), parts))
    complete = _flows_on(paths) == np.count_nonzero(problem.routed)
    return paths, loaded(problem, paths) if complete else None


def _flows_on(paths: Paths) -> int:
    """Return how many flows the paths belong to. Paths are ordered by flow."""
    return int(np.count_nonzero(np.diff(paths.flow, prepend=-1)))


def _is_too_coarse(problem: PlanningProblem, parts: Ints) -> bool:
    """Return whether a part of some flow overfills every link of a NIC with several links."""
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
    """Return an assignment with the wished paths where flows may take them; search places the rest.

    Where few wished paths are denied, each arc that lacks one gets another along an alternating
    chain, as in edge colouring (Kempe). Chains are long because candidates differ from flow to
    flow. Paths move whole at first, since split QPs would fill the room that chains need. What is
    still too full is split afterwards.

    Args:
        problem: Its candidates may be any.
        wished: Paths between terminals, of flows that have candidates.
    """
    assignment = loaded(problem, _wholes(problem, wished))
    Search(assignment, problem.candidates, problem.target(), problem.deadline).run()
    return nearer_bounds(problem, to_bounds(problem, assignment))


def _wholes(problem: PlanningProblem, wished: Paths) -> Paths:
    """Return the wished paths, with those that are no candidates replaced. None is split.

    Search may move other paths, too.
    """
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
    """Return whether the path of a row is one of the candidates of its flow."""
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
    """Yield numbers of equal parts to split flows into, ever larger; shape (flows,).

    Each number is the largest divisor of the flow's QPs that is at most 2, 4, 8, ... It ends at
    ``_FINEST`` parts a flow or ``MOST_PARTS`` in all.
    """
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
    """Return the number of parts to split each flow into: its QPs, or as many as memory allows."""
    most = min(_FINEST, max(1, MOST_PARTS // max(1, len(qps))))
    return np.minimum(qps, most)


def loaded(problem: PlanningProblem, inner: Paths) -> Assignment:
    """Return an assignment of paths between terminals."""
    assignment = Assignment(problem.network, problem.flows)
    assignment.load_chunks(inner)
    return assignment


def _overfilling(problem: PlanningProblem, assignment: Assignment) -> Ints:
    """Return rows of flows to split: on each arc over its target, as many as make up the excess.

    There are none where every flow has a single QP.
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
    """Round the linear relaxation, place the QPs left over greedily, and search.

    Improves the problem's bounds on the way.
    """
    flows = problem.flows
    commodities, relaxation = relaxed(problem)
    local = np.flatnonzero(problem.routed & (commodities.of_flow < 0))
    inner, left = whole_shares(flows, commodities, relaxation.shares, local)
    return _finish(problem, loaded(problem, inner), *left)


def relaxed(problem: PlanningProblem) -> tuple[Commodities, Relaxation]:
    """Solve the relaxation, with more candidates where its prices show that they pay.

    The existing candidates come first. Where there are few to begin with, every stage adds more
    while prices are still coarse. Improves the problem's bounds.
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
    """Return the flows grouped by terminals, with their current candidates.

    Flows without a path are excluded from the problem.
    """
    commodities = commodities_of(problem.network, problem.candidates, problem.flows, problem.routed)
    problem.exclude(commodities.stuck.tolist())
    return commodities


def _note_bounds(
    problem: PlanningProblem, commodities: Commodities, relaxation: Relaxation
) -> None:
    """Raise the problem's bounds to what the prices of the relaxation prove."""
    network = problem.network
    problem.lp_tiers, _ = price_bounds(network, commodities, relaxation)
    tiers, overall = unrestricted_bounds(network, commodities, relaxation)
    problem.bound = _improved(problem.bound, tiers, overall)


def acceptable_utilization(problem: PlanningProblem, assignment: Assignment) -> Floats:
    """Return the utilisation up to which each arc is near enough to its bound, shape (arcs + 1,).

    It is the bound in whole QPs or, where that is more, a little above what QPs that could be
    divided freely would reach, plus one QP of the largest flow.
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
    """Return the assignment with every tier at its bound if guided search finds one.

    Otherwise the better of the given assignment and the one found.
    """
    if is_met(problem, assignment):
        return assignment
    # A sixth of the steps: if bounds are not reached, ``nearer`` uses the others.
    tried, _ = _guided(problem, assignment, problem.target().bounds, problem.steps // 6)
    return better(problem, assignment, tried)


def nearer_bounds(problem: PlanningProblem, assignment: Assignment) -> Assignment:
    """Return the assignment with tiers nearer to bounds that they do not reach; see ``nearer``."""
    return nearer(problem, assignment, problem.target().bounds, partial(better, problem))


def nearer(
    problem: PlanningProblem, assignment: Assignment, bounds: Floats, choose: Preference
) -> Assignment:
    """Return the assignment with tiers as near to their bounds as guided search brings them.

    All tiers are brought nearer together, and then one after the other, the one that is farthest
    from its bound first, while the others stay at most as full as they are. A tier whose bound no
    plan can reach, because QPs are too large for its links, thus does not hold up the others. The
    first aim is halfway to the bound. After each failure the next aim is farther from the bound,
    and after each success it is nearer.

    Args:
        problem: Its remaining steps limit the search.
        assignment: It is not changed.
        bounds: Utilisation of each tier, shape (tiers,).
        choose: Chooses between the assignment and what was found.
    """
    over = tier_worst(problem.network, assignment) - bounds
    tiers = np.argsort(-over, kind="stable")[: np.count_nonzero(over > CLOSE)]
    groups = [tiers, *tiers[:, None]] if len(tiers) > 1 else [tiers]
    for number, group in enumerate(groups):
        kept = problem.steps - problem.steps // (len(groups) - number)
        assignment = _nearer(problem, assignment, (bounds, group), choose, kept)
    return assignment


def _nearer(
    problem: PlanningProblem,
    assignment: Assignment,
    where: tuple[Floats, Ints],
    choose: Preference,
    kept: int,
) -> Assignment:
    """Bring some tiers nearer to their bounds, until only ``kept`` steps are left.

    ``where`` are the bounds of all tiers, and which tiers count.
    """
    (bounds, tiers), share = where, 0.5
    while share < _AS_IT_IS and problem.steps > kept and not problem.deadline.passed():
        reached = np.maximum(tier_worst(problem.network, assignment), bounds)
        above = (reached - bounds)[tiers]
        if (above <= CLOSE).all():
            break
        reached[tiers] -= (1 - share) * above
        tried, done = _guided(problem, assignment, reached, problem.steps - kept)
        assignment = choose(assignment, tried)
        share = share / 2 if done else (1 + share) / 2
    return assignment


def _guided(
    problem: PlanningProblem, assignment: Assignment, aims: Floats, effort: int
) -> tuple[Assignment, bool]:
    """Run guided search on a copy; return the copy and whether it reached its aims.

    ``aims`` is the utilisation that arcs of each tier may have, shape (tiers,). The search takes at
    most ``effort`` steps. Each search of a problem draws other random numbers.
    """
    limit = np.append(aims, np.inf)[problem.network.tier]
    tried = assignment.copy()
    chains = Chains(tried, problem.candidates, problem.deadline, SearchLimits())
    search = GuidedSearch(chains, limit, seed=problem.steps)
    done = search.run(min(_PATIENCE, _EACH * len(tried.flow)), effort)
    problem.steps -= search.steps
    return tried, done


def _improved(bound: Bound, tiers: Floats, overall: float) -> Bound:
    """Return the bound, raised to what the linear programme proves where that is more."""
    better = overall > bound.overall * (1 + TOLERANCE)
    proof = "lp" if better else bound.proof
    tiers, overall = np.maximum(tiers, bound.tiers), max(overall, bound.overall)
    return replace(bound, tiers=tiers, overall=overall, proof=proof)


def is_met(problem: PlanningProblem, assignment: Assignment) -> bool:
    """Return whether every tier is at its bound."""
    reached = tier_worst(problem.network, assignment)
    return bool((reached <= problem.target().bounds + CLOSE).all())


def _is_met_everywhere(problem: PlanningProblem, assignment: Assignment) -> bool:
    """Return whether every tier, and every arc with a bound of its own, is at its bound."""
    arcs, chosen = problem.target().arcs, problem.network.chosen
    if not is_met(problem, assignment) or arcs is None:
        return is_met(problem, assignment)
    return bool((assignment.utilization()[chosen] <= arcs[chosen] + CLOSE).all())


def tier_worst(network: Network, assignment: Assignment) -> Floats:
    """Return the worst utilisation of each tier over arcs that paths can choose, shape (tiers,)."""
    tier, chosen = network.fabric.structure.tier_of_arc, network.chosen
    worst = np.zeros(len(network.fabric.structure.tiers))
    np.maximum.at(worst, tier[chosen], assignment.utilization()[chosen])
    return worst


def better(problem: PlanningProblem, first: Assignment, second: Assignment) -> Assignment:
    """Return the better of two assignments, the first if they are equal.

    The one with the smaller worst excess over ``acceptable_utilization`` is better. Ties are
    decided by the excess of tiers over their bounds, then by the worst utilisation of tiers, then
    by the utilisation of arcs above their targets, each time the worst first.
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
