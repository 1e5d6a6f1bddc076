"""Who watches for changes, and what each has still to hear.

A watcher holds a set of names, not a queue: however slow it is, it is owed no more
than one mention of each fabric.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator


class Watcher:
    """One watcher's pending names."""

    def __init__(self, *, facts: bool) -> None:
        self.facts = facts
        self._pending: dict[str, None] = {}
        self._wake = asyncio.Event()
        self._closed = False

    def tell(self, name: str) -> None:
        """There is something to read of this fabric."""
        self._pending[name] = None
        self._wake.set()

    def close(self) -> None:
        """There will be nothing more."""
        self._closed = True
        self._wake.set()

    async def names(self) -> AsyncIterator[str]:
        """Names, oldest first, until closed."""
        while not self._closed:
            await self._wake.wait()
            if self._pending and not self._closed:
                name = next(iter(self._pending))
                del self._pending[name]
                yield name
            elif not self._closed:
                self._wake.clear()


class Feed:
    """All watchers of one store; used from the event loop only."""

    def __init__(self) -> None:
        self._watchers: set[Watcher] = set()
        self._closed = False

    def add(self, watcher: Watcher) -> None:
        """Tell this one too, from now on."""
        self._watchers.add(watcher)
        if self._closed:
            watcher.close()

    def remove(self, watcher: Watcher) -> None:
        """Tell this one no more."""
        self._watchers.discard(watcher)

    def tell(self, name: str, *, facts: bool) -> None:
        """A fabric's intent changed, or only its facts."""
        for watcher in self._watchers:
            if watcher.facts or not facts:
                watcher.tell(name)

    def close(self) -> None:
        """End every watch, also those that have yet to begin."""
        self._closed = True
        for watcher in self._watchers:
            watcher.close()
