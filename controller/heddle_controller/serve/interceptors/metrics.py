"""Counts calls and times them, through a port that telemetry implements."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import grpc
from grpc import aio

from heddle_controller.serve.interceptors.around import Around, Context, Method


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
