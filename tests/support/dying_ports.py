"""A controller that dies at a chosen call of a port, before it is made or before it returns.

From then on nothing that it awaits ever returns, as if its process were gone. What the call did to
the store or to a switch remains.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any


class Death:
    """Counts the calls of all ports of one controller, and makes it die at one of them.

    If ``of`` is given, only calls of that name count.
    """

    def __init__(self, at: int, *, after: bool, of: str = "") -> None:
        self._at = at
        self._of = of
        self._after = after
        self._calls = 0
        self.struck = asyncio.Event()
        self.where = ""

    def through(self, port: Any) -> Any:
        """Return the port as the controller sees it."""
        return DyingPort(port, self)

    async def call(self, name: str, method: Any, args: Any, kwargs: Any) -> Any:
        """Make a call, or die at it."""
        if self.struck.is_set():
            await asyncio.Event().wait()
        self._calls += self._of in ("", name)
        if self._calls != self._at or self._of not in ("", name):
            answer = await method(*args, **kwargs)
            if self.struck.is_set():
                await asyncio.Event().wait()
            return answer
        if self._after:
            await method(*args, **kwargs)
        self.where = f"{'after' if self._after else 'before'} {name}"
        self.struck.set()
        return await asyncio.Event().wait()


class DyingPort:
    """A port whose coroutines go through a ``Death``; everything else is unchanged."""

    def __init__(self, port: Any, death: Death) -> None:
        self._port = port
        self._death = death

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._port, name)
        if not inspect.iscoroutinefunction(method) or name == "leadership_lost":
            return method  # leadership_lost returns only when there is nothing left to die of
        return functools.partial(self._call, name, method)

    async def _call(self, name: str, method: Any, *args: Any, **kwargs: Any) -> Any:
        return await self._death.call(name, method, args, kwargs)
