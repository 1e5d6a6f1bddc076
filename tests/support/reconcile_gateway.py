"""A gateway of switches in memory: the port, small but real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.reconcile.southbound import (
    AgentSession,
    FailureReason,
    OperationFailure,
    Push,
    PushReport,
    PushStatus,
    StageResult,
    TableState,
)
from heddle_controller.state.errors import SessionLost
from tests.support.reconcile_sessions import Sessions
from tests.support.reconcile_switches import Match, SwitchTable, match_of


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
    tells_entries: bool = True
    """Whether its agent knows to tell every entry: older ones do not."""
    pushes: list[Push] = field(default_factory=list)
    """All that it took, oldest first, but for questions."""
    questions: list[Push] = field(default_factory=list)
    """What asked what it holds, and changed nothing."""

    def __post_init__(self) -> None:
        self.answers.set()


class MemoryGateway(Sessions):
    """Implements ``AgentGateway``."""

    def __init__(self, fabric: str, switches: dict[str, Switch]) -> None:
        super().__init__(fabric)
        self.switches = switches
        self.watch: Callable[[], None] = lambda: None
        """Called after every single operation of every switch."""

    def connect(self, *names: str) -> None:
        """Begin a session of each switch, in place of any before."""
        for name in names:
            table = self.switches[name].table
            held = TableState(table.whole, table.digest())
            self.begin(name, table.fence[0], held, table.size)

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
    """A switch for each in a fabric, with the room that it has."""
    nodes = fabric.structure.nodes
    return {
        node: Switch(SwitchTable(size=max(0, int(nodes.table_size[row]))))
        for row, node in enumerate(nodes.ids)
        if nodes.kind[row] != NodeKind.NIC
    }
