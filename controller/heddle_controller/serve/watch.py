"""Watch streams: who watches learns that something changed, and reads what is there now.

store and observations -> Changes.run -> an ``asyncio.Event`` of each stream. There
is no queue of events: a stream that is slow, because its client is, finds several
changes merged into one, and holds no more memory than one answer. A stream rests at
least ``_PACE`` seconds, and ``_REST`` times as long as it took to read and send (but
not beyond ``_LONGEST``): a storm of writes, or a long list, costs other calls little.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from heddle_controller.reconcile.observations import Observations
from heddle_controller.serve.errors import Refusal, unavailable
from heddle_controller.store.store import Store

_PACE = 0.02
"""Least time between two reads of one stream, in seconds."""
_REST = 4.0
_LONGEST = 0.5
"""Most time between two reads of one stream while there is something to read, in seconds."""


def shutting_down() -> Refusal:
    """How streams end when the controller does."""
    message = "the controller is shutting down: connect again, to another replica if there is one"
    return unavailable("SHUTTING_DOWN", message, retry_seconds=1.0)


class Changes:
    """Spreads change notices of the store and of agents over the streams that watch."""

    def __init__(self, store: Store, observations: Observations) -> None:
        self._store = store
        self._observations = observations
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._closed = False

    async def run(self) -> None:
        """Take notices until the store is closed; wait while it cannot be reached."""
        seen = asyncio.create_task(self._follow_agents())
        try:
            await self._store.follow(self._notice)
        finally:
            seen.cancel()

    async def _follow_agents(self) -> None:
        async for fabric in self._observations.changes():
            await self._notice(fabric)

    async def _notice(self, fabric: str) -> None:
        for event in self._watchers.get(fabric, ()):
            event.set()

    def close(self) -> None:
        """End every stream, present and future, with UNAVAILABLE."""
        self._closed = True
        for events in self._watchers.values():
            for event in events:
                event.set()

    async def watch(self, fabric: str) -> AsyncGenerator[None, None]:
        """Yields at once, and then whenever the fabric may have changed since.

        Raises:
            Refusal: UNAVAILABLE when the controller shuts down.
        """
        event = asyncio.Event()
        event.set()
        events = self._watchers.setdefault(fabric, set())
        events.add(event)
        try:
            while True:
                await event.wait()
                if self._closed:
                    raise shutting_down()
                event.clear()
                began = time.monotonic()
                yield
                spent = time.monotonic() - began
                await asyncio.sleep(min(max(_PACE, _REST * spent), _LONGEST))
        finally:
            events.discard(event)
            if not events:
                self._watchers.pop(fabric, None)
