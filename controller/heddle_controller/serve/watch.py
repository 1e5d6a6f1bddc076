"""Watch streams: a watcher is told that something changed, and reads the state of now.

store and observations -> Changes.run -> an ``asyncio.Event`` of each stream

There is no queue of events. A stream with a slow client finds several changes merged into one, and
needs memory for one answer only. After each read a stream rests for at least ``_PACE`` seconds, or
for ``_REST`` times as long as it took to read and send, but at most ``_LONGEST`` seconds. So a
storm of writes, or a long list, takes little time from other calls.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from heddle_controller.reconcile.observations import Observations
from heddle_controller.serve.errors import Refusal, unavailable
from heddle_controller.store.store import Store

_PACE = 0.02
"""Least rest between two reads of one stream, in seconds."""
_REST = 4.0
"""A stream rests so many times as long as its last read and send took."""
_LONGEST = 0.5
"""Longest rest between two reads of one stream, in seconds."""


def shutting_down() -> Refusal:
    """Return the refusal that ends streams when the controller shuts down."""
    message = "the controller is shutting down: connect again, to another replica if there is one"
    return unavailable("SHUTTING_DOWN", message, retry_seconds=1.0)


class Changes:
    """Passes notices of changes, from the store and from agents, on to the watching streams."""

    def __init__(self, store: Store, observations: Observations) -> None:
        self._store = store
        self._observations = observations
        self._watchers: dict[str, set[asyncio.Event]] = {}
        self._later: dict[str, asyncio.TimerHandle] = {}
        self._closed = False

    async def run(self) -> None:
        """Pass on notices until the store is closed; wait while it cannot be reached."""
        seen = asyncio.create_task(self._follow_agents())
        try:
            await self._store.follow(self._notice)
        finally:
            seen.cancel()

    async def _follow_agents(self) -> None:
        async for fabric in self._observations.changes():
            self.notice(fabric)

    async def _notice(self, fabric: str) -> None:
        self.notice(fabric)

    def notice(self, fabric: str) -> None:
        """Have the streams of a fabric look again."""
        for event in self._watchers.get(fabric, ()):
            event.set()

    def notice_at(self, fabric: str, moment: float) -> None:
        """Have the streams of a fabric look again at a moment, in Unix seconds.

        At that moment something ends by itself, of which nothing else gives notice. Only the last
        moment that was named counts. The clock may be set meanwhile, so streams that still see the
        thing then name the moment again.
        """
        if fabric in self._later:
            self._later.pop(fabric).cancel()
        if fabric in self._watchers:
            pause = max(moment - time.time(), _PACE)
            loop = asyncio.get_running_loop()
            self._later[fabric] = loop.call_later(pause, self.notice, fabric)

    def close(self) -> None:
        """End every present and future stream with UNAVAILABLE."""
        self._closed = True
        for events in self._watchers.values():
            for event in events:
                event.set()

    async def watch(self, fabric: str) -> AsyncGenerator[None, None]:
        """Yield at once, and then whenever the fabric may have changed since the last time.

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
                if fabric in self._later:
                    self._later.pop(fabric).cancel()
