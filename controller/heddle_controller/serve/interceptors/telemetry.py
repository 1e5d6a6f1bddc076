"""What is recorded of each call: its id in logs and errors, a span, and metrics.

The client may bring its own id as ``x-request-id``. Anything that does not look like an id is
replaced, because it ends up in logs.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import grpc
import structlog
from grpc import aio

from heddle_controller.serve.interceptors.around import Around, Context, Method

_HEADER = "x-request-id"
SANE = re.compile(r"[A-Za-z0-9._:/-]{1,64}")

log = structlog.stdlib.get_logger(__name__)


def current_request() -> str:
    """Id of the call under way; empty outside of one."""
    return str(structlog.contextvars.get_contextvars().get("request", ""))


class CallSpans(Protocol):
    """Takes the spans of calls with one answer, once they have ended."""

    def call_ended(
        self, request: str, rpc: str, call: str, times: tuple[float, float], failed: str
    ) -> None:
        """A call began and ended, in Unix seconds; ``failed`` says why it failed, if it did.

        ``request`` is the id that the audit trail has, ``call`` that of the logs: mostly the same.
        """


def name_request(request: str) -> None:
    """The call under way is known by this id in the audit trail."""
    structlog.contextvars.bind_contextvars(audit=request)


class CallTrace(Around):
    """Binds the id to the log context; logs the call's end at debug level, and tells a span."""

    def __init__(self, spans: CallSpans | None = None) -> None:
        self._spans = spans

    def around(self, method: Method, context: Context) -> AbstractAsyncContextManager[None]:
        """Bind, run, unbind."""
        return self._trace(method, context)

    @asynccontextmanager
    async def _trace(self, method: Method, context: Context) -> AsyncIterator[None]:
        request = _given(context) or uuid.uuid4().hex
        context.set_trailing_metadata(((_HEADER, request),))
        start, began, rpc = time.monotonic(), time.time(), f"{method.service}/{method.name}"
        failed = ""
        with structlog.contextvars.bound_contextvars(request=request, rpc=rpc):
            try:
                yield
            except BaseException as error:
                failed = str(error) or type(error).__name__
                raise
            finally:
                seconds = time.monotonic() - start
                log.debug("rpc", seconds=round(seconds, 6))
                audit = str(structlog.contextvars.get_contextvars().get("audit", ""))
                structlog.contextvars.unbind_contextvars("audit")
                if self._spans is not None and not method.streams:
                    times = began, began + seconds
                    self._spans.call_ended(audit or request, rpc, request, times, failed)


def _given(context: Context) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == _HEADER and isinstance(value, str) and SANE.fullmatch(value):
            return value
    return ""


class CallMeter(Protocol):
    """Counts calls."""

    def call_started(self, service: str, method: str) -> None:
        """A call began."""

    def call_ended(self, service: str, method: str, code: str, seconds: float) -> None:
        """A call ended with a status name such as "OK" after so long."""


class CallMetrics(Around):
    """Tells the meter of every call, streams too."""

    def __init__(self, meter: CallMeter) -> None:
        self._meter = meter

    def around(self, method: Method, context: Context) -> AbstractAsyncContextManager[None]:
        """Count in, run, count out."""
        return self._count(method, context)

    @asynccontextmanager
    async def _count(self, method: Method, context: Context) -> AsyncIterator[None]:
        self._meter.call_started(method.service, method.name)
        start, code = time.monotonic(), grpc.StatusCode.OK
        try:
            yield
        except aio.AbortError:
            code = _code(context)
            raise
        except (asyncio.CancelledError, GeneratorExit):
            code = grpc.StatusCode.CANCELLED
            raise
        finally:
            seconds = time.monotonic() - start
            self._meter.call_ended(method.service, method.name, code.name, seconds)


_BY_NUMBER = {int(code.value[0]): code for code in grpc.StatusCode}


def _code(context: Context) -> grpc.StatusCode:
    """The status an aborted call got; the library tells it by number."""
    code: object = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return (
        _BY_NUMBER.get(code, grpc.StatusCode.UNKNOWN)
        if isinstance(code, int)
        else grpc.StatusCode.UNKNOWN
    )
