"""The one way by which a controller writes: changes in order, many at a time.

Whatever is asked for while a batch is under way goes out together in the next: the disk is
then waited for once a batch, not once a change. A change that was sent is waited for by
nobody in particular: who asked may go away, and whoever watches still hears of it.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from heddle_controller.reconcile.waiting import end
from heddle_controller.state.errors import Unavailable
from heddle_controller.state.view import Ask, Change, Outcome

MOST_CHANGES, _MOST_BYTES = 128, 1 << 20
"""Of one batch."""
AGAIN = Outcome("again")
"""Of a change that goes once more, with the next batch."""


@dataclass(slots=True, eq=False)
class Sent:
    """A change under way."""

    change: Change
    ask: Ask
    token: str
    """Names this write among all others."""
    outcome: asyncio.Future[Outcome]

    def goes_with(self, other: Sent) -> bool:
        """Whether both may be of one batch."""
        return self.change.lasting == other.change.lasting


Deliver = Callable[[Sequence[Sent]], Awaitable[Sequence[Outcome | Exception]]]
"""Makes the changes of a batch, in order: what became of each."""


class WriteBatcher:
    """Sends changes, one batch after the other."""

    def __init__(self, name: str, deliver: Deliver) -> None:
        self._name = name
        self._deliver = deliver
        self._new_token = Tokens()
        self._queue: deque[Sent] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._closed = False
        self._task = asyncio.create_task(self._run(), name="store writes")

    async def send(self, change: Change, ask: Ask) -> Outcome:
        """What became of a change.

        Raises:
            Unavailable: the store cannot be written, or was lost meanwhile; then the change may
                have been made or not, and the same request again finds out.
        """
        if self._closed:
            raise self._refusal()
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._queue.append(Sent(change, ask, self._new_token(), outcome))
        self._wake.set()
        self._idle.clear()
        return await asyncio.shield(outcome)

    async def _run(self) -> None:
        while not self._closed:
            await self._wake.wait()
            while batch := self._batch():
                await self._send(batch)
            self._wake.clear()
            self._idle.set()

    def _batch(self) -> list[Sent]:
        batch: list[Sent] = []
        size = 0
        while self._queue and len(batch) < MOST_CHANGES and size < _MOST_BYTES:
            if batch and not self._queue[0].goes_with(batch[0]):
                break
            batch.append(self._queue.popleft())
            size += batch[-1].change.size()
        return batch

    async def _send(self, batch: list[Sent]) -> None:
        try:
            answers = await self._deliver(batch)
        except Exception as fault:  # noqa: BLE001 - told to those who asked; the others live on
            for sent in batch:
                _fail(sent, fault)
            return
        again = []
        for sent, answer in zip(batch, answers, strict=True):
            if answer is AGAIN:
                again.append(sent)
            elif isinstance(answer, Exception):
                _fail(sent, answer)
            elif not sent.outcome.done():
                sent.outcome.set_result(answer)
        self._queue.extendleft(reversed(again))

    def _refusal(self) -> Unavailable:
        return Unavailable(f"store {self._name}: closed, the controller is stopping")

    async def close(self) -> None:
        """Finish what was asked for, then send nothing more."""
        if self._queue or self._wake.is_set():
            await self._idle.wait()
        self._closed = True
        await end(self._task)
        for sent in self._queue:
            _fail(sent, self._refusal())


class Tokens:
    """Words that nothing had before, in no copy of the store either: each call gives another."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6)
        self._count = itertools.count()

    def __call__(self) -> str:
        """The next one."""
        return f"{self._prefix}{next(self._count):06x}"


def _fail(sent: Sent, error: Exception) -> None:
    if not sent.outcome.done():
        sent.outcome.set_exception(error)
        sent.outcome.exception()  # seen, also where nobody waits any more
