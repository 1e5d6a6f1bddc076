"""A gateway of switches in memory: the port, small but real."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field, replace

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.reconcile.errors import SessionLost
from heddle_controller.reconcile.southbound import (
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
from tests.unit.reconcile.switches import Match, SwitchTable, match_of

_ids = itertools.count(1)


@dataclass
class Switch:
    """A switch and its agent."""

    table: SwitchTable = field(default_factory=SwitchTable)
    answers: asyncio.Event = field(default_factory=asyncio.Event)
    """Cleared: what it is sent waits."""
    refuses: dict[Match, FailureReason] = field(default_factory=dict)
    """Sets that it cannot do."""
    refuses_whole: str = ""
    """Why it finds every push malformed."""
    pushes: list[Push] = field(default_factory=list)
    """All that it took, oldest first, but for questions."""
    questions: list[Push] = field(default_factory=list)
    """What asked what it holds, and changed nothing."""

    def __post_init__(self) -> None:
        self.answers.set()


class MemoryGateway:
    """Implements ``AgentGateway``."""

    def __init__(self, fabric: str, switches: dict[str, Switch]) -> None:
        self.switches = switches
        self.watch: Callable[[], None] = lambda: None
        """Called after every single operation of every switch."""
        self._fabric = fabric
        self._sessions: dict[str, AgentSession] = {}
        self._listeners: set[asyncio.Queue[SessionEvent]] = set()
        self._lost: dict[int, asyncio.Event] = {}

    def connect(self, *names: str) -> None:
        """Begin a session of each switch, in place of any before."""
        for name in names:
            if name in self._sessions:
                self._lost[self._sessions[name].id].set()
            table = self.switches[name].table
            session = AgentSession(
                id=next(_ids),
                fabric=self._fabric,
                switch=name,
                instance="i",
                software_version="0",
                capabilities=frozenset(),
                table_size=table.size,
                highest_epoch=table.fence[0],
                generation=table.whole,
                table_digest=table.digest(),
            )
            self._sessions[name] = session
            self._lost[session.id] = asyncio.Event()
            self._tell(SessionChange.CONNECTED, session)

    def disconnect(self, *names: str) -> None:
        """End the session of each switch."""
        for name in names:
            session = self._sessions.pop(name)
            self._lost[session.id].set()
            self._tell(SessionChange.DISCONNECTED, session)

    def sessions(self, fabric: str) -> Mapping[str, AgentSession]:
        """See the port."""
        return dict(self._sessions) if fabric == self._fabric else {}

    async def push(self, session: AgentSession, push: Push) -> PushReport:
        """See the port."""
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
        return self._take(switch, push)

    def lead(self, epoch: int) -> None:
        """See the port."""

    def retire(self, epoch: int) -> None:
        """See the port."""

    def _take(self, switch: Switch, push: Push) -> PushReport:
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
        held = TableState(switch.table.whole, switch.table.digest()) if push.tell_table else None
        return PushReport(StageResult(PushStatus.APPLIED), done, switch.table.fence[0], held)

    async def events(self) -> AsyncIterator[SessionEvent]:
        """See the port."""
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


def all_switches(fabric: Fabric) -> dict[str, Switch]:
    """A switch for each in a fabric, with the room that it has."""
    nodes = fabric.structure.nodes
    return {
        node: Switch(SwitchTable(size=max(0, int(nodes.table_size[row]))))
        for row, node in enumerate(nodes.ids)
        if nodes.kind[row] != NodeKind.NIC
    }
