"""Garbage is looked for in small pieces, so that no answer waits for all of it.

Python looks through every object there is whenever a quarter more have lasted: with a session for
each of 1,700 switches that is a third of a second, several times in one rollout, and nobody is
answered meanwhile. Here what has lasted is set aside every few seconds, which costs nothing, and
only the young are looked through. What is set aside goes as ever when the last one who knows it
lets go of it; only rings of objects that know each other stay. For these everything is looked
through once there is several times as much as the last time: with 1,700 sessions and a plan that
takes half a second, so it must not be part of every plan. How much there is the allocator tells in
well under a millisecond; to count the objects that were set aside took fifty.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time

import structlog

log = structlog.stdlib.get_logger(__name__)

YOUNG, MIDDLE, NEVER = 1_000, 5, 1_000_000
"""New objects before the young are looked through, and how often before those that outlived it.

What is new while a plan is rolled out knows much else: two to five microseconds an object.
"""
PAUSE_SECONDS = 2.0
"""Between two times of setting aside."""
GROWTH, LEAST = 2.0, 1_000_000
"""By which part, and at least how many blocks of memory, there is more before the next full look.

A small object is one to three blocks.
"""


class Caretaker:
    """One of these a process: what it sets is the interpreter's."""

    def __init__(self, growth: float = GROWTH) -> None:
        self._growth = growth
        self._known = sys.getallocatedblocks()
        """Blocks in use after everything was last looked through."""

    async def run(self) -> None:
        """Set aside and look, until cancelled; then the interpreter's own way is back."""
        before = gc.get_threshold()
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        gc.freeze()
        self._known = sys.getallocatedblocks()
        try:
            while True:
                await asyncio.sleep(PAUSE_SECONDS)
                self.look()
        finally:
            gc.set_threshold(*before)

    def look(self) -> None:
        """Set aside what has lasted, and look through everything if there has come to be much."""
        gc.freeze()
        if sys.getallocatedblocks() - self._known >= max(LEAST, self._growth * self._known):
            self._look_through()

    def _look_through(self) -> None:
        begin = time.perf_counter()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        self._known = sys.getallocatedblocks()
        took = time.perf_counter() - begin
        log.info("garbage", blocks=self._known, found=found, seconds=round(took, 3))
