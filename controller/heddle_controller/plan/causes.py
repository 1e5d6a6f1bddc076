"""Why a plan replaces the one before: what changed in fabric, jobs and flows between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.demand import PREFIX, UNANNOUNCED_JOB, unannounced_rows
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.plan import Plan

_Value = TypeVar("_Value", int, str)

NAMES_PER_CAUSE = 20
"""Most names that one cause lists."""


class CauseKind(StrEnum):
    """What may have changed."""

    FABRIC_PUT = "fabric-put"
    LINK_LOST = "link-lost"
    LINK_BACK = "link-back"
    LINK_DRAINED = "link-drained"
    LINK_UNDRAINED = "link-undrained"
    SWITCH_LOST = "switch-lost"
    SWITCH_BACK = "switch-back"
    SWITCH_DRAINED = "switch-drained"
    SWITCH_UNDRAINED = "switch-undrained"
    JOB_CAME = "job-came"
    JOB_GONE = "job-gone"
    JOB_SUSPENDED = "job-suspended"
    JOB_RESUMED = "job-resumed"
    FLOWS_CHANGED = "flows-changed"
    TRAFFIC_FOUND = "traffic-found"
    """Flows appeared that nobody announced; they are named by their NICs."""
    TRAFFIC_GONE = "traffic-gone"
    ROLLED_BACK = "rolled-back"
    """An operator went back to an earlier plan, which is named by its generation."""
    BETTER_PLAN = "better-plan"
    """Nothing changed, except perhaps the source ports that hosts found out."""


@dataclass(frozen=True, slots=True)
class Cause:
    """One kind of change, and what it concerns."""

    kind: CauseKind
    names: tuple[str, ...] = ()
    """Links as "a,b" or "a,b,key", switches, jobs or flows; at most ``NAMES_PER_CAUSE``."""
    count: int = 0
    """How many changed, including those not named."""


def causes_between(
    before: Plan | None,
    after: Plan,
    *,
    were_suspended: AbstractSet[str] = frozenset(),
    are_suspended: AbstractSet[str] = frozenset(),
) -> tuple[Cause, ...]:
    """Return what changed from one plan to the next.

    ``before`` is None if there was no plan. Links and switches are compared by row, so this takes
    only a few passes over their states. Plans do not say which jobs were suspended when they were
    made: without ``were_suspended`` and ``are_suspended``, such jobs count as gone and come.
    """
    found = [*_of_fabrics(before.fabric if before else None, after.fabric)]
    known = {*before.flows.job_names} - {UNANNOUNCED_JOB} if before else set()
    wanted = {*after.flows.job_names} - {UNANNOUNCED_JOB}
    came, gone = wanted - known, known - wanted
    found += _named(CauseKind.JOB_CAME, sorted(came - were_suspended))
    found += _named(CauseKind.JOB_RESUMED, sorted(came & were_suspended))
    found += _named(CauseKind.JOB_GONE, sorted(gone - are_suspended))
    found += _named(CauseKind.JOB_SUSPENDED, sorted(gone & are_suspended))
    old, new = _pairs(before), _pairs(after)
    found += _named(CauseKind.TRAFFIC_FOUND, sorted(new - old))
    found += _named(CauseKind.TRAFFIC_GONE, sorted(old - new))
    if (
        before is not None
        and (known, old) == (wanted, new)
        and not after.flows.same_as(before.flows)
    ):
        found.append(Cause(CauseKind.FLOWS_CHANGED))
    return tuple(found) or (Cause(CauseKind.BETTER_PLAN),)


def _pairs(plan: Plan | None) -> set[str]:
    """Return the pairs of NICs of flows that nobody announced, as names."""
    if plan is None:
        return set()
    rows = unannounced_rows(plan.flows).tolist()
    return {plan.flows.ids[row].removeprefix(PREFIX) for row in rows}


def _of_fabrics(before: Fabric | None, after: Fabric) -> list[Cause]:
    if before is None or before.structure is not after.structure:
        return [Cause(CauseKind.FABRIC_PUT)]
    ids = after.structure.nodes.ids
    return [
        *_of_states(_LINK_KINDS, before.link_state, after.link_state, after.link_name),
        *_of_states(_SWITCH_KINDS, before.node_state, after.node_state, ids.__getitem__),
    ]


_LINK_KINDS = (
    (CauseKind.LINK_LOST, State.UP, State.DOWN),
    (CauseKind.LINK_BACK, State.DOWN, State.UP),
    (CauseKind.LINK_DRAINED, State.UP, State.DRAINED),
    (CauseKind.LINK_UNDRAINED, State.DRAINED, State.UP),
)
_SWITCH_KINDS = (
    (CauseKind.SWITCH_LOST, State.UP, State.DOWN),
    (CauseKind.SWITCH_BACK, State.DOWN, State.UP),
    (CauseKind.SWITCH_DRAINED, State.UP, State.DRAINED),
    (CauseKind.SWITCH_UNDRAINED, State.DRAINED, State.UP),
)
"""Each kind, with the states before and after."""


def _of_states(
    kinds: Sequence[tuple[CauseKind, State, State]],
    before: Ints,
    after: Ints,
    name: Callable[[int], str],
) -> Iterator[Cause]:
    changed = np.flatnonzero(before != after)
    was, now = before[changed], after[changed]
    for kind, old, new in kinds:
        yield from _named(kind, changed[(was == old) & (now == new)].tolist(), name)


def _named(
    kind: CauseKind, changed: Sequence[_Value], name: Callable[[_Value], str] = str
) -> list[Cause]:
    if not changed:
        return []
    return [Cause(kind, tuple(name(one) for one in changed[:NAMES_PER_CAUSE]), len(changed))]
