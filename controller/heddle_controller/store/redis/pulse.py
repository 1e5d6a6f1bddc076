"""Whether our own loop stood still: what was not heard meanwhile says nothing of the server.

A timer that is late shows it. It comes before the timers of the calls that it excuses, as all that
are due are called in their order.
"""

from __future__ import annotations

import asyncio
import math

BEAT_SECONDS = 0.05


class Pulse:
    """Beats while it is wanted."""

    def __init__(self, most: float) -> None:
        """Being late by more than ``most`` seconds counts."""
        self._most = most
        self._due = math.inf
        self._late = -math.inf
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to beat, unless it does."""
        if self._timer is None:
            self._again()

    def stop(self) -> None:
        """Beat no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def stood_still(self, since: float) -> bool:
        """Whether the loop did at some time after a moment by its own clock."""
        return self._late >= since or asyncio.get_running_loop().time() > self._due + self._most

    def _beat(self) -> None:
        now = asyncio.get_running_loop().time()
        if now > self._due + self._most:
            self._late = now
        self._again()

    def _again(self) -> None:
        loop = asyncio.get_running_loop()
        self._due = loop.time() + BEAT_SECONDS
        self._timer = loop.call_at(self._due, self._beat)
