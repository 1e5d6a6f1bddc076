"""Links that somebody sets by hand: tests, the emulator, a switch that exists in memory.

At most one observation a link waits for the consumer, the newest: state is what counts, and a link
that flaps while nobody looks cannot fill the memory.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from heddle_agent.fib import Link, NextHop
from heddle_agent.table import LinkObservation


class ManualLinks:
    """The links of one switch, all up at first. Belongs to one event loop."""

    def __init__(
        self, switch: str, next_hops: Iterable[NextHop], *, clock: Callable[[], float] = time.time
    ) -> None:
        self.next_hops = tuple(next_hops)
        self._switch = switch
        self._clock = clock
        self._sequence = 0
        self._states = {
            link: LinkObservation(link, True, clock(), 0, "start")
            for link in (Link.between(switch, hop.node, hop.key) for hop in self.next_hops)
        }
        self._waiting: dict[Link, LinkObservation] = {}
        self._more = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()

    def up(self, node: str, key: str = "0", *, reason: str = "carrier") -> None:
        """The link to a neighbour carries again; ValueError if there is no such link."""
        self._change(node, key, up=True, reason=reason)

    def down(self, node: str, key: str = "0", *, reason: str = "carrier") -> None:
        """The link to a neighbour carries nothing; ValueError if there is no such link."""
        self._change(node, key, up=False, reason=reason)

    async def settled(self) -> None:
        """Wait until the agent has dealt with every change so far; it must be running."""
        await self._settled.wait()

    def current(self) -> Sequence[LinkObservation]:
        """All links as they are now."""
        return list(self._states.values())

    async def changes(self) -> AsyncGenerator[Sequence[LinkObservation], None]:
        """Changes as they come, the newest of each link."""
        while True:
            await self._more.wait()
            self._more.clear()
            step, self._waiting = list(self._waiting.values()), {}
            yield step
            if not self._waiting:
                self._settled.set()

    def _change(self, node: str, key: str, *, up: bool, reason: str) -> None:
        link = Link.between(self._switch, node, key)
        if link not in self._states:
            raise ValueError(f"{self._switch} has no link to {node} key {key}")
        if self._states[link].up == up:
            return
        self._sequence += 1
        observation = LinkObservation(link, up, self._clock(), self._sequence, reason)
        self._states[link] = self._waiting[link] = observation
        self._settled.clear()
        self._more.set()
