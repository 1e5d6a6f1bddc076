"""Links that are set by hand, for tests, the emulator and switches in memory."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence

from heddle_agent.fib import Link, NextHop
from heddle_agent.table import LinkObservation
from heddle_agent.watch.observation_queue import ObservationQueue


class ManualLinks:
    """The links of one switch, all up at first. Use it in one event loop only."""

    def __init__(
        self, switch: str, next_hops: Iterable[NextHop], *, clock: Callable[[], float] = time.time
    ) -> None:
        self.next_hops = tuple(next_hops)
        self._switch = switch
        links = (Link.between(switch, hop.node, hop.key) for hop in self.next_hops)
        self._board = ObservationQueue(links, clock)

    def up(self, node: str, key: str = "0", *, reason: str = "carrier") -> None:
        """Set the link to a neighbour up; ValueError if there is no such link."""
        self._change(node, key, up=True, reason=reason)

    def down(self, node: str, key: str = "0", *, reason: str = "carrier") -> None:
        """Set the link to a neighbour down; ValueError if there is no such link."""
        self._change(node, key, up=False, reason=reason)

    async def settled(self) -> None:
        """Wait until the agent, which must be running, has handled every change so far."""
        await self._board.settled()

    def current(self) -> Sequence[LinkObservation]:
        """Return the current state of all links."""
        return self._board.current()

    def changes(self) -> AsyncGenerator[Sequence[LinkObservation], None]:
        """Yield changes as they come, the newest of each link."""
        return self._board.changes()

    def _change(self, node: str, key: str, *, up: bool, reason: str) -> None:
        link = Link.between(self._switch, node, key)
        if link not in self._board:
            raise ValueError(f"{self._switch} has no link to {node} key {key}")
        if self._board[link].up != up:
            self._board.put(link, up=up, reason=reason)
