"""Among plans of equal loads the fairest: exchanges of QPs between flows.

Search looks at links; what a job feels is its slowest flow. With four cables of 77 QPs
and one of 76, a flow whose QPs are all on the 76 is faster than one without, though no
link could be better; and where a cable must carry two flows, it matters whose they are.
So where links stay overloaded, flows exchange QPs: one leaves the arc that holds it
back for a better one, another goes the opposite way, and the loads stay as they were.

The aim is weighted max-min fairness (Bertsekas and Gallager, Data Networks, 6.5). The
value of a flow is its fair rate over its demand (``sharing``) over its job's priority; the
least value is raised, then the next. An exchange must leave both flows above what the
slower one had, so the sorted list of values rises and that comes to an end. A flow of
priority 10 thus gives way to one of priority 1 only when it is ten times as well off.
Loads come first all the same: no priority buys a fuller link than there has to be, for
the certificate says how full links are.

Exchanges are of two flows. Where several have to change places at once, small
neighbourhoods of the slowest are placed anew (``slowest``), in plans from nothing only.
An arc of few QPs may rise as far as its tier's target, if that slows nobody below the
flow that is helped.

Both reckon with the rates that arcs give now. In small cases, in plans from nothing, places
are then also tried as they would be served (``hill_climb``). There an arc may be as full as the
fullest is, where that helps the slowest: a link that slows nobody costs nothing. It may also
hold back a flow that would leave the slowest less of a NIC's link, so this is tried where
only such links are overloaded, too. Nothing else is done there: exchanges look
at links that could be avoided.
"""

from __future__ import annotations

from heddle_controller.solve.assignment import Assignment, merged_chunks
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.fairness.hill_climb import climb, is_small
from heddle_controller.solve.fairness.qp_swap import QpSwaps
from heddle_controller.solve.fairness.sharing import Shares
from heddle_controller.solve.fairness.slowest import raise_slowest
from heddle_controller.solve.options import Deadline
from heddle_controller.solve.phases import phased_jobs
from heddle_controller.solve.search.search import LoadTarget, Search

_ROUNDS = 4
"""Levels are found anew so often: exchanges change them a little."""
_LOOKS = 20_000
"""Exchanges looked at in all; a count, not a time, so that plans repeat."""
_TOLERANCE = 1e-9


def even(
    assignment: Assignment, candidates: Candidates, target: LoadTarget, deadline: Deadline
) -> Assignment | None:
    """The assignment made fairer; None where there is nothing to gain. Numbers QPs anew."""
    if not (_overloaded(assignment) and _unlike(assignment)) and not is_small(assignment):
        return None
    compact = Assignment(assignment.network, assignment.flows)
    compact.load_chunks(merged_chunks(assignment, renumber=True))
    return compact if balance_qps(Search(compact, candidates, target, deadline)) else None


def balance_qps(search: Search, movable: frozenset[int] | None = None) -> bool:
    """Exchanges QPs within what a search left, while that makes it fairer.

    ``movable`` names the flows that may be moved in any case (None for all); others make
    room for flows of higher priority only, and where there is none, nothing is done: what
    a repair leaves alone stays. Returns whether anything was moved.
    """
    assignment = search.assignment
    if movable is not None and not _ranked(assignment):
        return False
    assignment.journal.clear()
    if _overloaded(assignment) and _unlike(assignment):
        _exchange(search, movable)
    if movable is None:
        climb(search)
    return bool(assignment.journal)


def _exchange(search: Search, movable: frozenset[int] | None) -> None:
    """Exchanges of two flows, then of several, under levels that are found anew now and then."""
    assignment, looks = search.assignment, _LOOKS
    shares = Shares(assignment)
    for _ in range(_ROUNDS):
        begin = len(assignment.journal)
        exchange = QpSwaps(search, shares, movable, looks)
        exchange.run()
        looks = exchange.looks
        if len(assignment.journal) == begin:
            break
        after = Shares(assignment)
        if after.sorted_values <= shares.sorted_values:
            assignment.roll_back(begin)
            break
        shares = after
    if movable is None and not len(phased_jobs(assignment.flows)):
        raise_slowest(search, shares)


def _overloaded(assignment: Assignment) -> bool:
    """Whether a link that is a choice is overloaded."""
    chosen = assignment.network.chosen
    return bool(assignment.utilization()[chosen].max(initial=0.0) > 1 + _TOLERANCE)


def _unlike(assignment: Assignment) -> bool:
    """Whether it could matter whose QPs are where, loads being equal."""
    flows = assignment.flows
    return bool(flows.qps.max() > 1) or _ranked(assignment)


def _ranked(assignment: Assignment) -> bool:
    """Whether priorities differ."""
    weight = assignment.flows.weight
    return bool((weight != weight[:1]).any())
