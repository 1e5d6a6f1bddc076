"""Observations on their way from whoever makes them to the agent.

At most one observation a link waits for the consumer, the newest: state is what counts, and a link
that flaps while nobody looks cannot fill the memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from heddle_agent.fib import Link
from heddle_agent.table import LinkObservation


class ObservationQueue:
    """The links of one switch as they were last seen. Belongs to one event loop."""

    def __init__(self, links: Iterable[Link], clock: Callable[[], float] = time.time) -> None:
        """``clock`` dates observations, in seconds since 1970; nothing is measured by it."""
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
        """All links as they are now."""
        return list(self._states.values())

    def found(self, link: Link, *, up: bool, reason: str = "start") -> None:
        """How a link was found at the start: no change."""
        self._states[link] = LinkObservation(link, up, self._clock(), 0, reason)

    def put(
        self, link: Link, *, up: bool, reason: str, loss: float = 0.0, rate: float = 0.0
    ) -> None:
        """A link was seen otherwise than before."""
        self._sequence += 1
        observation = LinkObservation(link, up, self._clock(), self._sequence, reason, loss, rate)
        self._states[link] = self._waiting[link] = observation
        self._settled.clear()
        self._more.set()

    async def settled(self) -> None:
        """Wait until the consumer has dealt with every change so far; there must be one."""
        await self._settled.wait()

    async def changes(self) -> AsyncGenerator[Sequence[LinkObservation], None]:
        """Changes as they come, the newest of each link, for one consumer."""
        while True:
            await self._more.wait()
            self._more.clear()
            step, self._waiting = list(self._waiting.values()), {}
            yield step
            if not self._waiting:
                self._settled.set()
