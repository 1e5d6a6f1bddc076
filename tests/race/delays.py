"""How long things take, drawn anew for each, so that anything may overtake anything.

Most take a moment, some as long as a plan, some longer than several plans. Only this mixture
produces orders that no single scale would.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable
from random import Random
from typing import Any

from heddle_agent.peers.network import Receive

SCALES = (0.0, 1e-4, 1e-3, 5e-3, 20e-3, 80e-3)
"""Upper limits of a draw, in seconds."""


class Delays:
    """Draws delays from a random generator."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def draw(self, most: float = SCALES[-1]) -> float:
        """Return a delay in seconds, at most ``most``."""
        scale = self._random.choice(SCALES)
        return self._random.random() * min(scale, most)

    async def pass_(self, most: float = SCALES[-1]) -> None:
        """Let a drawn delay pass."""
        await asyncio.sleep(self.draw(most))


class SlowStore:
    """A store that takes a while before each call, and again before it returns."""

    def __init__(self, store: Any, delays: Delays) -> None:
        self._store = store
        self._delays = delays

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if not inspect.iscoroutinefunction(method) or name == "leadership_lost":
            return method
        return functools.partial(self._call, method)

    async def _call(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        await self._delays.pass_(5e-3)
        answer = await method(*args, **kwargs)
        try:
            await self._delays.pass_(5e-3)
        except asyncio.CancelledError:
            if method.__name__ == "acquire_leadership":  # the caller never got the answer,
                await self._store.release_leadership(answer)  # so it must not keep the lead
            raise
        return answer


class Post:
    """A management network for notices. Each datagram takes its own time, and none is lost."""

    def __init__(self, delays: Delays) -> None:
        self.under_way = 0
        self._delays = delays
        self._open: dict[str, Receive] = {}

    def attach(self, address: str) -> Box:
        """Return the place of an address in the network."""
        return Box(self, address)

    def listen(self, address: str, receive: Receive | None) -> None:
        """Deliver what is sent to an address to ``receive``; None ends that."""
        if receive is None:
            self._open.pop(address, None)
        else:
            self._open[address] = receive

    def put(self, source: str, target: str, datagram: bytes) -> None:
        """Deliver a datagram after a delay."""
        self.under_way += 1
        loop = asyncio.get_running_loop()
        loop.call_later(self._delays.draw(), self._deliver, source, target, datagram)

    def _deliver(self, source: str, target: str, datagram: bytes) -> None:
        self.under_way -= 1
        if target in self._open:
            self._open[target](datagram, source)


class Box:
    """One agent's place in the network."""

    def __init__(self, post: Post, address: str) -> None:
        self.address = address
        self._post = post

    def open(self, receive: Receive) -> None:
        """From now on, give each datagram that arrives to ``receive``."""
        self._post.listen(self.address, receive)

    def send(self, address: str, datagram: bytes) -> bool:
        """Send a datagram to an address."""
        self._post.put(self.address, address, datagram)
        return True

    def close(self) -> None:
        """Take no more datagrams."""
        self._post.listen(self.address, None)
