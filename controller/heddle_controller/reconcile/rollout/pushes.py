"""Pushes under way: one at a time to a switch, and what their answers mean."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace

from heddle_controller.model.program import no_entries
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.reconcile.rollout.sessions import HeldState
from heddle_controller.reconcile.rollout.steps import Step
from heddle_controller.reconcile.southbound import (
    UNKNOWN_DIGEST,
    AgentSession,
    FailureReason,
    OperationFailure,
    Push,
    PushMode,
    PushReport,
    PushStatus,
)
from heddle_controller.state.errors import PortError, SessionLost

EPOCH_LEAP = 1 << 24
"""How far above a leader's epoch an agent's may be: as many leaders as there are in centuries.

Leaders go on above what agents claim, so a claim without such a bound, by a single switch,
would use the epochs up: a store counts to 2^53, and then gives out the last one for ever.
"""


def believed(claim: int, epoch: int) -> bool:
    """Whether an agent that is met by a leader of ``epoch`` may have seen the epoch it claims."""
    return claim - epoch < EPOCH_LEAP


def supersedes(claim: int, epoch: int, *, followed: bool) -> bool:
    """Whether an agent that has seen the epoch it claims ends that of a leader who meets it.

    A store that lost its newest writes may give an epoch a second time. So to have seen this
    very one is enough, but for an agent that ``followed`` this leader: what the other leader
    has under way would be let in beside what this one sends.
    """
    return claim > epoch or (claim == epoch and not followed)


class Superseded(PortError):  # noqa: N818 - an event of leadership, not a fault
    """An agent has seen a greater epoch than this leader's, or this one of another leader."""

    def __init__(self, session: AgentSession, highest: int) -> None:
        super().__init__(f"switch {session.switch} has followed a leader of epoch {highest}")
        self.fabric = session.fabric
        self.switch = session.switch
        self.highest = highest


@dataclass(eq=False)
class PendingPush:
    """A push under way."""

    session: AgentSession
    step: Step | None
    """What it means for the ledger; None for a question, which only asks what is held."""
    push: Push
    time: float
    """When it was sent, by the monotonic clock."""
    task: asyncio.Future[PushReport]
    obsolete: bool = False
    """Whether the step's rows are those of a ledger that another plan has replaced."""

    @property
    def operations(self) -> int:
        """Entries set and deleted."""
        return self.push.operation_count

    def failures(self) -> tuple[OperationFailure, ...] | None:
        """What did not succeed of a push that is done; None if its session was lost.

        Raises:
            Superseded: the agent refused it as too old.
            StaleEpoch: it was kept back here, for the epoch is over.
        """
        try:
            report = self.task.result()
        except SessionLost:
            return None
        if report.status == PushStatus.APPLIED:
            return report.failures
        text = f"refused as malformed: {(report.fib or report.rib).message}"
        if report.status == PushStatus.STALE_EPOCH:
            if believed(report.highest_epoch, self.push.epoch):
                raise Superseded(self.session, report.highest_epoch)
            text = f"claims an epoch that no leader has had: {report.highest_epoch}"
        return tuple(
            OperationFailure(operation, FailureReason.BACKEND, text)
            for operation in range(self.operations)
        )

    def told(self) -> HeldState:
        """What the answer to a question says that its switch holds."""
        table, fabric = self.task.result().table, self.push.fabric
        if table is None:
            return HeldState(replace(self.session, generation=0, table_digest=UNKNOWN_DIGEST))
        session = replace(self.session, generation=table.generation, table_digest=table.digest)
        asked = fabric.structure if self.push.tell_entries else None
        return HeldState(session, table.entries, asked)


def question(ledger: Ledger, epoch: int, *, entries: bool = False) -> Push:
    """Changes nothing, raises the agent's fence to ours, and asks what its table holds.

    What came before from an older leader is in the answer, and nothing of it can come
    after. Every entry is asked for only where the digest was none that was expected.
    """
    none = no_entries()
    return Push(
        mode=PushMode.INCREMENTAL,
        epoch=epoch,
        generation=ledger.generation,
        fabric=ledger.fabric,
        sets=none,
        deletes=none,
        tell_table=True,
        tell_entries=entries,
    )


def asked_of(session: AgentSession, epoch: int) -> bool:
    """Whether a session has to be asked, as its introduction need not hold (any more).

    It does where nothing was pushed since, and its agent follows us already: then no
    older leader can have come in between.
    """
    return session.pushed or session.highest_epoch < epoch
