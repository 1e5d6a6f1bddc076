"""The rule of the deletion of a fabric.

Only an empty fabric is deleted: one without jobs, demand sets and reservations. Its plans, states
and settings go with it. What stays is a handful of numbers that must never go back, although the
name may be put again:

- *Generation.* Agents refuse pushes that are older than what they have accepted.
- *Revision.* A job may have been checked against the deleted fabric and be written after it.
- *Versions.* Whoever compares them must not take the next fabric for the deleted one.

A deletion raises them all. So a write that was decided before it, such as a commit of the leader,
finds its guards broken and leaves nothing behind.
"""

from __future__ import annotations

from collections.abc import Sequence

from heddle.text import some_of
from heddle_controller.model.errors import Problem
from heddle_controller.state.demands import demand_sets
from heddle_controller.state.errors import FailedPrecondition
from heddle_controller.state.fabrics import GROUND, Structures, check_etag, meta_of, text_of
from heddle_controller.state.jobs import RESERVED, reservations_of
from heddle_controller.state.plans import plan_rows
from heddle_controller.state.view import (
    CHANGE_TIME,
    FACTS_VERSION,
    GENERATION,
    INTENT,
    INTENT_VERSION,
    JOB_KIND,
    REVISION,
    Change,
    Stamp,
    View,
    check_known,
    entry_of,
)


def delete_fabric(view: View, structures: Structures, etag: str, stamp: Stamp) -> Change:
    """Delete a fabric with all its plans.

    Raises:
        NotFound: there is no such fabric.
        Conflict: ``etag`` is given and is not that of the fabric.
        FailedPrecondition: names the jobs, demand sets and reservations to delete first.
    """
    check_known(view)
    check_etag(view, etag)
    reserved = [one.name for one in reservations_of(view, stamp.now)]
    problems = [
        *_left("jobs", view.names(JOB_KIND), "job delete"),
        *_left("demand sets", sorted(demand_sets(view)), "demand delete"),
        *_left("reservations", reserved, "job release"),
    ]
    if problems:
        raise FailedPrecondition(f"fabric {view.name!r}", *problems)
    raised = {name: view.number(name) + 1 for name in (REVISION, GENERATION, FACTS_VERSION)}
    plans = [blob for row in plan_rows(view).values() for blob in row.pointed_at()]
    return Change(
        fabric=view.name,
        moves=INTENT,
        time=stamp.now,
        guards=tuple(
            view.guard(field) for field in (GROUND, INTENT_VERSION, FACTS_VERSION, RESERVED)
        ),
        sets={
            **dict.fromkeys(view.fields().keys() - {INTENT_VERSION, CHANGE_TIME}),
            **{name: str(number).encode() for name, number in raised.items()},
        },
        drop=(meta_of(view).blob, *plans),
        audit=entry_of(
            stamp, "delete_fabric", f"fabrics/{view.name}", (text_of(view, structures), "")
        ),
    )


def _left(what: str, names: Sequence[str], command: str) -> list[Problem]:
    if not names:
        return []
    told = some_of([repr(name) for name in names])
    return [Problem(what, f"it still has {told}; delete them first by 'heddle {command}'")]
