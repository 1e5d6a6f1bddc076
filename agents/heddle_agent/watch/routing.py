"""Whether routing has come back to a link that came back.

A link that came back carries packets at once, but a neighbour throws away what it has no route for
until both have found each other again, which may take routing seconds. So a link that routing used
is believed up no sooner than routing uses it again, at both ends, as each agent looks at its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping

from heddle_agent.fib import Link
from heddle_agent.watch import rtnetlink

ROUTING_LOOK_SECONDS = 0.05
"""How often is looked whether routing is back."""
LONGEST_SECONDS = 60.0
"""After so long routing may well have been taken off the link: it is believed without."""

IsRouted = Callable[[int], bool]
"""Whether routes beyond the neighbour go by an interface; OSError where nobody can tell."""


class Routing:
    """Which links routing has ever used; learned link by link, as asking takes time."""

    def __init__(self, links: Iterable[Link], is_routed: IsRouted = rtnetlink.is_routed) -> None:
        self._used: set[Link] = set()
        self._unknown = deque(links)
        self._is_routed = is_routed

    def look(self, indexes: Mapping[Link, int]) -> list[Link]:
        """Look at links that are up, and the interfaces of these, until one is not used.

        Returns those that routing is now known to use, each once.
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
        """Whether routing used a link, and does not at present."""
        return link in self._used and not self._tells(index, otherwise=True)

    def _tells(self, index: int, *, otherwise: bool) -> bool:
        try:
            return self._is_routed(index)
        except OSError:
            return otherwise
