"""What a store needs of its database (``Applier``), and helpers that both kinds of database use.

An applier knows no rule of intent. It compares the guards of a change, and makes the change whole
or not at all.

A ``Feed`` tells several readers which fabrics have changed. A ``WriteBatcher`` sends all writes of
a controller, in order and in batches. Changes that arrive while one batch is written form the next,
so the disk is awaited once per batch and not once per change. A change that was sent is completed
even if its caller is cancelled, and watchers still hear of it.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from heddle_controller.state.audit import AuditPage
from heddle_controller.state.errors import Unavailable
from heddle_controller.state.view import Ask, Change, Outcome, View

_News = TypeVar("_News")


class NewsInbox(Generic[_News]):
    """News for one reader. For each key only the newest waits, however slow the reader is."""

    def __init__(self, *, minor: bool) -> None:
        self.minor = minor
        """Whether this reader gets minor news too."""
        self._waiting: dict[Hashable, _News] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def tell(self, key: Hashable, news: _News) -> None:
        """Keep the news in place of older news under the same key."""
        self._waiting[key] = news
        self._wake.set()

    def close(self) -> None:
        """End ``news``; nothing more is yielded."""
        self._closed = True
        self._wake.set()

    async def news(self) -> AsyncIterator[_News]:
        """Yield news until closed. The key that has waited longest comes first."""
        while not self._closed:
            await self._wake.wait()
            if self._waiting and not self._closed:
                yield self._waiting.pop(next(iter(self._waiting)))
            elif not self._closed:
                self._wake.clear()


class Feed(Generic[_News]):
    """Passes news to all readers. Used from the event loop only."""

    def __init__(self) -> None:
        self._inboxes: set[NewsInbox[_News]] = set()
        self._closed = False

    def open(self, *, minor: bool = True) -> NewsInbox[_News]:
        """Return an inbox for news from now on. The caller must ``shut`` it."""
        inbox = NewsInbox[_News](minor=minor)
        self._inboxes.add(inbox)
        if self._closed:
            inbox.close()
        return inbox

    def shut(self, inbox: NewsInbox[_News]) -> None:
        """Stop passing news to an inbox."""
        self._inboxes.discard(inbox)

    def tell(self, key: Hashable, news: _News, *, minor: bool = False) -> None:
        """Pass news to all inboxes, or if ``minor`` only to those that take minor news."""
        for inbox in self._inboxes:
            if inbox.minor or not minor:
                inbox.tell(key, news)

    def follow(self) -> AsyncIterator[_News]:
        """Return an iterator over the news from this call on."""
        return self._follow(self.open())

    async def _follow(self, inbox: NewsInbox[_News]) -> AsyncIterator[_News]:
        try:
            async for news in inbox.news():
                yield news
        finally:
            self.shut(inbox)

    def close(self) -> None:
        """Close every inbox, and any that is opened later."""
        self._closed = True
        for inbox in self._inboxes:
            inbox.close()


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many records of each growing kind a store keeps."""

    requests: int = 100_000
    """Answers that are remembered by request id."""
    audit: int = 100_000
    """Records of the audit trail."""
    writes: int = 10_000
    """Entries of the log that replicas follow: which fields the newest writes changed."""


@dataclass(frozen=True, slots=True)
class Leader:
    """A controller that leads or led."""

    epoch: int = 0
    """0 if there was no leader yet."""
    holder: str = ""
    """Name of the controller, for people."""


Following: TypeAlias = Callable[[Leader], None]
"""Called with the leader that this controller follows."""


def heed_nobody(_leader: Leader) -> None:
    """Ignore the leader; the default for ``Following``."""


class Applier(Protocol):
    """Access to one database. Every method may raise ``Unavailable``."""

    name: str
    """Name of the database, for people."""
    feed: Feed[str]
    """News of changed fabrics, whichever replica wrote. Changes of facts alone are minor news."""

    @property
    def epoch(self) -> int:
        """The newest epoch that this controller knows."""
        ...

    def check(self) -> None:
        """Raise ``Unavailable`` if the database cannot be used now."""
        ...

    async def fresh(self) -> None:
        """Bring all views up to date.

        With Redis, views stay as they were known last while the server is away.
        """
        ...

    def view(self, fabric: str) -> View:
        """Return the view of a fabric; it has no fields if there is no such fabric."""
        ...

    def fabrics(self) -> Iterable[str]:
        """Return the names of all fabrics, in order."""
        ...

    async def apply(self, change: Change, ask: Ask) -> Outcome:
        """Make a change if its guards hold, its epoch is the newest and its request is new.

        When this returns ``done``, views contain the change and watchers were told.
        """
        ...

    async def remembered(self, request: str) -> bytes | None:
        """Return what is kept under a request id, or None if it is new. See ``Ask.remembered``."""
        ...

    async def blob(self, identity: str) -> bytes | None:
        """Return a large value, or None if it is gone. Raises ``Unusable`` if it is damaged."""
        ...

    async def audit(self, *, after: int = 0, limit: int = 0) -> AuditPage:
        """Return the kept records numbered above ``after``, at most ``limit`` (0: all)."""
        ...

    async def acquire_leadership(
        self, holder: str, *, above: int = 0, following: Following = ...
    ) -> int:
        """Wait until nobody else leads, become the leader, and return the new epoch.

        The epoch is greater than any before.

        Args:
            holder: Name of this replica, for people.
            above: The epoch must also be greater than this. Agents remember epochs that a store
                restored from a backup does not know.
            following: Called with the current leader from time to time while waiting.
        """
        ...

    async def leadership_lost(self, epoch: int) -> None:
        """Wait until the leadership of this epoch is known to be over."""
        ...

    async def release_leadership(self, epoch: int) -> None:
        """Give up the leadership at once. Do nothing if the epoch is already over."""
        ...

    def leads(self, epoch: int) -> bool:
        """Return whether this epoch still leads, by this machine's clock, without asking anybody.

        A process that was suspended and resumes sees that its lease is over even before it hears
        of the next leader.
        """
        ...

    async def leader(self) -> Leader:
        """Return the newest epoch and its leader; the holder is empty if nobody leads now."""
        ...

    def stale_for(self) -> float:
        """Return the seconds since the store last answered while it is away, else 0.0.

        While it is away, reads are answered from what this replica knew last, where possible.
        """
        ...

    def write_trouble(self) -> str:
        """Return why a write failed in the last minutes; empty if none did."""
        ...

    async def close(self) -> None:
        """Finish writes in progress, and release the database."""
        ...


MOST_CHANGES, _MOST_BYTES = 128, 1 << 20
"""Most changes in one batch, and the bytes after which no further change is added to it."""
TROUBLE_SECONDS = 120.0
"""A failed write is reported for so long. The loop repeats its own failed writes sooner."""
AGAIN = Outcome("again")
"""Outcome of a change that must be sent again with the next batch."""


@dataclass(slots=True, eq=False)
class Sent:
    """A change that was sent and has no outcome yet."""

    change: Change
    ask: Ask
    token: str
    """Unique name of this write."""
    outcome: asyncio.Future[Outcome]

    def goes_with(self, other: Sent) -> bool:
        """Return whether both changes may be in one batch."""
        return self.change.lasting == other.change.lasting


Deliver = Callable[[Sequence[Sent]], Awaitable[Sequence[Outcome | Exception]]]
"""Makes the changes of a batch, in order, and returns the outcome or error of each."""


class WriteBatcher:
    """Sends changes in batches, one batch after another."""

    def __init__(self, name: str, deliver: Deliver) -> None:
        self._name = name
        self._deliver = deliver
        self._new_token = Tokens()
        self._queue: deque[Sent] = deque()
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._closed = False
        self._trouble, self._trouble_time = "", 0.0
        self._task = asyncio.create_task(self._run(), name="store writes")

    def trouble(self) -> str:
        """Return why a write failed within ``TROUBLE_SECONDS``; empty if none did.

        A later success does not end this: on a full disk, small writes may still find room.
        """
        recent = time.monotonic() < self._trouble_time + TROUBLE_SECONDS
        return self._trouble if recent else ""

    async def send(self, change: Change, ask: Ask) -> Outcome:
        """Send a change and return its outcome.

        Raises:
            Unavailable: the store cannot be written, or was lost meanwhile. The change may or may
                not have been made; repeating the same request finds out.
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
            self._note(fault)
            for sent in batch:
                _fail(sent, fault)
            return
        again = []
        for sent, answer in zip(batch, answers, strict=True):
            if answer is AGAIN:
                again.append(sent)
            elif isinstance(answer, Exception):
                self._note(answer)
                _fail(sent, answer)
            elif not sent.outcome.done():
                sent.outcome.set_result(answer)
        self._queue.extendleft(reversed(again))

    def _note(self, error: Exception) -> None:
        if isinstance(error, Unavailable):
            self._trouble, self._trouble_time = str(error), time.monotonic()

    def _refusal(self) -> Unavailable:
        return Unavailable(f"store {self._name}: closed, the controller is stopping")

    async def close(self) -> None:
        """Finish all changes that were sent, and then accept no more."""
        if self._queue or self._wake.is_set():
            await self._idle.wait()
        self._closed = True
        await end(self._task)
        for sent in self._queue:
            _fail(sent, self._refusal())


class Tokens:
    """Makes unique words. No two calls give the same, in any process or copy of the store."""

    def __init__(self) -> None:
        self._prefix = secrets.token_hex(6)
        self._count = itertools.count()

    def __call__(self) -> str:
        """Return the next word."""
        return f"{self._prefix}{next(self._count):06x}"


def _fail(sent: Sent, error: Exception) -> None:
    if not sent.outcome.done():
        sent.outcome.set_exception(error)
        sent.outcome.exception()  # mark it as retrieved, in case nobody waits any more


def end_if_asked() -> None:
    """Raise ``CancelledError`` if the current task was cancelled but another error replaced it.

    This happens in a task group when one of its tasks fails at the same time, and when closing
    something fails during cancellation. Code that catches such errors and tries again calls this
    first.

    The body of such a task group must last as long as its tasks. If the group is only waiting for
    them when one fails, it cancels its own task and, before Python 3.13, never takes that back. A
    plain failure would then look like a cancellation here.

    Raises:
        CancelledError: the current task was cancelled.
    """
    if asked_to_end():
        raise asyncio.CancelledError


def asked_to_end() -> int:
    """Return how many cancellation requests of the current task are pending."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


async def end(task: asyncio.Task[object]) -> None:
    """Cancel a task and wait until it is over.

    Awaiting the task and catching ``CancelledError`` would also catch a cancellation of the current
    task that comes meanwhile, and whoever cancelled it would wait for ever.

    Raises:
        CancelledError: the current task was cancelled.
        Exception: the error that the task failed with.
    """
    task.cancel()
    await asyncio.wait([task])  # raises only if the current task is cancelled
    if not task.cancelled():
        task.result()
