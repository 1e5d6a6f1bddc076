"""The N-1 certificate: every single link and every single switch lost, after local repair alone.

After "forward fault correction" (FFC, SIGCOMM 2014), which plans so that no fault congests a link.
Here agents turn broken paths to their backups before any controller acts, and what that does
to links and flows is told for the loss that does most, beside what other backups could reach.
"""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import numpy as np

from heddle_controller.model.plan import AfterLoss, Certificate, Plan
from heddle_controller.solve.bounds.proof import proven_bound
from heddle_controller.solve.losses.entered import entered, unprotected_flows
from heddle_controller.solve.losses.floor import least_worst
from heddle_controller.solve.losses.loads import Standing, Survey, worst_of
from heddle_controller.solve.losses.moves import APART, STRANDED, Kind, SingleLosses
from heddle_controller.solve.losses.slowest import FairShares, slowest_of
from heddle_controller.solve.options import Options

_NAMED = 20
"""Flows without a usable backup that are told by name."""


def after_losses(plan: Plan) -> tuple[AfterLoss, ...]:
    """For links between switches and for switches: what the worst single loss does.

    Kinds that the fabric has none of are left out, and backups that no entry turns to.
    """
    standing = Standing.of(entered(plan))
    shares = FairShares(standing)
    told = [_after(standing, shares, kind) for kind in get_args(Kind)]
    return tuple(one for one in told if one is not None)


def prove(plan: Plan, options: Options | None = None) -> Certificate:
    """All that can be said of a plan in peace: the best bound, and every single loss."""
    bare = unprotected_flows(plan)
    return replace(
        proven_bound(plan, options),
        after_loss=after_losses(plan),
        unprotected=len(bare),
        unprotected_flows=tuple(plan.flows.ids[row] for row in bare[:_NAMED].tolist()),
    )


def _after(standing: Standing, shares: FairShares, kind: Kind) -> AfterLoss | None:
    plan = standing.plan
    losses = SingleLosses.of(plan.fabric, kind)
    if not len(losses):
        return None
    survey = Survey.of(standing, losses)
    moves, worst = survey.moves, worst_of(survey)
    slowest = slowest_of(survey, shares, worst)
    floor = least_worst(survey, worst)
    here = moves.loss == slowest.loss
    flow = plan.paths.flow[moves.path]
    stranded = np.setdiff1d(
        flow[here & (moves.fate == STRANDED)], flow[here & (moves.fate == APART)]
    )
    reached = float(worst.max())
    return AfterLoss(
        kind=kind,
        worst_utilization=reached,
        slowest_flow=slowest.ratio,
        of=losses.name(slowest.loss),
        lower_bound=min(floor, reached),
        stranded=len(stranded),
    )
