"""How far each job has come, read off the ledger."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Bools, Ints
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.reconcile.rollout.order import flows_between
from heddle_controller.reconcile.rollout.steps import Agenda
from heddle_controller.state.records import JobState


@dataclass(frozen=True, slots=True)
class JobProgress:
    """What the switches have of a job's flows."""

    state: JobState
    reason: str
    flow_count: int
    unrouted_count: int


NO_FLOWS = JobProgress(JobState.PROGRAMMED, "", 0, 0)
"""Of a job that sends nothing over the fabric."""
SUSPENDED = JobProgress(JobState.SUSPENDED, "", 0, 0)
"""Of a job that rests."""


def job_progress(
    ledger: Ledger, due: Agenda, stuck: Bools, why_stuck: Mapping[int, str]
) -> dict[str, JobProgress]:
    """Progress of each job that has flows in the plan, by name.

    Args:
        ledger: Where things stand.
        due: Its agenda.
        stuck: Switches that are not waited for, shape (nodes,).
        why_stuck: In words, by switch.
    """
    plan, flows = ledger.plan, ledger.plan.flows
    jobs = len(flows.job_names)
    total = np.bincount(flows.job, minlength=jobs)
    lost = np.array(list(plan.unrouted), dtype=np.int64)
    unrouted = np.bincount(flows.job[lost], minlength=jobs)
    blocked, pair = flows_between(plan, due.blocked)
    held_up = np.bincount(flows.job[blocked], minlength=jobs)
    going = np.bincount(flows.job[flows_between(plan, due.pending)[0]], minlength=jobs)
    first_lost = _first_of(flows.job[lost], jobs)
    first_blocked = _first_of(flows.job[blocked], jobs)
    progress = {}
    for job, name in enumerate(flows.job_names):
        reasons = []
        if unrouted[job]:
            row = int(lost[first_lost[job]])
            reasons.append(_some(int(unrouted[job]), f"{flows.ids[row]}: {plan.unrouted[row]}"))
        if held_up[job]:
            first = int(due.blocked[pair[first_blocked[job]]])
            reason = _why(ledger, first, stuck, why_stuck)
            reasons.append(f"{_count(int(held_up[job]))} not on the planned path: {reason}")
        state = JobState.DEGRADED if reasons else JobState.PROGRAMMED
        if not reasons and going[job]:
            state = JobState.PLANNED
        progress[name] = JobProgress(state, "; ".join(reasons), int(total[job]), int(unrouted[job]))
    return progress


def _first_of(column: Ints, count: int) -> Ints:
    """The first place of each number below ``count`` in a column, 0 where it is not there."""
    found = np.zeros(count, dtype=np.int64)
    found[column[::-1]] = np.arange(len(column) - 1, -1, -1)
    return found


def _why(ledger: Ledger, pair: int, stuck: Bools, why_stuck: Mapping[int, str]) -> str:
    """What holds a blocked pair up: an entry that failed, or a switch that is not there."""
    wanted = np.flatnonzero((ledger.pair == pair) & ~ledger.ok)
    for row in wanted[ledger.failed[wanted]].tolist():
        failure = ledger.reasons[row]
        switch = ledger.fabric.structure.nodes.ids[int(ledger.desired.switch[row])]
        words = f": {failure.message}" if failure.message else ""
        return f"switch {switch}: {failure.reason.name}{words}"
    standing = np.flatnonzero((ledger.old_pair == pair) & ledger.present)
    around = np.concatenate([ledger.desired.switch[wanted], ledger.old.switch[standing]])
    for away in around[stuck[around]].tolist():
        return why_stuck[away]
    switch = ledger.fabric.structure.nodes.ids[int(ledger.old.switch[standing[0]])]
    return f"switch {switch} could not delete an entry that is in the way"


def _some(count: int, first: str) -> str:
    return f"{_count(count)} without a path: {first}" + (", ..." if count > 1 else "")


def _count(count: int) -> str:
    return f"{count} flow{'' if count == 1 else 's'}"
