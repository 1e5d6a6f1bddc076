"""What a database has to do for a store: apply changes, and tell what there is.

An applier knows no rule of intent. It compares the guards of a change, and makes it whole
or not at all.

News for several readers, of which the newest counts.

The one way by which a controller writes: changes in order, many at a time.

Whatever is asked for while a batch is under way goes out together in the next: the disk is
then waited for once a batch, not once a change. A change that was sent is waited for by
nobody in particular: who asked may go away, and whoever watches still hears of it.
"""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeAlias, TypeVar

from heddle_controller.state.audit import AuditPage
from heddle_controller.state.errors import Unavailable
from heddle_controller.state.view import Ask, Change, Outcome, View

_News = TypeVar("_News")


class NewsInbox(Generic[_News]):
    """News for one reader: however slow it is, of each key the newest alone waits."""

    def __init__(self, *, minor: bool) -> None:
        self.minor = minor
        """Whether it is told minor news too."""
        self._waiting: dict[Hashable, _News] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def tell(self, key: Hashable, news: _News) -> None:
        """Keep the news in place of older news under the same key."""
        self._waiting[key] = news
        self._wake.set()

    def close(self) -> None:
        """There will be nothing more."""
        self._closed = True
        self._wake.set()

    async def news(self) -> AsyncIterator[_News]:
        """News, what has waited longest first, until closed."""
        while not self._closed:
            await self._wake.wait()
            if self._waiting and not self._closed:
                yield self._waiting.pop(next(iter(self._waiting)))
            elif not self._closed:
                self._wake.clear()


class Feed(Generic[_News]):
    """Spreads news over all who follow; used from the event loop only."""

    def __init__(self) -> None:
        self._inboxes: set[NewsInbox[_News]] = set()
        self._closed = False

    def open(self, *, minor: bool = True) -> NewsInbox[_News]:
        """An inbox for what is told from now on; to be ``shut``."""
        inbox = NewsInbox[_News](minor=minor)
        self._inboxes.add(inbox)
        if self._closed:
            inbox.close()
        return inbox

    def shut(self, inbox: NewsInbox[_News]) -> None:
        """Tell this one no more."""
        self._inboxes.discard(inbox)

    def tell(self, key: Hashable, news: _News, *, minor: bool = False) -> None:
        """Tell everybody, or only those who hear minor news."""
        for inbox in self._inboxes:
            if inbox.minor or not minor:
                inbox.tell(key, news)

    def follow(self) -> AsyncIterator[_News]:
        """What is told from this call on."""
        return self._follow(self.open())

    async def _follow(self, inbox: NewsInbox[_News]) -> AsyncIterator[_News]:
        try:
            async for news in inbox.news():
                yield news
        finally:
            self.shut(inbox)

    def close(self) -> None:
        """End every inbox, also those that have yet to be opened."""
        self._closed = True
        for inbox in self._inboxes:
            inbox.close()


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept of what grows."""

    requests: int = 100_000
    """Answers remembered by request id."""
    audit: int = 100_000
    """Records of the audit trail."""
    writes: int = 10_000
    """Names of what the newest writes changed, for replicas to follow."""


@dataclass(frozen=True, slots=True)
class Leader:
    """The controller that leads, or led last."""

    epoch: int = 0
    """0 before the first."""
    holder: str = ""
    """For people."""


Following: TypeAlias = Callable[[Leader], None]
"""Takes the leader whom this controller follows."""


def heed_nobody(_leader: Leader) -> None:
    """What is done about a leader where nobody asks."""


class Applier(Protocol):
    """Of one database; every method raises ``Unavailable`` where it cannot be had."""

    name: str
    """Of the database, for people."""
    feed: Feed[str]
    """Told which fabric was changed, whoever did it; changes of facts alone are minor news."""

    @property
    def epoch(self) -> int:
        """The newest that is known here."""
        ...

    def check(self) -> None:
        """Nothing while the database can be had. Raises ``Unavailable``."""
        ...

    async def fresh(self) -> None:
        """Views are of now from here on; or as they were known last, where that is what is left."""
        ...

    def view(self, fabric: str) -> View:
        """A fabric as it is known here; one without fields where there is none."""
        ...

    def fabrics(self) -> Iterable[str]:
        """Names of those that are there, in order."""
        ...

    async def apply(self, change: Change, ask: Ask) -> Outcome:
        """Make a change, if its guards hold, its epoch is the newest and its request is new.

        Views have it, and watchers were told, when this returns ``done``.
        """
        ...

    async def remembered(self, request: str) -> bytes | None:
        """What is kept under the id of a request; None if it is new. See ``Ask.remembered``."""
        ...

    async def blob(self, identity: str) -> bytes | None:
        """A large value; None if it is there no more. Raises ``Unusable`` where it is damaged."""
        ...

    async def audit(self, *, after: int = 0, limit: int = 0) -> AuditPage:
        """Records numbered above ``after`` that are still kept, at most ``limit`` (0: all)."""
        ...

    async def acquire_leadership(
        self, holder: str, *, above: int = 0, following: Following = ...
    ) -> int:
        """Wait until no other leads, then lead: the epoch, greater than any before.

        Args:
            holder: This replica's name, for people.
            above: The epoch must also be greater than this: an agent's memory of
                epochs outlives a store that came back older.
            following: Told who leads meanwhile, now and then.
        """
        ...

    async def leadership_lost(self, epoch: int) -> None:
        """Return when the epoch is known to be over; wait for as long as it is not."""
        ...

    async def release_leadership(self, epoch: int) -> None:
        """Hand over at once; nothing if the epoch is over already."""
        ...

    def leads(self, epoch: int) -> bool:
        """Whether nobody else can lead yet, by this machine's clock: asks nobody.

        A process that was stopped and goes on finds its lease over before it has heard
        of the next leader.
        """
        ...

    async def leader(self) -> Leader:
        """The one with the newest epoch; it may be gone by now. Raises ``Unavailable``."""
        ...

    def stale_for(self) -> float:
        """Seconds since the store was last heard, while it cannot be; 0.0 where all is well.

        Meanwhile reads that can be are answered from what this replica knew last.
        """
        ...

    async def close(self) -> None:
        """Finish writes under way, and let go of the database."""
        ...


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


def end_if_asked() -> None:
    """Go on being cancelled, where an error that came with it has taken its place.

    So it does in a group of tasks where one failed meanwhile, and wherever what is given up
    fails in being closed. Whoever catches such errors and tries again asks here first.

    The body of such a group has to last as long as its tasks. A group that is only waiting for them
    when one fails asks its own task to end and, before Python 3.13, never takes that back: then all
    that has happened is that the task failed, and here it would be taken for the end.

    Raises:
        CancelledError: somebody has asked for the end of this task.
    """
    if asked_to_end():
        raise asyncio.CancelledError


def asked_to_end() -> int:
    """How often the present task was asked to end, and was not told to go on after all."""
    task = asyncio.current_task()
    return task.cancelling() if task is not None else 0


async def end(task: asyncio.Task[object]) -> None:
    """Cancel a task and wait until it is over.

    To await it, and to take the cancellation that comes of that for its own, would lose one of our
    own that comes meanwhile: then whoever asked us to end waits for ever.

    Raises:
        CancelledError: somebody has asked for the end of the present task.
        Exception: whatever the task failed with.
    """
    task.cancel()
    await asyncio.wait([task])  # raises only if it is we who are cancelled
    if not task.cancelled():
        task.result()
