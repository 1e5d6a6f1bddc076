"""What is still to happen in a fluid drill, by virtual time.

Things of one moment happen in the order they were put down, save pushes, which come last: a
link that is lost in the moment that a push arrives was lost first.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

Deed = Callable[[], Awaitable[None]]
SAME = 1e-9
"""Seconds; what is due within is of one moment."""
PUSHES = 1
"""Rank of what comes last in its moment."""


@dataclass(order=True, slots=True)
class _Item:
    at: float
    rank: int
    number: int
    deed: Deed = field(compare=False)


@dataclass(slots=True)
class Agenda:
    """Deeds and when they are due."""

    _items: list[_Item] = field(default_factory=list)
    _number: int = 0

    def put(self, at: float, deed: Deed, rank: int = 0) -> None:
        """Have something happen at a moment, in seconds."""
        self._number += 1
        heapq.heappush(self._items, _Item(at, rank, self._number, deed))

    @property
    def next(self) -> float:
        """When the next deed is due; infinite if none is."""
        return self._items[0].at if self._items else float("inf")

    @property
    def pushes(self) -> int:
        """How many deeds are still due that come last."""
        return sum(item.rank == PUSHES for item in self._items)

    def due(self, now: float) -> list[Deed]:
        """All that is due by a moment, in order; from now on the caller's."""
        found = []
        while self._items and self._items[0].at <= now + SAME:
            found.append(heapq.heappop(self._items).deed)
        return found
