"""Makes a plan fairer without fuller links: QPs change places.

Search looks at links, but a job is as slow as its slowest flow. With four cables of 77 QPs and one
of 76, a flow whose QPs are all on the 76 is faster than one without, although no link could be
better. Where a cable must carry two flows, it matters whose they are. And a QP that asks for much
gets a smaller part of it among many small ones. So where links stay overloaded, QPs of crowded arcs
are placed again, in plans made from scratch (``regroup``). Then flows exchange QPs. One leaves the
arc that holds it back for a better one, another goes the opposite way, and the loads stay as they
were.

The aim is weighted max-min fairness (Bertsekas and Gallager, Data Networks, 6.5). The value of a
flow is its fair rate divided by its demand (``sharing``) and by its job's priority. The least value
is raised, then the next. An exchange must leave both flows above what the slower one had. So the
sorted list of values rises, and exchanges come to an end. A flow of priority 10 thus gives way to
one of priority 1 only when it is ten times as well off. Loads still come first: no priority buys a
fuller link than there has to be, because the certificate states how full links are.

An exchange involves two flows. Where several have to change places at once, small neighbourhoods of
the slowest are placed again (``slowest``), only in plans made from scratch. An arc of few QPs may
rise as far as its tier's target, if that makes nobody slower than the flow that is helped.

Both methods use the rates that arcs give now. In small cases, in plans made from scratch,
placements are then also tried by the rates that they would give (``hill_climb``). There an arc may
become as full as the fullest arc, where that helps the slowest flow: a link that slows nobody costs
nothing. A full link may even help, by holding back a flow that would take more of a NIC's link from
the slowest one. So this is also tried where only links without a choice are overloaded. Exchanges
are not, since they look only at links that could be avoided.
"""

from __future__ import annotations

from heddle_controller.solve.assignment import Assignment, merged_chunks
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.fairness.hill_climb import climb
from heddle_controller.solve.fairness.placements import is_small
from heddle_controller.solve.fairness.qp_swap import QpSwaps
from heddle_controller.solve.fairness.regroup import regroup
from heddle_controller.solve.fairness.sharing import Shares
from heddle_controller.solve.fairness.slowest import raise_slowest
from heddle_controller.solve.options import Deadline
from heddle_controller.solve.phases import phased_jobs
from heddle_controller.solve.search.search import LoadTarget, Search

_ROUNDS = 4
"""Most rounds of exchanges. Levels are computed again after each, since they change a little."""
_LOOKS = 20_000
"""Exchanges looked at in all. It is a count, not a time, so that plans are reproducible."""
_TOLERANCE = 1e-9


def even(
    assignment: Assignment, candidates: Candidates, target: LoadTarget, deadline: Deadline
) -> Assignment | None:
    """Return a fairer copy of the assignment, or None if nothing was gained. QPs are renumbered."""
    if not (_overloaded(assignment) and _unlike(assignment)) and not is_small(assignment):
        return None
    compact = Assignment(assignment.network, assignment.flows)
    compact.load_chunks(merged_chunks(assignment, renumber=True))
    return compact if balance_qps(Search(compact, candidates, target, deadline)) else None


def balance_qps(search: Search, movable: frozenset[int] | None = None) -> bool:
    """Exchange QPs in the assignment of a finished search, as long as that makes it fairer.

    Args:
        search: The search; its assignment is changed in place.
        movable: Flows that may be moved in any case; None for all. Other flows only make room for
            flows of higher priority, since a repair leaves them alone otherwise. So if this is
            given and all priorities are equal, nothing is done.

    Returns:
        Whether anything was moved.
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
    """Place crowded QPs again, and then exchange QPs of two flows, and of several.

    Levels are computed again after each round.
    """
    assignment, looks = search.assignment, _LOOKS
    shares = Shares(assignment)
    if movable is None and regroup(search):
        after = Shares(assignment)
        if after.sorted_values > shares.sorted_values:
            shares = after
        else:
            assignment.roll_back(0)
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
    """Whether an arc with a choice of path is overloaded."""
    chosen = assignment.network.chosen
    return bool(assignment.utilization()[chosen].max(initial=0.0) > 1 + _TOLERANCE)


def _unlike(assignment: Assignment) -> bool:
    """Whether it can matter whose QPs are where, at equal loads."""
    flows, unit = assignment.flows, assignment.unit
    return bool(flows.qps.max() > 1 or (unit != unit[:1]).any()) or _ranked(assignment)


def _ranked(assignment: Assignment) -> bool:
    """Whether priorities differ."""
    weight = assignment.flows.weight
    return bool((weight != weight[:1]).any())
