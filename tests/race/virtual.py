"""Time that passes only when nothing is left to do, without threads, so that runs are repeatable.

Whatever would go to a thread is done at once instead. So the order of everything follows from the
order of callbacks, and that from the times at which they are due.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")
LONGEST = 600.0
"""Virtual seconds that one run may last. A run that goes on longer never settles."""


class StuckError(AssertionError):
    """Everything waits, and nothing will ever happen."""


class _Selector(selectors.DefaultSelector):
    """Checks for events without waiting, and lets virtual time pass instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        """Implement ``BaseSelector.select``."""
        found = super().select(0)
        if found or timeout == 0:
            return found
        if timeout is None or self.now > LONGEST:
            raise StuckError(f"nothing left to happen at {self.now:.3f} s")
        self.now += timeout
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        """Return the virtual seconds since the start."""
        return self._clock.now

    def run_in_executor(  # type: ignore[override]  # of types that say more
        self,
        executor: object,  # noqa: ARG002 - there are no threads
        func: Callable[..., Any],
        *args: Any,
    ) -> asyncio.Future[Any]:
        """Call the function now."""
        future: asyncio.Future[Any] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - it belongs to whoever waits
            future.set_exception(error)
        return future


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine in a virtual loop of its own."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


class VirtualClock:
    """Implements the clock of the reconcile loop by the event loop's time."""

    def now(self) -> float:
        """Return Unix seconds. The run begins on a day in January 2027."""
        return 1.8e9 + self.monotonic()

    def monotonic(self) -> float:
        """Return the seconds since the start."""
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        """Let virtual seconds pass."""
        await asyncio.sleep(seconds)
