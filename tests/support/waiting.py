"""Waiting for a state of the world, with the patience of a machine that does much else.

A test waits for what it is about, never for a time: a pause that is long enough on a quiet
machine is too short on one with ten programs a core. What does not come is told by its name.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE = 240.0
"""Seconds. No measure of speed: less than a test may take, more than anything should."""


def _pause(waited: float) -> float:
    """Seconds until the next look: few looks at what takes long, as each may start a program."""
    return min(0.005 + waited / 20, 0.1)


async def until(
    holds: Callable[[], object], what: str = "the state to come", seconds: float = PATIENCE
) -> None:
    """Wait until something is so, while all else goes on; fail after so long."""
    begun = time.monotonic()
    while not holds():
        waited = time.monotonic() - begun
        assert waited < seconds, f"waited {seconds:g} s for {what}"
        await asyncio.sleep(_pause(waited))


def wait_until(
    holds: Callable[[], object], what: str = "the state to come", seconds: float = PATIENCE
) -> None:
    """Wait for what other threads or processes do."""
    begun = time.monotonic()
    while not holds():
        waited = time.monotonic() - begun
        assert waited < seconds, f"waited {seconds:g} s for {what}"
        time.sleep(_pause(waited))
