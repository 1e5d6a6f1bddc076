"""A copy in memory of everything in the store, kept up to date.

A read asks the server which fields have changed since the last write that the mirror knows. The
answer has the present values of all of them, taken in one step, so that a read is consistent and
current. Readers that come at the same time share one question. While the server is away, reads are
answered from the mirror.

The mirror's position is the number of a write and that write's token. If the server has fewer
writes, or another token at that number, it came back older (``OlderError``) and has lost writes
that were acknowledged to clients.

The ``Follower`` reads the log of writes. It wakes watchers and keeps the mirror up to date between
reads. The log says which fabric changed, and whether intent or facts did. Writes of this replica
are announced when they are made, so the follower skips them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError

from heddle_controller.state.errors import Unavailable
from heddle_controller.state.view import FACTS, INTENT, Change, View
from heddle_controller.store.applier import Feed, Leader, end
from heddle_controller.store.redis.link import BLOCK_SECONDS, Link
from heddle_controller.store.redis.writes import LEASE, NEWS, POSITION, Keys, note_of

_MOST_ENTRIES = 2_000
"""Most writes to catch up with by the log. If there are more, everything is read again."""


class OlderError(Exception):
    """The server lacks a write that it once had."""


class Mirror:
    """All fabrics as of the write with ``number``."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys
        self.number = 0
        """Number of the newest write that is known here."""
        self.token = ""
        self.leader = Leader()
        self.highest = 0
        """Highest epoch ever seen. A server that came back older must not give it out again."""
        self.views: dict[str, View] = {}
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def fresh(self) -> None:
        """Bring the mirror up to date with all writes before this call.

        Does nothing while the server is away.

        Raises:
            Unavailable: the store is closed.
        """
        if self.link.closed:
            self.link.check()
        if not self.link.up:
            return
        if self._next is None:
            self._next = asyncio.create_task(self._turn(self._running))
        await asyncio.shield(self._next)

    async def _turn(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._running, self._next = self._next, None
        try:
            await self.follow()
        except OlderError as error:
            self.link.lost(error)
        except Unavailable:
            return  # the link reports this to whoever asks

    async def follow(self, *, inner: bool = False) -> None:
        """Ask the server for changes and apply them.

        Raises:
            OlderError: the server has lost writes.
            Unavailable: the server is away.
        """
        keys = self.keys

        async def ask(client: Redis) -> Any:  # noqa: ANN401 - what the script answers
            names = [keys.sequence, keys.log, keys.leader]
            about = [self.number, self.token, _MOST_ENTRIES, keys.fabric_prefix]
            return await NEWS.call(client, names, about)

        kind, number, *rest = await self.link.call(ask, inner=inner)
        if kind == b"older":
            raise OlderError(f"it has {int(number)} writes, and had {self.number} before")
        if kind == b"gap":
            await self.load(inner=inner)
            return
        if int(number) < self.number:
            return  # a write of our own was applied meanwhile, and all before it was known
        token, epoch, holder, *fabrics = rest
        for name, whole, values in fabrics:
            self._take(name.decode(), whole=bool(whole), values=values)
        self._stand(number, token, epoch, holder)

    def _take(self, name: str, *, whole: bool, values: list[bytes | None]) -> None:
        fields = zip(values[::2], values[1::2], strict=True)
        known = ((field.decode(), value) for field, value in fields if field is not None)
        view = self.views.setdefault(name, View(name))
        if whole:
            view.replace((field, value) for field, value in known if value is not None)
            return
        for field, value in known:
            view.take(field, value)

    def advance(self, change: Change, number: int, token: str) -> None:
        """Apply a write of this replica, if all writes before it are known here."""
        if number != self.number + 1:
            return
        self.views.setdefault(change.fabric, View(change.fabric)).advance(change)
        self.number, self.token = number, token

    def _stand(self, number: bytes, token: bytes, epoch: bytes, holder: bytes) -> None:
        self.number, self.token = int(number), token.decode()
        self.leader = Leader(int(epoch), holder.decode())
        self.highest = max(self.highest, self.leader.epoch)

    async def load(self, *, inner: bool = False) -> None:
        """Read everything from the server.

        The position is read first, so that a write in the meantime is read twice and not missed.

        Raises:
            Unavailable: the server is away.
        """
        keys = self.keys
        names = [keys.sequence, keys.log, keys.leader, keys.fabrics]
        number, token, epoch, holder, fabrics = await self.link.call(
            lambda client: POSITION.call(client, names, []), inner=inner
        )
        for fabric in [name.decode() for name in fabrics]:
            fields = await self.link.call(
                lambda client, f=fabric: client.hgetall(keys.fabric_prefix + f),  # type: ignore[misc]
                inner=inner,
            )
            view = self.views.setdefault(fabric, View(fabric))
            view.replace((field.decode(), value) for field, value in fields.items())
        for gone in set(self.views) - {name.decode() for name in fabrics}:
            del self.views[gone]
        self._stand(number, token, epoch, holder)


_AT_ONCE = 1_000
"""Most entries of the log to read at once."""


class Follower:
    """Follows the log of writes from the mirror's position."""

    def __init__(
        self,
        mirror: Mirror,
        feed: Feed[str],
        writer: str,
        lease_moved: Callable[[], None],
    ) -> None:
        self._link = mirror.link
        self._log = mirror.keys.log
        self._mirror = mirror
        self._feed = feed
        self._writer = writer
        self._lease_moved = lease_moved
        self._last = mirror.number
        self._start = 0
        self._warming: asyncio.Task[None] | None = None
        self._task = asyncio.create_task(self._run(0), name="store log")

    async def begin_anew(self) -> None:
        """Start again from the mirror's present position, and announce all fabrics as changed."""
        await self._end()
        self._last = self._mirror.number
        self._task = asyncio.create_task(self._run(self._start), name="store log")
        self._tell_all()

    async def _end(self) -> None:
        self._start += 1  # the library may swallow a cancellation
        await end(self._task)

    def _tell_all(self) -> None:
        for fabric in self._mirror.views:
            self._feed.tell(fabric, fabric)
        self._lease_moved()

    async def _run(self, start: int) -> None:
        while start == self._start:
            await self._link.returned.wait()
            try:
                answer: Any = await self._link.blocking.xread(
                    {self._log: f"{self._last}-0"},
                    count=_AT_ONCE,
                    block=round(BLOCK_SECONDS * 1000),
                )
            except (RedisError, OSError, TimeoutError, Unavailable) as error:
                if start == self._start and self._link.up:
                    self._link.lost(error)
                await asyncio.sleep(0)
                continue
            if start == self._start:
                self._link.heard()
                self._take([entry for _, entries in answer for entry in entries])

    def _take(self, entries: list[tuple[bytes, dict[bytes, bytes]]]) -> None:
        if not entries:
            return
        if int(entries[0][0].partition(b"-")[0]) != self._last + 1:
            self._tell_all()  # some were dropped before they were read
        for identity, fields in entries:
            self._last = int(identity.partition(b"-")[0])
            self._hear(fields)
        if self._warming is None or self._warming.done():
            self._warming = asyncio.create_task(self._warm())

    def _hear(self, fields: dict[bytes, bytes]) -> None:
        note = note_of(fields)
        if note.kind == LEASE:
            self._lease_moved()
        elif note.kind in (INTENT, FACTS) and note.writer != self._writer:
            self._feed.tell(note.fabric, note.fabric, minor=note.kind == FACTS)

    async def _warm(self) -> None:
        if self._link.up and self._mirror.number < self._last:  # our own writes are known
            await self._mirror.fresh()

    async def close(self) -> None:
        """Stop following the log."""
        await self._end()
        if self._warming is not None:
            await end(self._warming)
