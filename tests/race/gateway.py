"""The controller's gateway to the agents, with the messages of the wire but without a network.

A push is encoded and decoded as it would be sent. Each of these takes a time of its own: the way to
the agent, the programming (a RIB acknowledgement, then a FIB acknowledgement), and the way back. An
agent takes its pushes one after another, as from a stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from heddle.v1 import agent_pb2 as pb
from heddle_agent.agent import Agent
from heddle_agent.session.decode import decode_push
from heddle_agent.session.encode import table_state
from heddle_agent.table import Status
from heddle_controller.reconcile.ports import (
    AgentSession,
    FailureReason,
    OperationFailure,
    Push,
    PushReport,
    PushStatus,
    StageResult,
    TableState,
)
from heddle_controller.serve.codec.agent import table_from_pb
from heddle_controller.state.errors import SessionLost
from tests.race.delays import Delays
from tests.support.pushes import push_to_pb
from tests.support.reconcile_gateway import Sessions

_STATUS = {
    Status.APPLIED: PushStatus.APPLIED,
    Status.STALE_EPOCH: PushStatus.STALE_EPOCH,
    Status.INVALID: PushStatus.INVALID,
}


class RaceGateway(Sessions):
    """Implements ``AgentGateway`` over agents in this process."""

    def __init__(
        self, fabric: str, agents: Mapping[str, Agent], delays: Delays, changed: Callable[[], None]
    ) -> None:
        super().__init__(fabric)
        self.pushes = 0
        self._agents = agents
        self._delays = delays
        self._changed = changed
        self._turn = {name: asyncio.Lock() for name in agents}

    def connect(self, name: str) -> None:
        """Begin a session of a switch, with what the switch holds now."""
        held, forwarding = self._agents[name].held, self._agents[name].forwarding
        self.begin(name, forwarding.table.fence, TableState(held.generation, forwarding.digest()))

    async def push(self, session: AgentSession, push: Push) -> PushReport:
        """Implement ``AgentGateway.push``."""
        lost = self._lost[session.id]
        work = asyncio.ensure_future(self._delivered(session, push, lost))
        ended = asyncio.ensure_future(lost.wait())
        try:  # a caller that stops waiting does not stop the push
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
            told = table_state(
                held,
                forwarding.digest(),
                forwarding.table.programmed if push.tell_entries else None,
            )
            answer = pb.PushResult(table=told if push.tell_table else None)
            state = table_from_pb(answer, push, session.switch)
        await self._delays.pass_()
        return PushReport(rib, StageResult(status, failures), highest, state)


def _forgotten(work: asyncio.Future[PushReport]) -> None:
    """Take the exception of a push for which nobody waits, so that asyncio does not warn."""
    if not work.cancelled():
        work.exception()


def _failures(failures: object) -> tuple[OperationFailure, ...]:
    assert isinstance(failures, list | tuple)
    return tuple(OperationFailure(f.operation, FailureReason.BACKEND, f.message) for f in failures)
