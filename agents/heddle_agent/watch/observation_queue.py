"""Passes observations of links to the agent.

At most one observation per link waits for the consumer, the newest. Only the state matters, and a
link that flaps meanwhile cannot fill the memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from heddle_agent.fib import Link
from heddle_agent.table import LinkObservation


class ObservationQueue:
    """The last seen states of one switch's links. Use it in one event loop only."""

    def __init__(self, links: Iterable[Link], clock: Callable[[], float] = time.time) -> None:
        """Take ``clock``, which dates observations in Unix seconds and measures nothing."""
        self._clock = clock
        self._sequence = 0
        self._states = {link: LinkObservation(link, True, clock(), 0, "start") for link in links}
        self._waiting: dict[Link, LinkObservation] = {}
        self._more = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    def __contains__(self, link: Link) -> bool:
        return link in self._states

    def __getitem__(self, link: Link) -> LinkObservation:
        return self._states[link]

    def current(self) -> Sequence[LinkObservation]:
        """Return the current state of all links."""
        return list(self._states.values())

    def found(self, link: Link, *, up: bool, reason: str = "start") -> None:
        """Set the state in which a link was found at the start; this is not a change."""
        self._states[link] = LinkObservation(link, up, self._clock(), 0, reason)

    def put(
        self, link: Link, *, up: bool, reason: str, loss: float = 0.0, rate: float = 0.0
    ) -> None:
        """Add a changed state of a link."""
        self._sequence += 1
        observation = LinkObservation(link, up, self._clock(), self._sequence, reason, loss, rate)
        self._states[link] = self._waiting[link] = observation
        self._settled.clear()
        self._more.set()

    async def settled(self) -> None:
        """Wait until the consumer has handled every change so far; there must be a consumer."""
        await self._settled.wait()

    async def changes(self) -> AsyncGenerator[Sequence[LinkObservation], None]:
        """Yield changes as they come, the newest of each link, to a single consumer."""
        while True:
            await self._more.wait()
            self._more.clear()
            step, self._waiting = list(self._waiting.values()), {}
            yield step
            if not self._waiting:
                self._settled.set()
