"""Who is there, what is under way to whom, and whom to wait for no longer.

One push at a time is under way to a switch. A switch that is away still forwards, so others wait
for it for a while. One that has no link left, by what its neighbours say, forwards nothing: nobody
waits for it at all.

Keyed by switch id, because ids outlive the rows of one fabric.
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


class Presence:
    """Sessions and pushes of one fabric."""

    def __init__(self, patience: float, now: float) -> None:
        self._patience = patience
        self._start = now
        self._away: dict[str, float] = {}
        self._structure: Structure | None = None
        self._switches: frozenset[str] = frozenset()
        self._met: tuple[Structure, Ints] | None = None
        """Rows of those that have a session, while these are as they were: there may be thousands
        of them, and there are many looks."""
        self._missing: frozenset[str] | None = None
        """Those that have none, likewise."""
        self.sessions: dict[str, AgentSession] = {}
        self.sent: dict[str, PendingPush] = {}

    def update(
        self, present: Mapping[str, AgentSession], structure: Structure, now: float
    ) -> list[AgentSession]:
        """Take in who is connected now; the sessions that are new."""
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
        """Pushes that are done; each is returned once."""
        done = [switch for switch, sent in self.sent.items() if sent.task.done()]
        return [self.sent.pop(switch) for switch in done]

    def orphaned(self) -> list[PendingPush]:
        """Pushes to sessions that another has replaced; nobody waits for them any more."""
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
        """What can be expected of each switch; ``fabric`` is the target's."""
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
        """Reasons in words, by node row; ``aside`` says so of switches that are set aside."""
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
        """When patience with another switch ends."""
        return min((end for _, end in self._patience_ends(structure) if end > now), default=None)

    def busy(self, now: float) -> bool:
        """Whether an answer is due soon."""
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
