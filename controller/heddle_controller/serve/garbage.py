"""Garbage is looked for in small pieces, so that no answer waits for all of it.

Python looks through every object there is whenever a quarter more have lasted: with a session for
each of 1,700 switches that is a third of a second, several times in one rollout, and nobody is
answered meanwhile. Here what has lasted is set aside every few seconds, which costs nothing, and
only the young are looked through. What is set aside goes as ever when the last one who knows it
lets go of it; only rings of objects that know each other stay. For these everything is looked
through once so many have been set aside that they are most of all: with 1,700 sessions and a plan
that takes half a second, so it must not be part of every plan.
"""

from __future__ import annotations

import asyncio
import gc
import time

import structlog

log = structlog.stdlib.get_logger(__name__)

OLD = 2
"""The generation of what has lasted."""
YOUNG, MIDDLE, NEVER = 1_000, 5, 1_000_000
"""New objects before the young are looked through, and how often before those that outlived it.

What is new while a plan is rolled out knows much else: two to five microseconds an object.
"""
PAUSE_SECONDS = 2.0
"""Between two times of setting aside: to count what has lasted takes 20 ns an object and more."""
GROWTH, LEAST = 3.0, 100_000
"""By which part, and at least how many objects, what was set aside grows between two full looks."""


class Caretaker:
    """One of these a process: what it sets is the interpreter's."""

    def __init__(self) -> None:
        self._known = 0
        """Objects set aside when everything was last looked through."""
        self._more = 0
        """Set aside since; some of them are gone by now."""

    async def run(self) -> None:
        """Set aside and look, until cancelled; then the interpreter's own way is back."""
        before = gc.get_threshold()
        gc.set_threshold(YOUNG, MIDDLE, NEVER)
        gc.freeze()
        self._known = gc.get_freeze_count()
        try:
            while True:
                await asyncio.sleep(PAUSE_SECONDS)
                self.look()
        finally:
            gc.set_threshold(*before)

    def look(self) -> None:
        """Set aside what has lasted, and look through everything if that has become much."""
        self._more += len(gc.get_objects(generation=OLD))
        gc.freeze()
        most = max(LEAST, GROWTH * self._known)
        if self._more < most:
            return
        # To count them all takes a while too, so it is done where there may be enough only.
        self._more = gc.get_freeze_count() - self._known
        if self._more >= most:
            self._look_through()

    def _look_through(self) -> None:
        begin = time.perf_counter()
        gc.unfreeze()
        found = gc.collect()
        gc.freeze()
        self._known, self._more = gc.get_freeze_count(), 0
        took = time.perf_counter() - begin
        log.info("garbage", lasting=self._known, found=found, seconds=round(took, 3))
