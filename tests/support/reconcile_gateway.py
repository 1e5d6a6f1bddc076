"""An ``AgentGateway`` with switches in memory.

``Sessions`` keeps the sessions of agents. ``MemoryGateway`` also applies pushes to tables.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.reconcile.ports import (
    AgentSession,
    FailureReason,
    OperationFailure,
    Push,
    PushReport,
    PushStatus,
    SessionChange,
    SessionEvent,
    StageResult,
    TableState,
)
from heddle_controller.state.errors import SessionLost
from tests.support.reconcile_switches import Match, SwitchTable, match_of


class Sessions:
    """The part of ``AgentGateway`` that all gateways of tests share."""

    def __init__(self, fabric: str) -> None:
        self._fabric = fabric
        self._aside: dict[str, str] = {}
        self._ids = itertools.count(1)
        self._sessions: dict[str, AgentSession] = {}
        self._lost: dict[int, asyncio.Event] = {}
        self._listeners: set[asyncio.Queue[SessionEvent]] = set()

    @property
    def followed(self) -> bool:
        """Whether somebody follows events."""
        return bool(self._listeners)

    def begin(
        self, switch: str, fence: tuple[int, int], held: TableState, table_size: int = 0
    ) -> None:
        """Begin a session in place of an older one, with the agent's fence and the held table."""
        if switch in self._aside:
            return
        if switch in self._sessions:
            self._lost[self._sessions[switch].id].set()
        session = AgentSession(
            id=next(self._ids),
            fabric=self._fabric,
            switch=switch,
            instance="i",
            software_version="0",
            capabilities=frozenset(),
            table_size=table_size,
            highest_epoch=fence[0],
            generation=held.generation,
            table_digest=held.digest,
            highest_generation=fence[1],
        )
        self._sessions[switch] = session
        self._lost[session.id] = asyncio.Event()
        self._tell(SessionChange.CONNECTED, session)

    def disconnect(self, *switches: str) -> None:
        """End the session of each switch; what has not reached the agent yet is lost."""
        for switch in switches:
            session = self._sessions.pop(switch)
            self._lost[session.id].set()
            self._tell(SessionChange.DISCONNECTED, session)

    def sessions(self, fabric: str) -> Mapping[str, AgentSession]:
        """Implement ``AgentGateway.sessions``."""
        return dict(self._sessions) if fabric == self._fabric else {}

    def set_aside(self, fabric: str, switch: str, why: str) -> object:
        """Implement ``AgentGateway.set_aside``; it holds for the rest of the test."""
        if switch not in self._aside:
            self._aside[switch] = f"set aside, as its agent {why}"
            if switch in self._sessions:
                self.disconnect(switch)
        return fabric

    def held_aside(self, fabric: str) -> Mapping[str, str]:
        """Implement ``AgentGateway.held_aside``."""
        return dict(self._aside) if fabric == self._fabric else {}

    def lead(self, epoch: int) -> None:
        """Implement ``AgentGateway.lead``."""

    def follow(self, epoch: int) -> None:
        """Implement ``AgentGateway.follow``."""

    async def events(self) -> AsyncIterator[SessionEvent]:
        """Implement ``AgentGateway.events``."""
        queue: asyncio.Queue[SessionEvent] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._listeners.discard(queue)

    def _tell(self, change: SessionChange, session: AgentSession) -> None:
        for queue in self._listeners:
            queue.put_nowait(SessionEvent(change, session))


@dataclass
class Switch:
    """A switch and its agent."""

    table: SwitchTable = field(default_factory=SwitchTable)
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    """While this is cleared, pushes to the switch wait."""
    refuses: dict[Match, FailureReason] = field(default_factory=dict)
    """Entries that it refuses to set, and why."""
    refuses_whole: str = ""
    """If not empty, every push is refused as malformed with this message."""
    tells_entries: bool = True
    """Whether its agent can list every entry, which older ones cannot."""
    pushes: list[Push] = field(default_factory=list)
    """All pushes that it took, oldest first, without questions."""
    questions: list[Push] = field(default_factory=list)
    """Pushes that asked what it holds, and changed nothing."""

    def __post_init__(self) -> None:
        self.answers.set()


class MemoryGateway(Sessions):
    """Implements ``AgentGateway`` with switches in memory."""

    def __init__(self, fabric: str, switches: dict[str, Switch]) -> None:
        super().__init__(fabric)
        self.switches = switches
        self.watch: Callable[[], None] = lambda: None
        """Called after every single operation of every switch."""

    def connect(self, *names: str) -> None:
        """Begin a session of each switch, which replaces an older one."""
        for name in names:
            table = self.switches[name].table
            held = TableState(table.whole, table.digest())
            self.begin(name, table.fence, held, table.size)

    async def push(self, session: AgentSession, push: Push) -> PushReport:
        """Implement ``AgentGateway.push``."""
        known = self._sessions.get(session.switch)
        if known is None or known.id != session.id:
            raise SessionLost(session.switch)
        switch, lost = self.switches[session.switch], self._lost[session.id]
        waits = [asyncio.create_task(e.wait()) for e in (switch.answers, lost)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        if lost.is_set():
            raise SessionLost(session.switch)
        self._sessions[session.switch] = replace(session, pushed=True)
        return self._take(session.switch, push)

    def _take(self, name: str, push: Push) -> PushReport:
        switch = self.switches[name]
        if switch.refuses_whole:
            result = StageResult(PushStatus.INVALID, message=switch.refuses_whole)
            return PushReport(result, None, switch.table.fence[0])
        status = switch.table.refuses(push)
        if status != PushStatus.APPLIED:
            return PushReport(StageResult(status), None, switch.table.fence[0])
        (switch.questions if push.tell_table else switch.pushes).append(push)
        failures = dict.fromkeys(switch.table.crowded(push), FailureReason.TABLE_FULL)
        for row in range(len(push.sets)):
            match = match_of(push.fabric, push.sets, row)
            if match in switch.refuses:
                failures[row] = switch.refuses[match]
        for _ in switch.table.take(push, failures):
            self.watch()
        told = tuple(OperationFailure(row, why, "no") for row, why in sorted(failures.items()))
        done = StageResult(PushStatus.APPLIED, told)
        report = PushReport(StageResult(PushStatus.APPLIED), done, switch.table.fence[0])
        if not push.tell_table:
            return report
        tells = push.tell_entries and switch.tells_entries
        entries = switch.table.listed(push.fabric, name) if tells else None
        held = TableState(switch.table.whole, switch.table.digest(), entries)
        return replace(report, table=held)


def all_switches(fabric: Fabric) -> dict[str, Switch]:
    """Return a switch for each in a fabric, with its table size."""
    nodes = fabric.structure.nodes
    return {
        node: Switch(SwitchTable(size=max(0, int(nodes.table_size[row]))))
        for row, node in enumerate(nodes.ids)
        if nodes.kind[row] != NodeKind.NIC
    }
