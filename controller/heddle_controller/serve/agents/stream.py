"""One agent's stream: pushes that wait to be sent, and pushes that wait for answers.

reconcile -> submit -> ``_unsent`` -> outgoing (the stream's writer) -> the agent
the agent -> the stream's reader -> answered -> the future that submit gave

The number of unanswered pushes is bounded. When an agent is so slow that the bound
is reached, what has not been sent is dropped and the session begins anew under a
new id, as one of which nothing is known: the loop then sends a FULL_SYNC in place
of the increments. The stream itself goes on, so nothing on the switch is disturbed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, replace

from heddle.v1 import agent_pb2 as pb
from heddle_controller.reconcile.errors import SessionLost
from heddle_controller.reconcile.southbound import (
    AgentSession,
    Push,
    PushReport,
    PushStatus,
    StageResult,
)
from heddle_controller.serve.codec import agent as codec
from heddle_controller.serve.codec import entries

UNKNOWN_DIGEST = bytes(32)
"""Stands for a table that nothing is known of; no table has it."""
LARGE_PUSH = 4096
"""Operations from which a push is encoded in a thread, not to hold up the other streams."""


@dataclass(slots=True)
class Pending:
    """A push that has not been answered whole."""

    push: Push
    answer: asyncio.Future[PushReport]
    rib: StageResult | None = field(default=None)


class AgentStream:
    """State of one stream; all methods run in the event loop."""

    def __init__(self, about: AgentSession, limit: int) -> None:
        self.about = about
        self._limit = limit
        self._nonce = 0
        self._unsent: deque[int] = deque()
        self._pending: dict[int, Pending] = {}
        self._introduction: pb.BackDoor | None = None
        self._wake = asyncio.Event()
        self._ended = False
        self._reason: Exception | None = None

    @property
    def full(self) -> bool:
        """Whether another push would go over the bound."""
        return len(self._pending) >= self._limit

    @property
    def pending_count(self) -> int:
        """Pushes without their last answer."""
        return len(self._pending)

    def submit(self, push: Push) -> asyncio.Future[PushReport]:
        """Queue a push behind those before it; the future is done with its last answer."""
        answer: asyncio.Future[PushReport] = asyncio.get_running_loop().create_future()
        if self._ended:
            answer.set_exception(SessionLost(self.about.switch))
            return answer
        self._nonce += 1
        self._pending[self._nonce] = Pending(push, answer)
        self._unsent.append(self._nonce)
        self._wake.set()
        return answer

    def introduce(self, peers: pb.BackDoor) -> None:
        """Tell the agent of its peers, ahead of pushes that wait; only the newest is told."""
        self._introduction = peers
        self._wake.set()

    def begin_anew(self, session_id: int) -> None:
        """Drop what is not sent, forget what is not answered, and know nothing of the table."""
        self._lose_pending()
        self.about = replace(self.about, id=session_id, generation=0, table_digest=UNKNOWN_DIGEST)

    def end(self, reason: Exception | None = None) -> None:
        """End the stream, with OK or the status of ``reason``; the first call counts."""
        if self._ended:
            return
        self._ended, self._reason = True, reason
        self._lose_pending()
        self._wake.set()

    def _lose_pending(self) -> None:
        pending, self._pending = self._pending, {}
        self._unsent.clear()
        for lost in pending.values():
            if not lost.answer.done():
                lost.answer.set_exception(SessionLost(self.about.switch))
                lost.answer.exception()  # taken here: who waited may have given up

    async def outgoing(self) -> AsyncGenerator[pb.ControllerMessage, None]:
        """Pushes in order and introductions, until the session ends.

        Raises:
            Exception: the reason it ended for, if it was given one.
        """
        while not self._ended:
            if self._introduction is not None:
                introduction, self._introduction = self._introduction, None
                yield pb.ControllerMessage(back_door=introduction)
                continue
            if not self._unsent:
                self._wake.clear()
                await self._wake.wait()
                continue
            nonce = self._unsent.popleft()
            yield pb.ControllerMessage(push=await self._encoded(nonce))
        if self._reason is not None:
            raise self._reason

    async def _encoded(self, nonce: int) -> pb.Push:
        push = self._pending[nonce].push
        if len(push.sets) + len(push.deletes) < LARGE_PUSH:
            return entries.push_to_pb(push, nonce)
        return await asyncio.to_thread(entries.push_to_pb, push, nonce)

    def answered(self, result: pb.PushResult, now: float) -> None:
        """Take in one stage's result; answers to pushes that are over are ignored.

        Raises:
            InputError: the result is malformed or contradicts its push.
        """
        pending = self._pending.get(result.nonce)
        if pending is None:
            return
        stage = codec.stage_from_pb(result, pending.push, now)
        if result.stage == pb.PUSH_STAGE_RIB and stage.status is PushStatus.APPLIED:
            pending.rib = stage
            return
        self._answer(result.nonce, pending, stage, result)

    def _answer(
        self, nonce: int, pending: Pending, stage: StageResult, result: pb.PushResult
    ) -> None:
        """The last answer to a push: its FIB result, or a RIB result that refuses it."""
        del self._pending[nonce]
        if result.stage == pb.PUSH_STAGE_RIB:
            report = PushReport(stage, None, result.highest_epoch)
        else:
            # A FIB ack says that the RIB stage was passed, should its own ack be lost.
            rib = pending.rib or StageResult(PushStatus.APPLIED, time=stage.time)
            report = PushReport(rib, stage, result.highest_epoch)
        if not pending.answer.done():
            pending.answer.set_result(report)
