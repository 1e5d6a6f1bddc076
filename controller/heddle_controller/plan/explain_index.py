"""What every flow of a plan is explained from: made once, in a thread, and asked again and again.

With it at hand an explanation looks at the few links in question and at no column of all paths.
"""

from __future__ import annotations

from dataclasses import dataclass

from heddle_controller.model.plan import Plan
from heddle_controller.model.underlay import Underlay, underlay
from heddle_controller.plan.arc_users import ArcUsers, arc_users


@dataclass(frozen=True, slots=True, eq=False)
class ExplainIndex:
    """Which flows use each arc of a plan, and which ways its fabric has."""

    uses: ArcUsers
    now: Underlay
    """Over the arcs that take new paths."""
    whole: Underlay
    """Over all arcs; the same object where all of them do."""


def explain_index_of(plan: Plan) -> ExplainIndex:
    """The index of a plan."""
    whole = underlay(plan.fabric.structure)
    plannable = plan.fabric.plannable
    now = whole if plannable.all() else underlay(plan.fabric.structure, plannable)
    return ExplainIndex(arc_users(plan), now, whole)
