"""What is left of flows and of a plan when jobs end.

Flows that are left keep their order and their paths. Only their rows change.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.model.plan import Paths, Plan, in_parallel

_CONTENT = "source", "destination", "gbps", "qps", "traffic_class", "weight", "bytes"


def rows_left(before: Flows, after: Flows) -> Ints | None:
    """Return the rows of ``before`` that are left in ``after`` once some jobs have ended.

    Returns None if no job has ended, or if ``after`` does not begin with all flows of all other
    jobs, unchanged and in the same order. More flows may follow.
    """
    if before is after:
        return None
    job, phase = jobs_now(before, after), phases_now(before, after)
    rows = np.flatnonzero(job[before.job] != NONE)
    count = len(rows)
    if count in {0, len(before)} or count > len(after):
        return None
    columns = [(job[before.job], after.job), (phase[before.phase], after.phase)]
    columns += [(getattr(before, name), getattr(after, name)) for name in _CONTENT]
    same = all(np.array_equal(was[rows], now[:count]) for was, now in columns)
    return rows if same and _same_ids(before, rows, after) else None


def jobs_now(before: Flows, after: Flows) -> Ints:
    """Return the row in ``after`` of each job of ``before``, ``NONE`` if it has no flows there."""
    rows = {name: row for row, name in enumerate(after.job_names)}
    now = np.array([rows.get(name, NONE) for name in before.job_names], dtype=np.int64)
    return np.where(np.isin(now, after.job), now, NONE)


def phases_now(before: Flows, after: Flows) -> Ints:
    """Return the row in ``after`` of each phase of ``before``, and ``ANY_PHASE`` behind them.

    ``NONE`` stands for a phase that is not there.
    """
    rows = {name: row for row, name in enumerate(after.phase_names)}
    now = [rows.get(name, NONE) for name in before.phase_names]
    return np.array([*now, ANY_PHASE], dtype=np.int64)


def _same_ids(before: Flows, rows: Ints, after: Flows) -> bool:
    """Whether the flows of some rows, ascending, have the ids of the first flows of ``after``."""
    breaks = np.flatnonzero(np.diff(rows) > 1) + 1
    return all(
        before.ids[rows[begin] : rows[end - 1] + 1] == after.ids[begin:end]
        for begin, end in pairwise([0, *breaks.tolist(), len(rows)])
    )


def plan_left(plan: Plan, rows: Ints, flows: Flows) -> Plan:
    """Return what is left of a plan without source ports when only some of its flows are left.

    Args:
        plan: The plan.
        rows: Rows of the flows that are left, ascending.
        flows: The flows that ``rows_left`` compared these with.
    """
    number = np.full(len(plan.flows), NONE, dtype=np.int64)
    number[rows] = np.arange(len(rows))
    kept = np.flatnonzero(number[plan.paths.flow] != NONE)
    paths, backups = (_renumbered(some.take(kept), number) for some in (plan.paths, plan.backups))
    return replace(
        plan,
        flows=flows if len(flows) == len(rows) else flows.take(np.arange(len(rows))),
        paths=paths,
        backups=in_parallel(backups, paths),
        unrouted={int(number[row]): why for row, why in plan.unrouted.items() if number[row] >= 0},
    )


def _renumbered(paths: Paths, number: Ints) -> Paths:
    return replace(paths, flow=number[paths.flow])
