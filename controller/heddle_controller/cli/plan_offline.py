"""Plans offline for ``heddle plan``, and prints the plan."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heddle_controller.cli.failure import FAULT, UNROUTED, Failure
from heddle_controller.cli.output import echo, echo_json, echo_pairs, echo_table, progress
from heddle_controller.cli.plan_run import CheckedPlan, PlanRequest, run
from heddle_controller.cli.routes import (
    AFTER_LOSS,
    after_loss_row,
    certificate_text,
    echo_turns,
    echo_unprotected,
)
from heddle_controller.model.errors import InputError
from heddle_controller.plan.verify import PlanInvalid

REASONS_SHOWN = 10


def plan_files(asked: Mapping[str, Any], *, as_json: bool) -> None:
    """Plan as ``asked``, the options of the command, and print it; exit 3 if a flow has no path.

    Raises:
        Failure: An option or a file is faulty, or the plan does not pass its verification.
    """
    request = PlanRequest(**asked)
    if request.flows is None and request.jobs is None:
        raise Failure("nothing to plan: give --flows, --jobs or both")
    limit = request.time_limit
    if limit is not None and not (math.isfinite(limit) and limit >= 0):
        raise Failure(f"--time-limit is {limit:g}; give seconds, 0 or more")
    notes: list[str] = []
    try:
        with progress("starting") as tell:
            outcome = run(request, tell, notes.append)
    except InputError as error:
        raise Failure(str(error)) from error
    except PlanInvalid as error:
        message = f"{error}; nothing was written. This is a fault of Heddle: please report it"
        raise Failure(message, FAULT) from error
    for note in notes:
        echo(note, err=True)
    if as_json:
        echo_json(outcome.record())
    else:
        _summary(outcome, request.out)
    if outcome.plan.unrouted:
        sys.exit(UNROUTED)


def _summary(outcome: CheckedPlan, out: Path | None) -> None:
    plan, timing = outcome.plan, outcome.timing
    routed = len(plan.flows) - len(plan.unrouted)
    repaired = "repair_seconds" in timing
    seconds = {name.removesuffix("_seconds"): value for name, value in timing.items()}
    echo_pairs(
        {
            "fabric": plan.fabric.name,
            "flows": f"{routed} routed, {len(plan.unrouted)} without a path",
            "moved": f"{outcome.changed} flows" if repaired else "",
            "worst link": certificate_text(plan.certificate),
            "seconds": ", ".join(f"{name} {value:.3f}" for name, value in seconds.items()),
            "written to": out or "",
        }
    )
    rows = [
        (tier.tier, f"{tier.max_utilization:.3f}", f"{tier.lower_bound:.3f}")
        for tier in plan.certificate.tiers
    ]
    if rows:
        echo_table(["tier", "worst link", "lower bound"], rows)
    if plan.certificate.after_loss:
        echo_table(AFTER_LOSS, [after_loss_row(one) for one in plan.certificate.after_loss])
    echo_turns(plan.certificate.turns or ())
    for note in plan.notes:
        echo(f"note: {note}")
    unsplit = outcome.unsplit()
    if unsplit:
        echo(
            f"note: {len(unsplit)} flows on over-full links have one QP, so they cannot be split:"
            f" try --qps 2: {_some(unsplit)}"
        )
    exposed = outcome.exposed()
    if exposed:
        echo(
            f"note: PFC may hold up {len(exposed)} flows that cross no over-full link, but share"
            f" links with other jobs' flows to one: {_some(exposed)}"
        )
    unprotected = outcome.unprotected()
    echo_unprotected(len(unprotected), unprotected[:REASONS_SHOWN])
    reasons = sorted(plan.unrouted.items())
    for row, reason in reasons[:REASONS_SHOWN]:
        echo(f"no path for {plan.flows.ids[row]}: {reason}")
    if len(reasons) > REASONS_SHOWN:
        echo(f"and {len(reasons) - REASONS_SHOWN} more flows without a path")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:REASONS_SHOWN]) + (" …" if len(names) > REASONS_SHOWN else "")
