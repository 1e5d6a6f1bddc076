"""What is kept of flows and of a plan when jobs come, change and end.

Flows that are kept stay in order and on their paths. Only their rows change, and perhaps what they
ask for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.model.plan import Paths, Plan, in_parallel

_ROUTE = "source", "destination", "qps"
"""Columns that must stay the same for a flow to keep its paths."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptFlows:
    """The flows of before that are kept, with their rows now."""

    before: Flows
    after: Flows
    row: Ints
    """Row in ``after`` of each flow of ``before``, ascending; ``NONE`` where it is not kept."""
    job: Ints
    """Row in ``after`` of each job of ``before``; ``NONE`` if it has no flows there."""
    phase: Ints
    """Row in ``after`` of each phase of ``before``, then ``ANY_PHASE``.

    A phase that is not there has the number behind the last row, which no flow has.
    """

    @property
    def gone(self) -> Ints:
        """Rows in ``before`` of flows that are not kept, ascending."""
        return np.flatnonzero(self.row == NONE)

    @property
    def came(self) -> Ints:
        """Rows in ``after`` of flows that are new, or that lost their paths, ascending."""
        new = np.ones(len(self.after), dtype=np.bool_)
        new[self.row[self.row != NONE]] = False
        return np.flatnonzero(new)

    @property
    def altered(self) -> Ints:
        """Rows in ``after`` of kept flows that put another load on their paths, ascending."""
        was = np.flatnonzero(self.row != NONE)
        now, before, after = self.row[was], self.before, self.after
        same = before.gbps[was] == after.gbps[now]
        same &= self.job[before.job[was]] == after.job[now]
        same &= self.phase[before.phase[was]] == after.phase[now]
        altered: Ints = now[~same]
        return altered


def kept_flows(before: Flows, after: Flows) -> KeptFlows | None:
    """Return which flows are kept: those with the same id, ends and number of QPs.

    Returns None if no flow is kept, if those that are kept or their jobs are in another order, or
    if one of them is of another class.
    """
    row = rows_by_id(before, after)
    was = np.flatnonzero(row != NONE)
    same = _alike(before, after, was, row[was], _ROUTE)
    row[was[~same]] = NONE
    was = was[same]
    now = row[was]
    job = _jobs_now(before, after)
    if not len(was) or not _ascends(now) or not _ascends(job[job != NONE]):
        return None
    if not _alike(before, after, was, now, ("traffic_class",)).all():
        return None
    return KeptFlows(before, after, row, job, _phases_now(before, after))


def _ascends(rows: Ints) -> bool:
    return bool((rows[1:] > rows[:-1]).all())


def _alike(before: Flows, after: Flows, was: Ints, now: Ints, names: tuple[str, ...]) -> Bools:
    """Whether some columns are the same in the rows ``was`` of one and ``now`` of the other."""
    same = np.ones(len(was), dtype=np.bool_)
    for name in names:
        same &= getattr(before, name)[was] == getattr(after, name)[now]
    return same


def rows_by_id(before: Flows, after: Flows) -> Ints:
    """Return the row in ``after`` of the id of each flow of ``before``, or ``NONE``.

    Most often the first flows of both have the same ids, and so have the last.
    """
    old, new = len(before), len(after)
    head = _same_ids(before, after, min(old, new), 1)
    tail = _same_ids(before, after, min(old, new) - head, -1)
    rows = {flow: row for row, flow in enumerate(after.ids[head : new - tail], head)}
    between = [rows.get(flow, NONE) for flow in before.ids[head : old - tail]]
    ends = np.arange(head), np.arange(new - tail, new)
    return np.concatenate([ends[0], np.array(between, dtype=np.int64), ends[1]])


def _same_ids(before: Flows, after: Flows, count: int, step: int) -> int:
    """Return how many of ``count`` flows, from the first or last (step -1) on, have the same ids.

    It may be 0 if ids differ where ends do not.
    """
    unlike = np.zeros(count + 1, dtype=np.bool_)
    unlike[count] = True
    for was, now in ((before.source, after.source), (before.destination, after.destination)):
        unlike[:count] |= was[::step][:count] != now[::step][:count]
    found = int(unlike.argmax())
    return found if before.ids[::step][:found] == after.ids[::step][:found] else 0


def _jobs_now(before: Flows, after: Flows) -> Ints:
    rows = {name: row for row, name in enumerate(after.job_names)}
    now = np.array([rows.get(name, NONE) for name in before.job_names], dtype=np.int64)
    return np.where(np.isin(now, after.job), now, NONE)


def _phases_now(before: Flows, after: Flows) -> Ints:
    rows = {name: row for row, name in enumerate(after.phase_names)}
    now = [rows.get(name, len(rows)) for name in before.phase_names]
    return np.array([*now, ANY_PHASE], dtype=np.int64)


def plan_with_kept(plan: Plan, kept: KeptFlows) -> Plan:
    """Return a plan without source ports for the flows of now, with the paths that are kept.

    Flows that came have no path, and no reason for that.
    """
    rows = np.flatnonzero(kept.row[plan.paths.flow] != NONE)
    paths, backups = (_renumbered(some.take(rows), kept.row) for some in (plan.paths, plan.backups))
    return replace(
        plan,
        flows=kept.after,
        paths=paths,
        backups=in_parallel(backups, paths),
        unrouted={int(kept.row[r]): why for r, why in plan.unrouted.items() if kept.row[r] >= 0},
    )


def _renumbered(paths: Paths, number: Ints) -> Paths:
    return replace(paths, flow=number[paths.flow])
