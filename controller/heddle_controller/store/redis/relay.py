"""Post between replicas over Redis' channels: nothing of it is kept, so nothing has to be trimmed.

A reader that falls so far behind that the server gives up on it is cut off, and that is
how losses are known: whoever subscribes anew is told that letters may have been lost. So
is one that has heard nothing for some seconds, since a leader calls several times in
each: it may be subscribed to a server that is the master no more.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.exceptions import RedisError

from heddle_controller.reconcile.waiting import end_if_asked
from heddle_controller.state.errors import Unavailable
from heddle_controller.store.redis.address import Files, connect, find, parse_address
from heddle_controller.store.redis.link import Link

log = structlog.stdlib.get_logger(__name__)

SILENCE_SECONDS = 3.0
"""Without any letter, until we subscribe anew."""
PAUSE_SECONDS = 0.2
"""Between two attempts to subscribe, about."""


def open_relay(url: str, link: Link, files: Files | None = None) -> RedisRelay:
    """Post through the Redis at ``url``, to which ``link`` is the store's connection.

    Raises:
        ValueError: the address is none.
    """
    address, files = parse_address(url), files or Files()

    async def dial() -> Redis:
        """A client of the server that ``link`` writes to: in a cluster others count for nothing."""
        found = await find(address, files, link.timeout)
        return connect(found, files, link.timeout, 2 * SILENCE_SECONDS)

    return RedisRelay(link, dial, address.name)


class RedisRelay:
    """Implements ``Relay``."""

    def __init__(self, link: Link, dial: Callable[[], Awaitable[Redis]], name: str) -> None:
        """A relay.

        Args:
            link: For sending.
            dial: Makes a client for reading alone, whose calls may wait in the server.
            name: Part of every channel's name.
        """
        self._link = link
        self._dial = dial
        self._name = name
        self._anew = asyncio.Event()
        link.on_return.append(self._subscribe_anew)

    async def send(self, box: str, letter: bytes) -> int:
        """See ``Relay``."""
        channel = self._channel(box)
        return int(await self._link.call(lambda client: client.publish(channel, letter)))

    async def letters(self, *boxes: str) -> AsyncIterator[bytes | None]:
        """See ``Relay``."""
        channels = [self._channel(box) for box in boxes]
        while not self._link.closed:
            try:
                async with await self._dial() as reader, reader.pubsub() as post:
                    self._anew.clear()
                    await self._subscribed(post, channels)
                    yield None
                    async for letter in self._read(post):
                        end_if_asked()
                        yield letter
            except (RedisError, OSError, TimeoutError, Unavailable) as error:
                log.debug("post not read", store=self._link.name, why=str(error))
            end_if_asked()  # the library may take a cancellation for a letter, or for none
            await asyncio.sleep(PAUSE_SECONDS * random.uniform(0.5, 1.0))  # noqa: S311 - jitter

    async def _subscribed(self, post: Any, channels: list[str]) -> None:  # noqa: ANN401 - has no types
        """Return when the server sends us what comes to the channels."""
        async with asyncio.timeout(2 * self._link.timeout):
            await post.subscribe(*channels)
            for _ in channels:
                await post.get_message(timeout=None)

    async def _read(self, post: Any) -> AsyncIterator[bytes]:  # noqa: ANN401 - likewise
        """Letters, until there are none for too long."""
        while not self._anew.is_set() and not self._link.closed:
            message = await post.get_message(timeout=SILENCE_SECONDS)
            if message is None:
                return
            if message["type"] == "message":
                yield message["data"]

    async def _subscribe_anew(self) -> None:
        """The server was away: another may be the master now."""
        self._anew.set()

    async def close(self) -> None:
        """Read no more."""
        self._anew.set()

    def _channel(self, box: str) -> str:
        return f"{self._name}:post:{box}"
