"""Whether routing uses a link again after it came back.

A link that came back carries packets at once. But the neighbour drops what it has no route for
until routing has found it again, which may take seconds. So a link that routing used is believed up
only when routing uses it again, at both ends: the agent of each end checks its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from heddle_agent.fib import Link
from heddle_agent.watch import rtnetlink

ROUTING_LOOK_SECONDS = 0.05
"""Interval of checks whether routing is back."""
LONGEST_SECONDS = 60.0
"""After this time routing has probably been removed from the link, which then counts as up without
it."""

IsRouted = Callable[[int], bool]
"""Whether routes beyond the neighbour use the interface with this index; OSError if unknown."""


class Routing:
    """Which links routing has ever used, learned link by link because asking takes time."""

    def __init__(self, links: Iterable[Link], is_routed: IsRouted = rtnetlink.is_routed) -> None:
        self._used: set[Link] = set()
        self._unknown = deque(links)
        self._is_routed = is_routed

    def look(self, indexes: Mapping[Link, int]) -> list[Link]:
        """Ask about links until one is not used, and return those newly known to be used.

        ``indexes`` holds the interface index of every link that is up.
        """
        learned: list[Link] = []
        for _ in range(len(self._unknown)):
            link = self._unknown.popleft()
            if link in indexes and self._tells(indexes[link], otherwise=False):
                self._used.add(link)
                learned.append(link)
                continue
            self._unknown.append(link)
            if link in indexes:
                break
        return learned

    def lacks(self, link: Link, index: int) -> bool:
        """Whether routing once used a link and does not use it now."""
        return link in self._used and not self._tells(index, otherwise=True)

    def _tells(self, index: int, *, otherwise: bool) -> bool:
        try:
            return self._is_routed(index)
        except OSError:
            return otherwise
