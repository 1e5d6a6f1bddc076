"""Which links are down, according to several switches.

A link is down as long as either end says so. If a fibre fails in one direction, only one end sees
it, but the link is useless to both.
"""

from __future__ import annotations

from collections.abc import Collection

from heddle_agent.fib import Link


class LinkView:
    """Which links are down, and which switches say so."""

    def __init__(self) -> None:
        self._said: dict[str, frozenset[Link]] = {}
        self._by: dict[Link, set[str]] = {}

    @property
    def down(self) -> frozenset[Link]:
        """All links that at least one switch says are down."""
        return frozenset(self._by)

    def said(self, switch: str) -> frozenset[Link]:
        """Return the links that a switch says are down."""
        return self._said.get(switch, frozenset())

    def report(self, switch: str, down: Collection[Link]) -> dict[Link, bool]:
        """Record that a switch says exactly these are down; return changed links, True is up."""
        before, now = self._said.get(switch, frozenset()), frozenset(down)
        changes: dict[Link, bool] = {}
        for link in before - now:
            told = self._by[link]
            told.discard(switch)
            if not told:
                del self._by[link]
                changes[link] = True
        for link in now - before:
            told = self._by.setdefault(link, set())
            if not told:
                changes[link] = False
            told.add(switch)
        if now:
            self._said[switch] = now
        else:
            self._said.pop(switch, None)
        return changes
