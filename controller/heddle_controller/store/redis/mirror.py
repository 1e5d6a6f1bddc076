"""What this replica knows of everything in the store, kept up to date.

A read asks the server one thing: what changed since the write that I know of? The answer
is the present value of every field that did, taken in one step, so that what is read is
of one moment and of now. Readers that come together share one question. While the server
is away the mirror is what reads are answered from.

The position is a number and the token of the write that got it. A server that has fewer
writes than we know of, or another one in that place, is not the one we knew: it came
back older (``OlderError``), and has lost what clients were told was kept.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis

from heddle_controller.reconcile.replicas import Leader
from heddle_controller.state.change import Change
from heddle_controller.state.errors import Unavailable
from heddle_controller.state.view import View
from heddle_controller.store.redis.link import Link
from heddle_controller.store.redis.scripts import NEWS, POSITION, Keys

_MOST_ENTRIES = 2_000
"""Writes told of one by one; beyond, everything is read again."""


class OlderError(Exception):
    """The server does not have a write that it once had."""


class Mirror:
    """All fabrics, as of ``number``."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys
        self.number = 0
        """Of the newest write that is known here."""
        self.token = ""
        self.leader = Leader()
        self.highest = 0
        """Epoch ever seen: a server that came back older must not give it out again."""
        self.views: dict[str, View] = {}
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def fresh(self) -> None:
        """All that was written before this call is here; or the server is away.

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
            return  # the link says so, to whoever asks

    async def follow(self, *, inner: bool = False) -> None:
        """Take in what changed.

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
            return  # a write of our own was taken in meanwhile, and all before it was known
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
        """Take in a write of our own, if nothing that is not known here came before it."""
        if number != self.number + 1:
            return
        self.views.setdefault(change.fabric, View(change.fabric)).advance(change)
        self.number, self.token = number, token

    def _stand(self, number: bytes, token: bytes, epoch: bytes, holder: bytes) -> None:
        self.number, self.token = int(number), token.decode()
        self.leader = Leader(int(epoch), holder.decode())
        self.highest = max(self.highest, self.leader.epoch)

    async def load(self, *, inner: bool = False) -> None:
        """Read everything.

        The position is taken first: what is written meanwhile is read twice, not missed.

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
