"""How much time jobs gain from one plan to another."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from heddle_controller.model.plan import Plan
from heddle_controller.place.score import gain_of_jobs, scores
from heddle_controller.solve import solve
from heddle_emulator.topology import clos
from tests.support.solve_flows import flows_of, nic_ids


def without(plan: Plan, *jobs: str) -> Plan:
    """The same plan, in which flows of some jobs have no path."""
    names = [plan.flows.job_names[row] for row in plan.flows.job.tolist()]
    lost = {row: "no link is up" for row, name in enumerate(names) if name in jobs}
    kept = np.flatnonzero(~np.isin(plan.paths.flow, list(lost)))
    rows = plan.backups.take(kept)
    return replace(plan, paths=plan.paths.take(kept), backups=rows, unrouted=lost)


def test_a_lost_job_outweighs_all_others() -> None:
    """A job without a path takes for ever, which no gain of other jobs makes up for."""
    fabric = clos(leaves=2, spines=2, nics_per_leaf=1)
    one, other = nic_ids(fabric)
    plan = solve(
        fabric, flows_of(fabric, (one, other, 100.0, 1, "a", ""), (other, one, 100.0, 1, "b", ""))
    )
    assert np.isfinite([one.seconds for one in scores(plan).values()]).all()
    assert gain_of_jobs(plan, plan) == 0.0
    assert gain_of_jobs(plan, without(plan, "a")) == -np.inf
    assert gain_of_jobs(without(plan, "a"), plan) == np.inf
    assert gain_of_jobs(without(plan, "a"), without(plan, "b")) == -np.inf
    assert gain_of_jobs(without(plan, "a", "b"), without(plan, "a", "b")) == 0.0
