"""Pushes under way: one at a time to a switch, and what their answers mean."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from heddle_controller.reconcile.errors import PortError, SessionLost
from heddle_controller.reconcile.rollout.steps import Step
from heddle_controller.reconcile.southbound import (
    AgentSession,
    FailureReason,
    OperationFailure,
    Push,
    PushReport,
    PushStatus,
)

EPOCH_LIMIT = 1 << 62
"""No leader comes so far: who claims to have followed one is not believed."""


class Outrun(PortError):  # noqa: N818 - an event of leadership, not a fault
    """An agent has seen a greater epoch than this leader's."""

    def __init__(self, switch: str, highest: int) -> None:
        super().__init__(f"switch {switch} has followed a leader of epoch {highest}")
        self.highest = highest


@dataclass(eq=False)
class Sent:
    """A push under way."""

    session: AgentSession
    step: Step
    push: Push
    time: float
    """When it was sent, by the monotonic clock."""
    task: asyncio.Task[PushReport]
    obsolete: bool = False
    """Whether the step's rows are those of a ledger that another plan has replaced."""

    @property
    def operations(self) -> int:
        """Entries set and deleted."""
        return len(self.push.sets) + len(self.push.deletes)

    def failures(self) -> tuple[OperationFailure, ...] | None:
        """What did not succeed of a push that is done; None if its session was lost.

        Raises:
            Outrun: the agent refused it as too old.
        """
        try:
            report = self.task.result()
        except SessionLost:
            return None
        if report.status == PushStatus.APPLIED:
            return report.failures
        text = f"refused as malformed: {(report.fib or report.rib).message}"
        if report.status == PushStatus.STALE_EPOCH:
            if report.highest_epoch < EPOCH_LIMIT:
                raise Outrun(self.session.switch, report.highest_epoch)
            text = f"claims an epoch that no leader has had: {report.highest_epoch}"
        return tuple(
            OperationFailure(operation, FailureReason.BACKEND, text)
            for operation in range(self.operations)
        )
