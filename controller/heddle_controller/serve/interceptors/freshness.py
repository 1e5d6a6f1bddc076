"""Says of answers that they may be of the past, while the store cannot be reached.

Reads are then answered from what this replica knew last, as operators need to see
something most of all when something is wrong; but not without being told. Writes are
refused, so a call that was answered with this mark has changed nothing. "There is no such
job" is an answer too. Within ``Errors``, which makes the status: nothing can be added to it later.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from heddle.freshness import AGE, STALE
from heddle_controller.serve.interceptors.around import Around, Context, Method
from heddle_controller.state.errors import Unavailable


class StaleMarks(Around):
    """Marks what is answered while ``stale_for`` is more than 0 seconds."""

    def __init__(self, stale_for: Callable[[], float]) -> None:
        self._stale_for = stale_for

    def around(self, method: Method, context: Context) -> AbstractAsyncContextManager[None]:
        """Run, then mark."""
        del method
        return self._marked(context)

    @asynccontextmanager
    async def _marked(self, context: Context) -> AsyncIterator[None]:
        before = self._stale_for()
        try:
            yield
        except Unavailable:
            raise  # nothing was answered, neither from now nor from the past
        except Exception:
            self._mark(context, before)
            raise
        self._mark(context, before)

    def _mark(self, context: Context, before: float) -> None:
        age = max(before, self._stale_for())
        if age > 0:
            known = tuple(context.trailing_metadata() or ())
            context.set_trailing_metadata((*known, (STALE, "true"), (AGE, f"{age:.1f}")))
