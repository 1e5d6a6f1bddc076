"""How much one client may ask for; behind auth, because a client is whom auth found.

Whoever calls in plain text from the controller's own host is not limited: there the whole
emulator lives in one process, and whoever is there could stop the controller anyway.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import grpc

from heddle_controller.serve import errors
from heddle_controller.serve.interceptors.around import Around, Context, Method
from heddle_controller.serve.interceptors.auth import is_loopback
from heddle_controller.serve.interceptors.trace import current_request
from heddle_controller.serve.security.budget import Budget
from heddle_controller.serve.security.caller import Caller, Role, current_caller

BUSY_SECONDS = 1.0
"""After which a client with too many streams may try again."""


class Limits(Around):
    """Ends calls that are too many with RESOURCE_EXHAUSTED, and when to try again."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def around(self, method: Method, context: Context) -> AbstractAsyncContextManager[None]:
        """Take from the caller's account, run, give streams back."""
        return self._limit(method, context)

    @asynccontextmanager
    async def _limit(self, method: Method, context: Context) -> AsyncIterator[None]:
        caller = current_caller()
        if _is_here(caller):
            yield
            return
        client = str(caller)
        if (wait := self._budget.call(client)) > 0:
            await _refuse(context, "RATE_LIMIT", "too many calls: slow down", wait)
        if not method.streams:
            yield
            return
        if not self._budget.open(client):
            text = "too many streams at once: end some first"
            await _refuse(context, "STREAM_LIMIT", text, BUSY_SECONDS)
        try:
            yield
        finally:
            self._budget.close(client)


def _is_here(caller: Caller) -> bool:
    """Whether it calls in plain text from the controller's own host; not all that may do all."""
    own = caller.identity.startswith("unix:") or is_loopback(caller.identity)
    return caller.role is Role.LOCAL and own


async def _refuse(context: Context, reason: str, message: str, seconds: float) -> None:
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    refusal = errors.Refusal(code, reason, message, retry_seconds=max(seconds, 0.001))
    status = errors.with_request(errors.refused(refusal), current_request())
    await context.abort_with_status(status)
