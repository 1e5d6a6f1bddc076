"""Heavy questions take turns: one at a time in a thread, the others wait.

A thread cannot be stopped. When the client of a question goes away the answer is
still reckoned, and the turn ends with the thread, not with the call: else a client
that asks and hangs up could fill every thread that plans are made in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
Answer = TypeVar("Answer")


class Turns:
    """One turn at a time."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()

    async def run(self, function: Callable[P, Answer], *args: P.args, **kwargs: P.kwargs) -> Answer:
        """Wait for the turn, then run the function in a thread."""
        await self._turn.acquire()
        running = asyncio.create_task(asyncio.to_thread(function, *args, **kwargs))
        running.add_done_callback(self._over)
        return await asyncio.shield(running)

    def _over(self, task: asyncio.Task[Answer]) -> None:
        self._turn.release()
        if not task.cancelled():
            task.exception()  # taken here: who asked may be gone
