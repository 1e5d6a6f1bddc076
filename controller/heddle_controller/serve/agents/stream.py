"""One agent's stream: pushes that wait to be sent, and pushes that wait for answers.

reconcile -> submit -> ``_unsent`` -> outgoing (the stream's writer) -> the agent
the agent -> the stream's reader -> answered -> the future that submit returned

The number of unanswered pushes is bounded. If an agent is so slow that the bound is reached, all
unsent pushes are dropped. The session gets a new id and counts as one about whose table nothing
is known, so the loop sends a FULL_SYNC instead of the increments. The stream itself goes on, so
nothing on the switch is disturbed.

``Encoder`` encodes pushes to many agents together. The loop submits the pushes of a stage one
after another, before any stream's writer gets its turn. So the first writer that needs its message
encodes those of other streams with it, as many as fit into one turn of the event loop.

``EpochGuard`` decides whether pushes and orders of an epoch may still be sent. They are sent while
the lease of this controller holds by its own clock. A controller that was suspended or cut off
therefore sends nothing before it knows who leads now. Agents refuse lower epochs than they have
seen anyway; the guard protects agents that the next leader has not reached yet.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from heddle.v1 import agent_pb2 as pb
from heddle_controller.reconcile.ports import (
    UNKNOWN_DIGEST,
    AgentSession,
    Push,
    PushReport,
    PushStatus,
    StageResult,
)
from heddle_controller.serve.codec import agent as codec
from heddle_controller.serve.codec.entries import Encoded, SentNames, encoded
from heddle_controller.state.errors import SessionLost, StaleEpoch

LARGE_PUSH = 4096
"""A push with so many operations or more is encoded in a thread, to not delay other streams."""
_TOGETHER = 4096
"""Once so many operations are encoded together, the other pushes wait for the next turn."""
MOST_PUSHES = 256
"""Pushes that are encoded together; a separate limit, because most pushes have no operations."""


class EncodingJob(Protocol):
    """A push that is queued for encoding."""

    push: Push
    message: Encoded | None

    @property
    def waits(self) -> bool:
        """Whether it still has to be encoded."""


class Encoder:
    """Encodes pushes for all streams of a gateway; its methods run in the event loop."""

    def __init__(self) -> None:
        self._queue: deque[EncodingJob] = deque()

    def add(self, pending: EncodingJob) -> None:
        """Queue a push whose message will be needed soon."""
        if pending.push.operation_count < LARGE_PUSH:
            self._queue.append(pending)

    async def message(self, pending: EncodingJob) -> Encoded:
        """Return the message of a push, and set the messages of others encoded with it."""
        if pending.push.operation_count >= LARGE_PUSH:
            (message,) = await asyncio.to_thread(encoded, [pending.push])
            return message
        together = [pending, *self._others(pending)]
        made = encoded([each.push for each in together])
        for each, message in zip(together, made, strict=True):
            each.message = message
        return made[0]

    def _others(self, first: EncodingJob) -> list[EncodingJob]:
        """Take from the queue the pushes to encode together with this one."""
        structure, room = first.push.fabric.structure, _TOGETHER - first.push.operation_count
        others: list[EncodingJob] = []
        while self._queue and room > 0 and len(others) < MOST_PUSHES:
            each = self._queue[0]
            if each is not first and each.waits:
                if each.push.fabric.structure is not structure:
                    break
                others.append(each)
                room -= each.push.operation_count
            self._queue.popleft()
        return others


def always(_epoch: int) -> bool:
    """Allow every epoch: the guard of a controller that no other can replace."""
    return True


class EpochGuard:
    """The highest epoch known, and whether this controller still leads."""

    def __init__(self, leads: Callable[[int], bool] = always) -> None:
        self.newest = 0
        self._ours = 0
        self._leads = leads

    def heard(self, epoch: int) -> None:
        """Note that some controller leads, or led, with this epoch."""
        self.newest = max(self.newest, epoch)

    def lead(self, epoch: int) -> None:
        """Note that this controller leads with this epoch."""
        self.heard(epoch)
        self._ours = epoch

    def is_ours(self, epoch: int) -> bool:
        """Return whether this controller leads with this epoch now."""
        return epoch >= self.newest and self._leads(epoch)

    @property
    def leading(self) -> int:
        """The epoch with which this controller leads now; 0 if it does not lead."""
        return self._ours if self._ours and self.is_ours(self._ours) else 0


def lost(switch: str) -> asyncio.Future[PushReport]:
    """Return a future that fails with ``SessionLost``, for a push that cannot be sent."""
    answer: asyncio.Future[PushReport] = asyncio.get_running_loop().create_future()
    _raise_in(answer, SessionLost(switch))
    return answer


def _raise_in(answer: asyncio.Future[PushReport], error: Exception) -> None:
    answer.set_exception(error)
    answer.exception()  # mark it as retrieved, because nobody may wait any more


@dataclass(slots=True)
class Pending:
    """A push that has not had its last answer."""

    push: Push
    answer: asyncio.Future[PushReport]
    switch: str
    rib: StageResult | None = field(default=None)
    message: Encoded | None = field(default=None)
    """Its message, from encoding until it is sent."""

    def may_go(self, guard: EpochGuard) -> bool:
        """Return whether it may still be sent."""
        return guard.is_ours(self.push.epoch)

    def hold_back(self, newest: int) -> None:
        """Fail with ``StaleEpoch``, because its epoch was over before it was sent."""
        self._fail(StaleEpoch(self.push.epoch, newest))

    def lose(self, switch: str) -> None:
        """Fail with ``SessionLost``, because no answer will come."""
        self._fail(SessionLost(switch))

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            _raise_in(self.answer, error)

    @property
    def waits(self) -> bool:
        """Whether it still has to be encoded: it has no message, and its answer is awaited."""
        return self.message is None and not self.answer.done()

    async def encode(self, encoder: Encoder) -> None:
        """Make its message, unless another push's encoding already made it."""
        if self.message is None:
            self.message = await encoder.message(self)

    def wire(self, nonce: int, told: SentNames) -> pb.ControllerMessage:
        """Return the message for the agent, which must be sent next; update the sent names."""
        assert self.message is not None, "it is encoded first"
        message, self.message = self.message.named(told), None
        message.push.nonce = nonce
        return message

    def take(self, result: pb.PushResult, now: float) -> bool:
        """Take in one stage's result; return whether it was the last answer."""
        stage = codec.stage_from_pb(result, self.push, now)
        if result.stage == pb.PUSH_STAGE_RIB:
            if stage.status is PushStatus.APPLIED:
                self.rib = stage
                return False
            report = PushReport(stage, None, result.highest_epoch)
        else:
            # A FIB ack implies that the RIB stage succeeded, even if the RIB's ack is missing.
            rib = self.rib or StageResult(PushStatus.APPLIED, time=stage.time)
            table = codec.table_from_pb(result, self.push, self.switch)
            report = PushReport(rib, stage, result.highest_epoch, table)
        if not self.answer.done():
            self.answer.set_result(report)
        return True


class AgentStream:
    """State of one stream; all methods run in the event loop."""

    def __init__(
        self,
        about: AgentSession,
        limit: int,
        guard: EpochGuard | None = None,
        encoder: Encoder | None = None,
    ) -> None:
        self.about = about
        self._limit = limit
        self._guard = guard or EpochGuard()
        self._encoder = encoder or Encoder()
        self._told = SentNames()
        self._nonce = 0
        self._unsent: deque[int] = deque()
        self._pending: dict[int, Pending] = {}
        self._introduction: pb.PeerConfiguration | None = None
        self._order: pb.OverlayOrder | None = None
        self._metering: pb.Metering | None = None
        self._wake = asyncio.Event()
        self._ended = False
        self._reason: Exception | None = None

    @property
    def full(self) -> bool:
        """Whether the number of unanswered pushes has reached the bound."""
        return len(self._pending) >= self._limit

    @property
    def pending_count(self) -> int:
        """Number of pushes without their last answer."""
        return len(self._pending)

    def submit(self, push: Push) -> asyncio.Future[PushReport]:
        """Queue a push behind earlier ones; return a future that its last answer completes."""
        answer: asyncio.Future[PushReport] = asyncio.get_running_loop().create_future()
        pending = Pending(push, answer, self.about.switch)
        if self._ended:
            pending.lose(self.about.switch)
        else:
            self._encoder.add(pending)
            self._queue(pending)
        return answer

    def _queue(self, pending: Pending) -> None:
        if not self.about.pushed:
            self.about = replace(self.about, pushed=True)
        self._nonce += 1
        self._pending[self._nonce] = pending
        self._unsent.append(self._nonce)
        self._wake.set()

    def introduce(self, peers: pb.PeerConfiguration) -> None:
        """Send the agent its peers before pushes that wait; a newer message replaces this one."""
        self._introduction = peers
        self._wake.set()

    def meter(self, metering: pb.Metering) -> None:
        """Tell the agent what to count, before pushes that wait; a newer message replaces it."""
        self._metering = metering
        self._wake.set()

    def order(self, order: pb.OverlayOrder) -> None:
        """Order the agent to follow its entries or not, before all else; a newer order wins."""
        self._order = order
        self._wake.set()

    def begin_anew(self, session_id: int) -> None:
        """Drop all pushes without an answer, and take a new id with an unknown table."""
        self._lose_pending()
        self.about = replace(self.about, id=session_id, generation=0, table_digest=UNKNOWN_DIGEST)

    def end(self, reason: Exception | None = None) -> None:
        """End the stream with OK or with ``reason``; only the first call has an effect."""
        if self._ended:
            return
        self._ended, self._reason = True, reason
        self._lose_pending()
        self._wake.set()

    def _lose_pending(self) -> None:
        pending, self._pending = self._pending, {}
        self._unsent.clear()
        for lost in pending.values():
            lost.lose(self.about.switch)

    async def outgoing(self) -> AsyncGenerator[pb.ControllerMessage, None]:
        """Yield the messages to the agent, pushes in order, until the session ends.

        Raises:
            Exception: the reason for which it ended, if ``end`` got one.
        """
        while not self._ended:
            if self._order is not None:
                order, self._order = self._order, None
                yield pb.ControllerMessage(overlay=order)
                continue
            if self._introduction is not None:
                introduction, self._introduction = self._introduction, None
                yield pb.ControllerMessage(peer_configuration=introduction)
                continue
            if self._metering is not None:
                metering, self._metering = self._metering, None
                yield pb.ControllerMessage(metering=metering)
                continue
            if not self._unsent:
                self._wake.clear()
                await self._wake.wait()
                continue
            message = await self._next(self._unsent.popleft())
            if message is not None:
                yield message
                del message  # free its memory while the stream waits
        if self._reason is not None:
            raise self._reason

    async def _next(self, nonce: int) -> pb.ControllerMessage | None:
        """Return the message of a push; None if its epoch is over."""
        pending = self._pending[nonce]
        await pending.encode(self._encoder)
        if pending.may_go(self._guard):  # checked last, because encoding takes time
            return pending.wire(nonce, self._told)
        self._pending.pop(nonce, None)
        pending.hold_back(self._guard.newest)
        return None

    def answered(self, result: pb.PushResult, now: float) -> None:
        """Take in one stage's result; ignore answers to pushes that are no longer known.

        Raises:
            InputError: the result is malformed or contradicts its push.
        """
        if result.status != pb.PUSH_STATUS_APPLIED:
            self._told.forget()  # it may not have stored the names
        nonce = result.nonce
        pending = self._pending.get(nonce)
        if pending is not None and pending.take(result, now):
            del self._pending[nonce]
