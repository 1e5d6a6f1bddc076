"""Room for local repair: QPs are spread further than full links require.

Where no link is overloaded, a link at 0.5 is as good as one at 1.0 until something fails. Then the
traffic of the lost link has to go elsewhere before anybody plans. Two measures leave room for it,
and both cost entries:

- Each tier is brought to its own bound, not only to line rate: flows are split, and chunks move.
- Small pieces fall on many links instead of one. Where all switches state the size of their
  tables, every flow is split as far as half of each table stays free for others.

Neither makes the fullest link of a tier fuller.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, distinct
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.solve.assignment import Assignment, exported_paths, merged_chunks
from heddle_controller.solve.attempt import PlanningProblem, ladder, loaded, nearer, tier_worst
from heddle_controller.solve.colouring.planes import coloured_paths
from heddle_controller.solve.search.search import TOLERANCE, LoadTarget, Search, SearchLimits
from heddle_controller.solve.tables import entry_needs, limited, pairs_of

_WORTH = 0.01
"""How much less full, relatively, the fullest link of a tier must become to be worth more
entries."""
LEFT = 2
"""Pieces of flows may take one entry in this many. The others are for flows that come later."""
MOST_CROWDED_NAMED = 3
"""Most switches that are named."""
HALF = 0.5
"""Utilisation up to which one link can also take the load of another."""
LIMITS = SearchLimits(effort=2000, spare=500, beneath=0, patience=8)
"""Limits of the search for room. A little effort is enough, since no flow is slow without it."""


def with_headroom(problem: PlanningProblem, assignment: Assignment) -> Assignment | None:
    """Return the assignment with more room, its QPs numbered anew; None if nothing is gained.

    Nothing is done where a link that paths can choose is overloaded: there it only matters which
    flow gets how much of it. Nothing is done either where all such links are at most half full: the
    load of one lost link then fits on another.
    """
    before = tier_worst(problem.network, assignment)
    if not HALF < before.max(initial=0.0) <= 1 + TOLERANCE:
        return None
    spread = _spread(problem, before)
    if _is_even(problem, before if spread is None else tier_worst(problem.network, spread)):
        return spread
    best = spread or _taken_apart(problem, before)
    if best is None:
        best = loaded(problem, merged_chunks(assignment, renumber=True))
    best = _levelled(problem, best)
    lower = (tier_worst(problem.network, best) < before * (1 - _WORTH)).any()
    return best if lower else spread


def _is_even(problem: PlanningProblem, reached: Floats) -> bool:
    return bool((reached <= problem.bound.tiers * (1 + _WORTH)).all())


def _levelled(problem: PlanningProblem, assignment: Assignment) -> Assignment:
    """Return the assignment with chunks moved off arcs that are fuller than their tier's bound."""
    bounds = problem.bound.tiers
    target = LoadTarget(bounds, float(bounds.max(initial=0.0)))
    search = Search(assignment, problem.candidates, target, problem.deadline, LIMITS)
    reached = tier_worst(problem.network, assignment)
    search.cap = problem.network.by_tier(reached + TOLERANCE, np.inf)
    search.run()

    def no_fuller(old: Assignment, new: Assignment) -> Assignment:
        before, after = (tier_worst(problem.network, one) for one in (old, new))
        return new if (after <= before + TOLERANCE).all() else old

    return nearer(problem, assignment, bounds, no_fuller)


def _spread(problem: PlanningProblem, before: Floats) -> Assignment | None:
    """Return all flows in as many parts as tables have room for.

    None where some switch states no table size, or no number of parts fits without a fuller tier.
    """
    fabric = problem.network.fabric
    if not limited(fabric)[problem.network.level != NodeKind.NIC].all():
        return None
    for pieces in reversed([*_coloured(problem)]):
        if (tier_worst(problem.network, pieces) > before + TOLERANCE).any():
            continue
        crowded = _crowded(problem, pieces)
        if not len(crowded):
            return pieces
        if not problem.notes:  # the note tells about the finest pieces
            problem.notes = (_given_up(fabric, crowded),)
    return None


def _given_up(fabric: Fabric, crowded: Ints) -> str:
    names = [fabric.structure.nodes.ids[row] for row in crowded[:MOST_CROWDED_NAMED].tolist()]
    more = (
        f" and {len(crowded) - MOST_CROWDED_NAMED} more"
        if len(crowded) > MOST_CROWDED_NAMED
        else ""
    )
    return (
        "flows are in fewer parts than would leave most room after a loss: more than half of the"
        f" table would be taken at {', '.join(names)}{more}"
    )


def _crowded(problem: PlanningProblem, assignment: Assignment) -> Ints:
    """Return the switches whose tables would not stay half empty."""
    fabric, flows = problem.network.fabric, problem.flows
    needs = entry_needs(fabric, flows, exported_paths(assignment, renumber=True), pairs_of(flows))
    size = fabric.structure.nodes.table_size
    return np.flatnonzero(limited(fabric) & (needs.by_switch(fabric.node_count) * LEFT > size))


def _taken_apart(problem: PlanningProblem, before: Floats) -> Assignment | None:
    """Return all flows in the fewest equal parts that meet the bounds, else in the best number.

    None where no number of parts makes a tier less full.
    """
    best, reached = None, before
    for pieces in _coloured(problem):
        found = tier_worst(problem.network, pieces)
        lower = (found < reached * (1 - _WORTH)).any()
        if lower and (found <= reached + TOLERANCE).all():
            best, reached = pieces, found
        if _is_even(problem, reached):
            break
    return best


def _coloured(problem: PlanningProblem) -> Iterator[Assignment]:
    """Yield all flows in ever more equal parts, coloured, while every part finds a path."""
    flows, planes = problem.flows, problem.planes
    if planes is None:
        return
    for parts in ladder(flows):
        if problem.deadline.passed():
            return
        rows = np.repeat(np.arange(len(flows), dtype=np.int64), parts)
        pieces = coloured_paths(planes, flows, rows)
        if len(distinct(pieces.flow)) < np.count_nonzero(problem.routed):
            return
        yield loaded(problem, pieces)
