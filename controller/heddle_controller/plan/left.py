"""What is left of a plan and its entries when jobs end, to compare the next plan with."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.ended import plan_left, rows_left
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Entries
from heddle_controller.plan.programs import entries_left
from heddle_controller.plan.verify import with_loads_left


def left_of(before: tuple[Plan, Entries], flows: Flows) -> tuple[Plan, Entries]:
    """Return an earlier plan and its entries without the jobs that have no more flows.

    ``flows`` are the flows now. Returns ``before`` itself if no job ended, if more than that
    differs, or if source ports carry flows.
    """
    plan = before[0]
    rows = None if plan.nic_ports else rows_left(plan.flows, flows)
    if rows is None:
        return before
    ended = np.delete(np.arange(len(plan.flows)), rows)
    rest = with_loads_left(plan_left(plan, rows, flows), plan, ended)
    return rest, entries_left(rest, before, ended)
