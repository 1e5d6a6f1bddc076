"""Hears of every write: wakes who watches, and keeps the mirror warm.

What the log tells is that something of a fabric changed, and whether it is intent or
facts. Our own writes are told of when they are made, so they are passed over here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from redis.exceptions import RedisError

from heddle_controller.reconcile.waiting import end
from heddle_controller.state.change import FACTS, INTENT
from heddle_controller.state.errors import Unavailable
from heddle_controller.store.feed import Feed
from heddle_controller.store.redis.link import BLOCK_SECONDS
from heddle_controller.store.redis.mirror import Mirror
from heddle_controller.store.redis.scripts import LEASE, note_of

_AT_ONCE = 1_000


class Follower:
    """Reads the log from where the mirror stands."""

    def __init__(
        self,
        mirror: Mirror,
        feed: Feed,
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
        """Begins again from where the mirror stands now; everything may have changed."""
        await self._end()
        self._last = self._mirror.number
        self._task = asyncio.create_task(self._run(self._start), name="store log")
        self._tell_all()

    async def _end(self) -> None:
        self._start += 1  # the library may take a cancellation for an answer
        await end(self._task)

    def _tell_all(self) -> None:
        for fabric in self._mirror.views:
            self._feed.tell(fabric, facts=False)
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
            self._feed.tell(note.fabric, facts=note.kind == FACTS)

    async def _warm(self) -> None:
        if self._link.up and self._mirror.number < self._last:  # of our own writes all is known
            await self._mirror.fresh()

    async def close(self) -> None:
        """Hear no more."""
        await self._end()
        if self._warming is not None:
            await end(self._warming)
