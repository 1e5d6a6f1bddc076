"""What a database has to do for a store: apply changes, and tell what there is.

An applier knows no rule of intent. It compares the guards of a change, and makes it whole
or not at all.

Who watches for changes, and what each has still to hear.

A watcher holds a set of names, not a queue: however slow it is, it is owed no more
than one mention of each fabric.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import Protocol

from heddle_controller.reconcile.ports import AuditStore, Leadership
from heddle_controller.reconcile.replicas import Freshness, Succession
from heddle_controller.state.view import Ask, Change, Outcome, View


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


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much is kept of what grows."""

    requests: int = 100_000
    """Answers remembered by request id."""
    audit: int = 100_000
    """Records of the audit trail."""
    writes: int = 10_000
    """Names of what the newest writes changed, for replicas to follow."""


class Applier(AuditStore, Leadership, Succession, Freshness, Protocol):
    """Of one database; every method raises ``Unavailable`` where it cannot be had."""

    name: str
    """Of the database, for people."""
    feed: Feed
    """Told of every change that was made, whoever made it."""

    @property
    def epoch(self) -> int:
        """The newest that is known here."""
        ...

    def check(self) -> None:
        """Nothing while the database can be had. Raises ``Unavailable``."""
        ...

    async def fresh(self) -> None:
        """Views are of now from here on; or as they were known last, where that is what is left."""
        ...

    def view(self, fabric: str) -> View:
        """A fabric as it is known here; one without fields where there is none."""
        ...

    def fabrics(self) -> Iterable[str]:
        """Names of those that are there, in order."""
        ...

    async def apply(self, change: Change, ask: Ask) -> Outcome:
        """Make a change, if its guards hold, its epoch is the newest and its request is new.

        Views have it, and watchers were told, when this returns ``done``.
        """
        ...

    async def remembered(self, request: str) -> bytes | None:
        """What is kept under the id of a request; None if it is new. See ``Ask.remembered``."""
        ...

    async def blob(self, identity: str) -> bytes | None:
        """A large value; None if it is there no more. Raises ``Unusable`` where it is damaged."""
        ...

    async def close(self) -> None:
        """Finish writes under way, and let go of the database."""
        ...
