"""Waiting for a state, with enough patience for a busy machine.

A test waits for the condition that it is about, never for a fixed time. A pause that is long enough
on a quiet machine is too short on one with ten programs per core. If the condition never holds, the
error names it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator

PATIENCE = 240.0
"""Seconds. Not a measure of speed: less than a test may take, more than anything should take."""
LIMITS = (0.5, 5.0, 50.0)
"""Time limits in seconds for what waits in vain, but must first hear why.

A test takes the next one if nothing was heard within the one before, as on a busy machine.
"""


async def until(
    holds: Callable[[], object], what: str = "the state to come", seconds: float = PATIENCE
) -> None:
    """Wait until a condition holds, while other tasks run; fail after ``seconds``."""
    for pause in _pauses(holds, what, seconds):
        await asyncio.sleep(pause)


def wait_until(
    holds: Callable[[], object], what: str = "the state to come", seconds: float = PATIENCE
) -> None:
    """Wait until a condition holds that other threads or processes bring about."""
    for pause in _pauses(holds, what, seconds):
        time.sleep(pause)


def _pauses(holds: Callable[[], object], what: str, seconds: float) -> Iterator[float]:
    """Yield the seconds until the next check, as long as a condition does not hold.

    They grow with the time waited. A check may start a program, so others have the processor for
    as long as the check took.
    """
    begun = asked = time.monotonic()
    while not holds():
        now = time.monotonic()
        assert now - begun < seconds, f"waited {seconds:g} s for {what}"
        yield min(0.005 + (now - begun) / 20, 0.1) + now - asked
        asked = time.monotonic()
