"""What is kept of a plan and its entries when jobs change, to compare the next plan with."""

from __future__ import annotations

from heddle_controller.model.fabric import Structure
from heddle_controller.model.flows import Flows
from heddle_controller.model.kept import kept_flows, plan_with_kept
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Entries
from heddle_controller.plan.programs import kept_entries
from heddle_controller.plan.verify import with_kept_loads


def kept_of(
    before: tuple[Plan, Entries], structure: Structure, flows: Flows
) -> tuple[Plan, Entries]:
    """Return an earlier plan and its entries, as far as they are kept for the flows of now.

    ``structure`` is that of the flows' fabric. Returns ``before`` itself if it has another one, if
    its flows come first among ``flows``, if no flow is kept, or if source ports carry flows.
    """
    plan = before[0]
    if plan.fabric.structure is not structure or plan.nic_ports:
        return before
    if flows.begins_with(plan.flows):
        return before
    kept = kept_flows(plan.flows, flows)
    if kept is None:
        return before
    rest = with_kept_loads(plan_with_kept(plan, kept), plan, kept)
    return rest, kept_entries(rest, before, kept)
