"""The connection to Redis: whether it can be had, and how it is had again.

After the first call that fails, or that is not answered in time, every further one is
refused at once: a slow server must not hang the callers of the API one after the other.
Meanwhile one task knocks, with growing, jittered pauses. When the server answers again,
those who have to look at what it has (``on_return``) do so before anybody else may use it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import structlog
from redis.asyncio import Redis
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,  # noqa: A004 - the library's
    MasterDownError,
    ReadOnlyError,
    RedisError,
    TimeoutError,  # noqa: A004 - the library's
)

from heddle_controller.reconcile.errors import Unavailable

log = structlog.stdlib.get_logger(__name__)

Answer = TypeVar("Answer")

FIRST_PAUSE, LAST_PAUSE = 0.05, 1.0
"""Seconds between knocks."""
AWAY = (
    AuthenticationError,
    BusyLoadingError,
    ConnectionError,
    MasterDownError,
    ReadOnlyError,
    TimeoutError,
    OSError,
    asyncio.TimeoutError,
)


class Link:
    """One server, or whichever is the master now."""

    def __init__(self, client: Redis, name: str, timeout: float) -> None:
        """A link that is up until a call fails.

        Args:
            client: Makes connections as they are needed.
            name: Of the server, for people; without a password.
            timeout: Seconds within which the server has to answer a call.
        """
        self.client = client
        self.name = name
        self.timeout = timeout
        self.on_return: list[Callable[[], Awaitable[None]]] = []
        """Called, in order, when the server is there again, before others may use it."""
        self.returned = asyncio.Event()
        """Set while the server can be used."""
        self.returned.set()
        self.why = ""
        self.closed = False
        self.ending = False
        """Set before ``closed``: what was begun is finished, nobody waits any longer."""
        self.losses = 0
        self._heard = time.monotonic()
        self._knocking: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        """Whether calls are let through."""
        return self.returned.is_set() and not self.closed

    def silent_for(self) -> float:
        """Seconds since the server was last heard, while it is away; otherwise 0."""
        return 0.0 if self.up else max(time.monotonic() - self._heard, 1e-3)

    async def call(
        self, make: Callable[[Redis], Awaitable[Answer]], *, inner: bool = False
    ) -> Answer:
        """What ``make`` answers, within the time.

        Args:
            make: Speaks to the server.
            inner: Whether to try even while the server counts as away.

        Raises:
            Unavailable: the server is away, or did not answer in time, and then it may
                have done what it was asked or not.
        """
        self.check(inner=inner)
        try:
            async with asyncio.timeout(2 * self.timeout):
                answer = await make(self.client)
        except AWAY as error:
            self.lost(error)
            raise self.refusal() from error
        except RedisError as error:
            raise Unavailable(f"store {self.name}: {error}") from error
        self.heard()
        return answer

    def check(self, *, inner: bool = False) -> None:
        """Nothing while the server can be used. Raises ``Unavailable``."""
        if self.closed:
            raise Unavailable(f"store {self.name}: closed, the controller is stopping")
        if not inner and not self.returned.is_set():
            raise self.refusal()

    def refusal(self) -> Unavailable:
        """What callers are told while the server is away."""
        return Unavailable(f"store {self.name} is away: {self.why}", LAST_PAUSE)

    def heard(self) -> None:
        """The server answered."""
        self._heard = time.monotonic()

    def lost(self, error: BaseException) -> None:
        """A call failed: refuse the next ones, and knock."""
        if self.closed:
            return
        self.why = " ".join(str(error).split()) or "no answer in time"
        if self.returned.is_set():
            log.error("store lost", store=self.name, why=self.why)
            self.losses += 1
            self.returned.clear()
        if self._knocking is None or self._knocking.done():
            self._knocking = asyncio.create_task(self._knock(), name="store knock")

    async def _knock(self) -> None:
        pause = FIRST_PAUSE
        while not self.closed:
            # Jitter, so that all replicas do not come at the same moment.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - not a secret
            pause = min(2 * pause, LAST_PAUSE)
            try:
                await self.client.connection_pool.disconnect(inuse_connections=False)
                await self.call(_usable, inner=True)
                for look in self.on_return:
                    await look()
            except Unavailable as error:
                self.why = str(error.__cause__ or error)
            except Exception as fault:
                log.exception("store cannot be taken up again", store=self.name)
                self.why = str(fault)
            else:
                log.warning("store is back", store=self.name, away_seconds=self.silent_for())
                self.returned.set()
                return

    async def close(self) -> None:
        """No more calls."""
        self.ending = self.closed = True
        if self._knocking is not None:
            self._knocking.cancel()
            with suppress(asyncio.CancelledError):
                await self._knocking
        await self.client.aclose()


async def _usable(client: Redis) -> None:
    """Nothing if the server can be written. Raises what says that it cannot."""
    role = await client.execute_command("ROLE")  # type: ignore[no-untyped-call]
    if role[0] != b"master":
        raise ReadOnlyError(f"is a {role[0].decode()} now")
