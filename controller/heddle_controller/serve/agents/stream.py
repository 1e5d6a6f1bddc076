"""One agent's stream: pushes that wait to be sent, and pushes that wait for answers.

reconcile -> submit -> ``_unsent`` -> outgoing (the stream's writer) -> the agent
the agent -> the stream's reader -> answered -> the future that submit gave

The number of unanswered pushes is bounded. When an agent is so slow that the bound
is reached, what has not been sent is dropped and the session begins anew under a
new id, as one that nothing is known about: the loop then sends a FULL_SYNC in place
of the increments. The stream itself goes on, so nothing on the switch is disturbed.

Encodes pushes to many agents together.

The loop hands over the pushes of a stage one by one, but in one go, before any stream's writer
has its turn. The first writer that needs its message therefore has it encoded together with
those of the others, as many as take no longer than a turn of the event loop may.

Whether pushes and orders of an epoch may still go to agents from here.

They go out while our lease holds by this machine's clock: a controller that was stopped, or cut
off, and goes on, sends nothing before it has heard who leads now. Agents refuse what is older
than what they have followed in any case; this is for agents that the next leader has not reached
yet.
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
"""Operations from which a push is encoded in a thread, not to hold up the other streams."""
_TOGETHER = 4096
"""Operations after which the rest of those that wait are left for the next turn."""
MOST_PUSHES = 256
"""Likewise pushes: most have no operations."""


class EncodingJob(Protocol):
    """A push that is to be encoded."""

    push: Push
    message: Encoded | None

    @property
    def waits(self) -> bool:
        """Whether it still is."""


class Encoder:
    """Encodes for all streams of a gateway; its methods run in the event loop."""

    def __init__(self) -> None:
        self._queue: deque[EncodingJob] = deque()

    def add(self, pending: EncodingJob) -> None:
        """A push will be asked for soon."""
        if pending.push.operation_count < LARGE_PUSH:
            self._queue.append(pending)

    async def message(self, pending: EncodingJob) -> Encoded:
        """The message of a push."""
        if pending.push.operation_count >= LARGE_PUSH:
            (message,) = await asyncio.to_thread(encoded, [pending.push])
            return message
        together = [pending, *self._others(pending)]
        made = encoded([each.push for each in together])
        for each, message in zip(together, made, strict=True):
            each.message = message
        return made[0]

    def _others(self, first: EncodingJob) -> list[EncodingJob]:
        """Those to be encoded with one; they wait no more."""
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
    """The guard of a controller that no other can take the place of."""
    return True


class EpochGuard:
    """The greatest epoch heard of, and whether ours is over."""

    def __init__(self, leads: Callable[[int], bool] = always) -> None:
        self.newest = 0
        self._ours = 0
        self._leads = leads

    def heard(self, epoch: int) -> None:
        """Somebody leads, or led, with this epoch."""
        self.newest = max(self.newest, epoch)

    def lead(self, epoch: int) -> None:
        """We lead with this epoch."""
        self.heard(epoch)
        self._ours = epoch

    def is_ours(self, epoch: int) -> bool:
        """Whether we lead with this epoch now."""
        return epoch >= self.newest and self._leads(epoch)

    @property
    def leading(self) -> int:
        """The epoch with which we lead now; 0 while we do not."""
        return self._ours if self._ours and self.is_ours(self._ours) else 0


def lost(switch: str) -> asyncio.Future[PushReport]:
    """The answer to a push that cannot be sent: ``SessionLost``."""
    answer: asyncio.Future[PushReport] = asyncio.get_running_loop().create_future()
    _raise_in(answer, SessionLost(switch))
    return answer


def _raise_in(answer: asyncio.Future[PushReport], error: Exception) -> None:
    answer.set_exception(error)
    answer.exception()  # taken here: who waited may have given up


@dataclass(slots=True)
class Pending:
    """A push that has not been answered whole."""

    push: Push
    answer: asyncio.Future[PushReport]
    switch: str
    rib: StageResult | None = field(default=None)
    message: Encoded | None = field(default=None)
    """Encoded already, with others, and not yet sent."""

    def may_go(self, guard: EpochGuard) -> bool:
        """Whether it may still be sent."""
        return guard.is_ours(self.push.epoch)

    def hold_back(self, newest: int) -> None:
        """It was not sent: the epoch is over."""
        self._fail(StaleEpoch(self.push.epoch, max(newest, self.push.epoch + 1)))

    def lose(self, switch: str) -> None:
        """Nobody will answer."""
        self._fail(SessionLost(switch))

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            _raise_in(self.answer, error)

    @property
    def waits(self) -> bool:
        """Whether it is still to be encoded, as somebody waits for its answer."""
        return self.message is None and not self.answer.done()

    async def encode(self, encoder: Encoder) -> None:
        """Make its message, unless it was made with others."""
        if self.message is None:
            self.message = await encoder.message(self)

    def wire(self, nonce: int, told: SentNames) -> pb.ControllerMessage:
        """For the agent, who was told these names; to be sent now."""
        assert self.message is not None, "it is encoded first"
        message, self.message = self.message.named(told), None
        message.push.nonce = nonce
        return message

    def take(self, result: pb.PushResult, now: float) -> bool:
        """Take in one stage's result; whether it was the last."""
        stage = codec.stage_from_pb(result, self.push, now)
        if result.stage == pb.PUSH_STAGE_RIB:
            if stage.status is PushStatus.APPLIED:
                self.rib = stage
                return False
            report = PushReport(stage, None, result.highest_epoch)
        else:
            # A FIB ack says that the RIB stage was passed, should its own ack be lost.
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
        """Whether another push would go over the bound."""
        return len(self._pending) >= self._limit

    @property
    def pending_count(self) -> int:
        """Pushes without their last answer."""
        return len(self._pending)

    def submit(self, push: Push) -> asyncio.Future[PushReport]:
        """Queue a push behind those before it; the future is done with its last answer."""
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
        """Tell the agent of its peers, ahead of pushes that wait; only the newest is told."""
        self._introduction = peers
        self._wake.set()

    def meter(self, metering: pb.Metering) -> None:
        """Tell the agent what to count, ahead of pushes that wait; only the newest is told."""
        self._metering = metering
        self._wake.set()

    def order(self, order: pb.OverlayOrder) -> None:
        """Say whether to follow the entries, ahead of all else; only the newest is told."""
        self._order = order
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
            lost.lose(self.about.switch)

    async def outgoing(self) -> AsyncGenerator[pb.ControllerMessage, None]:
        """Pushes in order and introductions, until the session ends.

        Raises:
            Exception: the reason it ended for, if it was given one.
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
                del message  # while nothing goes out, nothing of what went is held on to
        if self._reason is not None:
            raise self._reason

    async def _next(self, nonce: int) -> pb.ControllerMessage | None:
        """The message of a push; None where its epoch is over."""
        pending = self._pending[nonce]
        await pending.encode(self._encoder)
        if pending.may_go(self._guard):  # asked last, as encoding takes its time
            return pending.wire(nonce, self._told)
        self._pending.pop(nonce, None)
        pending.hold_back(self._guard.newest)
        return None

    def answered(self, result: pb.PushResult, now: float) -> None:
        """Take in one stage's result; answers to pushes that are over are ignored.

        Raises:
            InputError: the result is malformed or contradicts its push.
        """
        if result.status != pb.PUSH_STATUS_APPLIED:
            self._told.forget()  # who knows whether it heeded the names
        nonce = result.nonce
        pending = self._pending.get(nonce)
        if pending is not None and pending.take(result, now):
            del self._pending[nonce]
