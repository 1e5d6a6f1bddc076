"""The one way by which this replica writes: changes in order, many at a time.

Whatever is asked for while a batch is under way goes out together in the next: with
``appendfsync always`` the server then waits for its disk once a batch, not once a change.
A change that was sent is waited for by nobody in particular: who asked may go away, and
whoever watches still hears of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, RedisError

from heddle_controller.reconcile.waiting import end
from heddle_controller.state.errors import Unavailable
from heddle_controller.store.redis.blobs import Blobs
from heddle_controller.store.redis.change import Ask, Change, Outcome, Raw, flat, new_token
from heddle_controller.store.redis.link import AWAY
from heddle_controller.store.redis.scripts import WRITE

MOST_CHANGES, MOST_BYTES = 128, 1 << 20
"""Of one batch."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept of what grows."""

    requests: int = 100_000
    """Answers remembered by request id."""
    writes: int = 10_000
    """Names of what the newest writes changed, for replicas to follow."""
    audit: int = 100_000
    """Records of the audit trail."""


@dataclass(frozen=True, slots=True)
class Durability:
    """What else a write waits for, besides what the server's own settings say."""

    replicas: int = 0
    """That must have it, within half the time that a call may take."""


@dataclass(slots=True, eq=False)
class Sent:
    """A change under way."""

    change: Change
    ask: Ask
    token: str
    outcome: asyncio.Future[Outcome]
    inner: bool


Done = Callable[[Sent, Outcome], None]


class Lane:
    """Sends changes, one batch after the other."""

    def __init__(self, blobs: Blobs, writer: str, bounds: Bounds, durability: Durability) -> None:
        self._link = blobs.link
        self._keys = blobs.keys
        self._blobs = blobs
        self._writer = writer
        self._bounds = bounds
        self._durability = durability
        self.on_done: list[Done] = []
        """Called for each change that was written, whoever still waits for it."""
        self._queue: deque[Sent] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._closed = False
        self._task = asyncio.create_task(self._run(), name="store writes")

    async def send(self, change: Change, ask: Ask, *, inner: bool = False) -> Outcome:
        """What became of a change.

        Raises:
            Unavailable: the server is away, or was lost meanwhile; then the change may
                have been made or not, and the same request again finds out.
        """
        self._link.check(inner=inner)
        for blob in change.keep:
            await self._blobs.write(blob, inner=inner)
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._queue.append(Sent(change, ask, new_token(), outcome, inner))
        self._wake.set()
        self._idle.clear()
        return await asyncio.shield(outcome)

    async def _run(self) -> None:
        while not self._closed:
            await self._wake.wait()
            while batch := self._batch():
                await self._deliver(batch)
            self._wake.clear()
            self._idle.set()

    def _batch(self) -> list[Sent]:
        batch: list[Sent] = []
        size = 0
        while self._queue and len(batch) < MOST_CHANGES and size < MOST_BYTES:
            if batch and self._queue[0].inner != batch[0].inner:
                break
            batch.append(self._queue.popleft())
            size += batch[-1].change.size()
        return batch

    async def _deliver(self, batch: list[Sent]) -> None:
        try:
            answers = await self._exchange(batch)
        except Unavailable as error:
            for sent in batch:
                _fail(sent, error)
            return
        except Exception as fault:  # noqa: BLE001 - told to those who asked; the lane lives on
            for sent in batch:
                _fail(sent, fault)
            return
        held = answers.pop() if self._durability.replicas else 0
        for sent, answer in zip(batch, answers, strict=True):
            self._settle(sent, answer, held)

    async def _exchange(self, batch: list[Sent]) -> list[Any]:
        inner = batch[0].inner
        calls = [self._call(sent) for sent in batch]
        answers = await self._link.call(lambda c: self._pipe(c, calls), inner=inner)
        if any(isinstance(answer, NoScriptError) for answer in answers):
            # A server that was restarted knows no scripts; one that was asked for in
            # vain has done nothing, so the whole batch may go again in its order.
            await self._link.call(lambda c: c.script_load(WRITE.text), inner=inner)
            again = [n for n, a in enumerate(answers[: len(batch)]) if isinstance(a, NoScriptError)]
            second = await self._link.call(
                lambda c: self._pipe(c, [calls[n] for n in again]), inner=inner
            )
            for n, answer in zip(again, second, strict=False):
                answers[n] = answer
            if self._durability.replicas:
                answers[-1] = second[-1]
        return answers

    async def _pipe(self, client: Redis, calls: list[tuple[list[str], list[Raw]]]) -> list[Any]:
        async with client.pipeline(transaction=False) as pipeline:
            for keys, args in calls:
                WRITE.queue(pipeline, keys, args)
            if self._durability.replicas:
                pipeline.wait(self._durability.replicas, round(self._link.timeout * 500))
            answers: list[Any] = await pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, AWAY):
                raise answer
        return answers

    def _call(self, sent: Sent) -> tuple[list[str], list[Raw]]:
        change, keys, bounds = sent.change, self._keys, self._bounds
        names = [
            keys.sequence,
            keys.log,
            keys.fabric_prefix + change.fabric,
            keys.leader,
            keys.requests,
            keys.request_order,
            keys.references,
            keys.fabrics,
            keys.audit,
            keys.audit_marks,
            *(keys.blob(blob.id) for blob in change.keep),
            *(keys.blob(identity) for identity in change.drop),
        ]
        remembered = sent.ask.fingerprint.encode() + change.answer
        args: list[Raw] = [
            sent.token,
            self._writer,
            change.kind,
            change.fabric,
            "" if change.epoch is None else change.epoch,
            sent.ask.request.id,
            remembered,
            bounds.requests,
            bounds.writes,
            repr(change.time),
            *flat((name, b"-" if want is None else b"=" + want) for name, want in change.guards),
            len(change.keep),
            len(change.drop),
            *flat(change.ops),
        ]
        entry = change.audit
        args += [entry.content(), orjson.dumps(entry)] if entry else ["", ""]
        return names, [*args, bounds.audit]

    def _settle(self, sent: Sent, answer: Any, held: Any) -> None:  # noqa: ANN401 - replies
        if isinstance(answer, Exception):
            if isinstance(answer, RedisError):
                answer = Unavailable(f"store {self._link.name}: {answer}")
            _fail(sent, answer)
            return
        outcome = _outcome(answer)
        if outcome.kind == "done" and outcome.number:
            for tell in self.on_done:
                tell(sent, outcome)
        if outcome.kind == "done" and self._durability.replicas:
            least = self._durability.replicas
            if isinstance(held, Exception) or held < least:
                _fail(sent, self._not_held(held, least))
                return
        if not sent.outcome.done():
            sent.outcome.set_result(outcome)

    def _not_held(self, held: object, least: int) -> Unavailable:
        return Unavailable(
            f"store {self._link.name}: written, but {held} of {least} replicas had it in time; "
            "ask again with the same request id"
        )

    async def close(self) -> None:
        """Finish what was asked for, then send nothing more."""
        if self._queue or self._wake.is_set():
            await self._idle.wait()
        self._closed = True
        await end(self._task)
        for sent in self._queue:
            _fail(sent, Unavailable(f"store {self._link.name}: closed"))


def _outcome(answer: list[bytes]) -> Outcome:
    kind = answer[0].decode()
    if kind == "replay":
        return Outcome(kind, answer=answer[1])
    return Outcome(kind, int(answer[1]) if kind in ("done", "epoch") else 0)


def _fail(sent: Sent, error: Exception) -> None:
    if not sent.outcome.done():
        sent.outcome.set_exception(error)
        sent.outcome.exception()  # seen, also where nobody waits any more
