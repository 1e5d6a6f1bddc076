"""A network for peer notices: datagrams take virtual time, and it can be cut between any two.

While it is ``live`` it delivers at once, as agents get to know each other. After that only
what agents say because of something that happened (within ``speaking``) is carried: what
they say by themselves, by this machine's clock, belongs to no moment of virtual time.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from contextlib import contextmanager

from heddle_agent.peers import MemoryNetwork


class TimedNetwork(MemoryNetwork):
    """A network in which ``delay`` seconds pass from one agent to the next."""

    def __init__(self, delay: float) -> None:
        super().__init__()
        self.delay = delay
        self.now = 0.0
        self.live = True
        self.deaf: set[str] = set()
        """Who takes nothing in, for as long as it hangs."""
        self.cut: set[frozenset[str]] = set()
        """Pairs that cannot reach each other."""
        self._speaking = False
        self._due: list[tuple[float, int, str, str, bytes]] = []
        self._number = 0

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """What agents send meanwhile, they send because of what happens at this moment."""
        self._speaking = True
        try:
            yield
        finally:
            self._speaking = False

    def put(self, source: str, target: str, datagram: bytes) -> None:
        """Have a datagram arrive a while later, or never."""
        if frozenset((source, target)) in self.cut or source in self.deaf:
            return
        if self.live:
            super().put(source, target, datagram)
        elif self._speaking:
            self._number += 1
            due = (self.now + self.delay, self._number, source, target, datagram)
            heapq.heappush(self._due, due)

    @property
    def next_due(self) -> float:
        """When the next datagram arrives, virtual seconds; infinite if none is under way."""
        return self._due[0][0] if self._due else float("inf")

    def deliver(self) -> int:
        """Hand over all that arrive at ``now``; returns how many took something in."""
        count = 0
        with self.speaking():
            while self._due and self._due[0][0] <= self.now:
                _, _, source, target, datagram = heapq.heappop(self._due)
                receive = self._open.get(target)
                if receive is not None and target not in self.deaf:
                    receive(datagram, source)
                    count += 1
        return count
