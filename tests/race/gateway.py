"""The controller's way to the agents, with the messages of the wire and without the wire.

A push is encoded and decoded as it would be sent. What takes time, each its own: until it reaches
the agent, until that is programmed (a RIB ack, then a FIB ack), until the answer is back. An agent
takes its pushes one after another, as from a stream.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Mapping

from heddle_agent.agent import Agent
from heddle_agent.session.decode import decode_push
from heddle_agent.table import Status
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
from heddle_controller.serve.codec.entries import push_to_pb
from tests.race.delays import Delays

_STATUS = {
    Status.APPLIED: PushStatus.APPLIED,
    Status.STALE_EPOCH: PushStatus.STALE_EPOCH,
    Status.INVALID: PushStatus.INVALID,
}


class RaceGateway:
    """Implements ``AgentGateway`` over embedded agents."""

    def __init__(
        self, fabric: str, agents: Mapping[str, Agent], delays: Delays, changed: Callable[[], None]
    ) -> None:
        self.pushes = 0
        self._fabric = fabric
        self._agents = agents
        self._delays = delays
        self._changed = changed
        self._ids = itertools.count(1)
        self._sessions: dict[str, AgentSession] = {}
        self._lost: dict[int, asyncio.Event] = {}
        self._turn = {name: asyncio.Lock() for name in agents}
        self._listeners: set[asyncio.Queue[SessionEvent]] = set()

    def connect(self, name: str) -> None:
        """Begin a session, with what the switch holds now."""
        held, forwarding = self._agents[name].held, self._agents[name].forwarding
        session = AgentSession(
            id=next(self._ids),
            fabric=self._fabric,
            switch=name,
            instance="i",
            software_version="0",
            capabilities=frozenset(),
            table_size=0,
            highest_epoch=held.epoch,
            generation=held.generation,
            table_digest=forwarding.digest(),
        )
        self._sessions[name] = session
        self._lost[session.id] = asyncio.Event()
        self._tell(SessionChange.CONNECTED, session)

    def disconnect(self, name: str) -> None:
        """End the session; what was sent and has not reached the agent never will."""
        session = self._sessions.pop(name)
        self._lost[session.id].set()
        self._tell(SessionChange.DISCONNECTED, session)

    def sessions(self, fabric: str) -> Mapping[str, AgentSession]:
        """See the port."""
        return dict(self._sessions) if fabric == self._fabric else {}

    def lead(self, epoch: int) -> None:
        """See the port."""

    def retire(self, epoch: int) -> None:
        """See the port."""

    async def push(self, session: AgentSession, push: Push) -> PushReport:
        """See the port."""
        lost = self._lost[session.id]
        work = asyncio.ensure_future(self._delivered(session, push, lost))
        ended = asyncio.ensure_future(lost.wait())
        try:  # whoever stops waiting does not stop the push
            await asyncio.wait([work, ended], return_when=asyncio.FIRST_COMPLETED)
        finally:
            ended.cancel()
            work.add_done_callback(_forgotten)
        if not work.done() or lost.is_set():
            raise SessionLost(session.switch)
        return work.result()

    async def _delivered(
        self, session: AgentSession, push: Push, lost: asyncio.Event
    ) -> PushReport:
        self.pushes += 1
        message = push_to_pb(push, nonce=self.pushes)
        forwarding = self._agents[session.switch].forwarding
        async with self._turn[session.switch]:
            await self._delays.pass_()
            if lost.is_set():
                raise SessionLost(session.switch)
            taken = decode_push(message)
            receipt = forwarding.receive(taken)
            highest = self._agents[session.switch].held.epoch
            status = _STATUS[receipt.status]
            rib = StageResult(status, _failures(receipt.failures), receipt.message)
            if status is not PushStatus.APPLIED:
                return PushReport(rib, None, highest)
            await self._delays.pass_(5e-3)
            failures = _failures([*receipt.failures, *forwarding.program(taken)])
            self._changed()
            held = forwarding.held
            state = TableState(held.generation, forwarding.digest()) if push.tell_table else None
        await self._delays.pass_()
        return PushReport(rib, StageResult(status, failures), highest, state)

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


def _forgotten(work: asyncio.Future[PushReport]) -> None:
    """Whether it failed is of no interest to whoever has stopped waiting."""
    if not work.cancelled():
        work.exception()


def _failures(failures: object) -> tuple[OperationFailure, ...]:
    assert isinstance(failures, list | tuple)
    return tuple(OperationFailure(f.operation, FailureReason.BACKEND, f.message) for f in failures)
