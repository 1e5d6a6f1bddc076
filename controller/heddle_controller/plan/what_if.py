"""Two plans side by side: what a change would do, without doing it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.plan.diff import changed_flows


@dataclass(frozen=True, slots=True)
class TierChange:
    """Worst utilisation of one tier, before and after."""

    tier: str
    before: float
    after: float


@dataclass(frozen=True, slots=True, eq=False)
class Comparison:
    """What becomes of the flows of a plan in another; rows are those of ``after``'s flows."""

    before: Certificate
    after: Certificate
    moved: Ints
    """Flows with a path in both, and another one."""
    lost: Ints
    """Flows without a path that had one."""
    regained: Ints
    """Flows with a path that had none."""
    tiers: tuple[TierChange, ...]


def compare_plans(before: Plan, after: Plan) -> Comparison:
    """Two plans, flows matched by id; flows of one plan only count as neither lost nor moved."""
    had = _routed(before)
    has = _routed(after)
    rows = {flow: row for row, flow in enumerate(after.flows.ids)}
    shared = {row: rows[flow] for row, flow in enumerate(before.flows.ids) if flow in rows}
    lost = [now for row, now in shared.items() if had[row] and not has[now]]
    regained = [now for row, now in shared.items() if has[now] and not had[row]]
    return Comparison(
        before=before.certificate,
        after=after.certificate,
        moved=np.setdiff1d(changed_flows(before, after), lost),
        lost=np.array(sorted(lost), dtype=np.int64),
        regained=np.array(sorted(regained), dtype=np.int64),
        tiers=tuple(_tiers(before.certificate, after.certificate)),
    )


def _routed(plan: Plan) -> list[bool]:
    routed = np.zeros(len(plan.flows), dtype=np.bool_)
    routed[plan.paths.flow] = True
    found: list[bool] = routed.tolist()
    return found


def _tiers(before: Certificate, after: Certificate) -> Iterator[TierChange]:
    was = {tier.tier: tier.max_utilization for tier in before.tiers}
    now = {tier.tier: tier.max_utilization for tier in after.tiers}
    for tier in {**was, **now}:
        yield TierChange(tier, was.get(tier, 0.0), now.get(tier, 0.0))
