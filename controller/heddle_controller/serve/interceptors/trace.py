"""One id a call, in every log line it causes and in every error it ends in.

The client may bring its own as ``x-request-id``; what does not look like an id is
replaced, because it ends up in logs.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import structlog

from heddle_controller.serve.interceptors.around import Around, Context, Method

HEADER = "x-request-id"
SANE = re.compile(r"[A-Za-z0-9._:/-]{1,64}")

log = structlog.stdlib.get_logger(__name__)


def current_request() -> str:
    """Id of the call under way; empty outside of one."""
    return str(structlog.contextvars.get_contextvars().get("request", ""))


class CallTrace(Around):
    """Binds the id to the log context; logs the call's end at debug level."""

    def around(self, method: Method, context: Context) -> AbstractAsyncContextManager[None]:
        """Bind, run, unbind."""
        return self._trace(method, context)

    @asynccontextmanager
    async def _trace(self, method: Method, context: Context) -> AsyncIterator[None]:
        request = _given(context) or uuid.uuid4().hex
        context.set_trailing_metadata(((HEADER, request),))
        start = time.monotonic()
        with structlog.contextvars.bound_contextvars(
            request=request, rpc=f"{method.service}/{method.name}"
        ):
            try:
                yield
            finally:
                log.debug("rpc", seconds=round(time.monotonic() - start, 6))


def _given(context: Context) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == HEADER and isinstance(value, str) and SANE.fullmatch(value):
            return value
    return ""
