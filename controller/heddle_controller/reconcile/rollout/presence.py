"""Which switches are connected, which pushes are under way, and whom to wait for no longer.

One push at a time is under way to a switch. A switch that is away still forwards, so others wait
for it for a while. A switch that has no link left, by the reports of its neighbours, forwards
nothing, so nobody waits for it at all.

Everything is keyed by switch id, because ids outlive the rows of one fabric.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.fabric import Fabric, Structure
from heddle_controller.model.program import no_entries
from heddle_controller.reconcile.ports import (
    UNKNOWN_DIGEST,
    AgentSession,
    FailureReason,
    OperationFailure,
    Push,
    PushMode,
    PushReport,
    PushStatus,
)
from heddle_controller.reconcile.rollout.answers import HeldState
from heddle_controller.reconcile.rollout.ledger import Ledger
from heddle_controller.reconcile.rollout.steps import Step, Switches
from heddle_controller.state.errors import PortError, SessionLost

EPOCH_LEAP = 1 << 24
"""How far above a leader's epoch an agent's may be: more leaders than there are in centuries.

The next leader takes an epoch above what agents claim. Without this bound, a claim by a single
switch could use up all epochs: a store counts to 2^53, and then gives out the last one for ever.
"""


def believed(claim: int, epoch: int) -> bool:
    """Return whether a leader of ``epoch`` believes that an agent has seen the epoch it claims."""
    return claim - epoch < EPOCH_LEAP


def supersedes(claim: int, epoch: int, *, followed: bool) -> bool:
    """Return whether the epoch that an agent claims to have seen ends the epoch of this leader.

    A store that lost its newest writes may issue an epoch twice. So a claim of this same epoch
    is enough, unless the agent ``followed`` this leader. Otherwise the agent would accept the
    pushes of the other leader beside ours.
    """
    return claim > epoch or (claim == epoch and not followed)


class Superseded(PortError):  # noqa: N818 - an event of leadership, not a fault
    """An agent has seen a higher epoch than this leader's, or the same one of another leader."""

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
    """The step of the ledger that it carries out; None for a question."""
    push: Push
    time: float
    """When it was sent, by the monotonic clock, in seconds."""
    task: asyncio.Future[PushReport]
    obsolete: bool = False
    """Whether another plan has replaced the ledger that the step belongs to."""

    @property
    def operations(self) -> int:
        """Number of entries that it sets or deletes."""
        return self.push.operation_count

    def failures(self) -> tuple[OperationFailure, ...] | None:
        """Return the operations that failed, once the push is done; None if its session ended.

        If the whole push was refused, every operation counts as failed.

        Raises:
            Superseded: the agent refused the push as too old.
            StaleEpoch: the push was not sent, because the epoch is over.
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
        """Return what the switch holds, from the answer to a question."""
        table, fabric = self.task.result().table, self.push.fabric
        if table is None:
            return HeldState(replace(self.session, generation=0, table_digest=UNKNOWN_DIGEST))
        session = replace(self.session, generation=table.generation, table_digest=table.digest)
        asked = fabric.structure if self.push.tell_entries else None
        return HeldState(session, table.entries, asked)


def question(ledger: Ledger, epoch: int, *, entries: bool = False) -> Push:
    """Return a push that changes nothing, raises the agent's epoch to ours, and asks for its table.

    The answer includes everything that older leaders sent before, and nothing of theirs is
    accepted after it. With ``entries``, the agent is asked to list every entry. That is only
    needed if the digest was not one that was expected.
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
    """Return whether an agent has to be asked, because its introduction may be outdated.

    The introduction holds if nothing was pushed since, and if the agent has accepted our epoch
    already, so that no older leader can have pushed in between.
    """
    return session.pushed or session.highest_epoch < epoch


class Presence:
    """The sessions of one fabric, and the pushes that are under way."""

    def __init__(self, patience: float, now: float) -> None:
        self._patience = patience
        self._start = now
        self._away: dict[str, float] = {}
        self._structure: Structure | None = None
        self._switches: frozenset[str] = frozenset()
        self._met: tuple[Structure, Ints] | None = None
        """Node rows of switches with a session, kept until sessions change. There may be thousands,
        and evaluations are frequent."""
        self._missing: frozenset[str] | None = None
        """Switches without a session, kept until sessions change."""
        self.sessions: dict[str, AgentSession] = {}
        self.sent: dict[str, PendingPush] = {}

    def update(
        self, present: Mapping[str, AgentSession], structure: Structure, now: float
    ) -> list[AgentSession]:
        """Take in which switches are connected now, and return the sessions that are new."""
        self._met = self._missing = None
        for switch in self.sessions.keys() - present.keys():
            del self.sessions[switch]
            self._away[switch] = now
        new = []
        for switch, session in present.items():
            known = self.sessions.get(switch)
            if switch in structure.index and (known is None or known.id != session.id):
                self.sessions[switch] = session
                new.append(session)
        return new

    def answered(self) -> list[PendingPush]:
        """Return the pushes that are done, each only once."""
        done = [switch for switch, sent in self.sent.items() if sent.task.done()]
        return [self.sent.pop(switch) for switch in done]

    def orphaned(self) -> list[PendingPush]:
        """Cancel and return pushes to sessions that a newer one has replaced, each only once."""
        lost = [
            switch
            for switch, sent in self.sent.items()
            if switch in self.sessions and self.sessions[switch].id != sent.session.id
        ]
        orphans = [self.sent.pop(switch) for switch in lost]
        for sent in orphans:
            sent.task.cancel()
        return orphans

    def switches(self, fabric: Fabric, now: float) -> Switches:
        """Return what can be expected of each switch; ``fabric`` is that of the target."""
        structure = fabric.structure
        ready = np.zeros(len(structure.nodes.ids), dtype=np.bool_)
        stuck = np.zeros_like(ready)
        ready[self._rows(structure)] = True
        ready[[structure.index[s] for s in self.sent if s in structure.index]] = False
        given_up = (s for s, until in self._patience_ends(structure) if until <= now)
        stuck[[structure.index[s] for s in given_up]] = True
        stuck |= ~(ready | fabric.connected)
        asked = np.zeros_like(ready)
        questions = (s for s, sent in self.sent.items() if sent.step is None)
        asked[[structure.index[s] for s in questions if s in structure.index]] = True
        return Switches(ready, stuck, asked & ~stuck)

    def _rows(self, structure: Structure) -> Ints:
        if self._met is None or self._met[0] is not structure:
            rows = [structure.index[s] for s in self.sessions if s in structure.index]
            self._met = structure, np.array(rows, dtype=np.int64)
        return self._met[1]

    def why_stuck(
        self, fabric: Fabric, now: float, aside: Mapping[str, str] = MappingProxyType({})
    ) -> dict[int, str]:
        """Return in words why switches are stuck, by node row.

        ``aside`` has the reasons of switches that are set aside, by switch id.
        """
        structure = fabric.structure
        cut_off = np.flatnonzero(~fabric.connected).tolist()
        words = {row: f"switch {structure.nodes.ids[row]} has no link left" for row in cut_off}
        return words | {
            structure.index[switch]: (
                f"switch {switch} has not answered for {self._patience:g} s"
                if switch in self.sessions
                else f"switch {switch} is {aside.get(switch, 'not connected')}"
            )
            for switch, until in self._patience_ends(structure)
            if until <= now
        }

    def next_end(self, structure: Structure, now: float) -> float | None:
        """Return when patience with the next switch ends; None if with none after ``now``."""
        return min((end for _, end in self._patience_ends(structure) if end > now), default=None)

    def busy(self, now: float) -> bool:
        """Return whether an answer is due before patience with its switch ends."""
        return any(
            not sent.task.done() and sent.time + self._patience > now for sent in self.sent.values()
        )

    def _patience_ends(self, structure: Structure) -> Iterator[tuple[str, float]]:
        if structure is not self._structure:
            self._structure, self._switches = structure, _switches(structure)
            self._missing = None
        if self._missing is None:
            self._missing = self._switches - self.sessions.keys()
        for switch in self._missing:
            yield switch, self._away.get(switch, self._start) + self._patience
        for switch, sent in self.sent.items():
            if switch in self.sessions and switch in structure.index:
                yield switch, sent.time + self._patience


def _switches(structure: Structure) -> frozenset[str]:
    return frozenset(structure.nodes.ids[row] for row in structure.programmed.tolist())
