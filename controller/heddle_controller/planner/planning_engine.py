"""The engine that plans with the solver: only a planning process loads it."""

from __future__ import annotations

from functools import partial

from heddle_controller.model.plan import Objective
from heddle_controller.place.score import gain_of_jobs
from heddle_controller.plan.diff import changed_flows
from heddle_controller.plan.revision import entries_after
from heddle_controller.plan.verify import verify_plan
from heddle_controller.planner.engine import Engine
from heddle_controller.solve import Options, plan_anew, prove, repairer_of
from heddle_controller.traffic.jobs import flows_of_job

PROOF_SECONDS = 10.0
"""Of looking for a better bound: nobody waits for it, but other questions may."""


def planning_engine(solve_seconds: float | None, objective: Objective = "headroom") -> Engine:
    """The functions that plan, with a time limit for each run of the solver."""
    options = Options(objective=objective, time_limit_seconds=solve_seconds)
    return Engine(
        flows_of_job=flows_of_job,
        solve=partial(plan_anew, options=options),
        repairer=partial(repairer_of, options=options),
        prove=partial(prove, options=Options(time_limit_seconds=PROOF_SECONDS)),
        verify=verify_plan,
        entries_of=entries_after,
        changed_flows=changed_flows,
        gain_of_jobs=gain_of_jobs,
    )
