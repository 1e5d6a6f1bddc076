"""Waiting for a state, with enough patience for a busy machine.

A test waits for the condition that it is about, never for a fixed time. A pause that is long enough
on a quiet machine is too short on one with ten programs per core. If the condition never holds, the
error names it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

PATIENCE = 240.0
"""Seconds. Not a measure of speed: less than a test may take, more than anything should take."""


def _pause(waited: float) -> float:
    """Return seconds until the next check; rarer with time, since a check may start a program."""
    return min(0.005 + waited / 20, 0.1)


async def until(
    holds: Callable[[], object], what: str = "the state to come", seconds: float = PATIENCE
) -> None:
    """Wait until a condition holds, while other tasks run; fail after ``seconds``."""
    begun = time.monotonic()
    while not holds():
        waited = time.monotonic() - begun
        assert waited < seconds, f"waited {seconds:g} s for {what}"
        await asyncio.sleep(_pause(waited))


def wait_until(
    holds: Callable[[], object], what: str = "the state to come", seconds: float = PATIENCE
) -> None:
    """Wait until a condition holds that other threads or processes bring about."""
    begun = time.monotonic()
    while not holds():
        waited = time.monotonic() - begun
        assert waited < seconds, f"waited {seconds:g} s for {what}"
        time.sleep(_pause(waited))
