"""What is recorded of each call: its id in logs and errors, a span, and metrics.

The client may bring its own id as ``x-request-id``. Anything that does not look like an id is
replaced, because it ends up in logs.

How a call ends: errors become a status with details, and stale answers are marked.

``Errors`` stands inside metrics and trace, so that they see the status that the client sees. A call
with one answer has a deadline here if the client set none that is shorter: a call that hangs must
not hold its memory for ever.

``StaleMarks`` stands inside ``Errors``, which makes the status. While the store cannot be reached,
reads are answered from the last known state, because operators need it most when something is
wrong. The mark tells them. Writes are refused, so a marked call has changed nothing. "There is no
such job" is an answer too.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Callable
from typing import Protocol

import grpc
import structlog
from google.rpc import status_pb2
from grpc import aio
from typing_extensions import override

from heddle.freshness import AGE, STALE
from heddle_controller.model.errors import InputError, Problem
from heddle_controller.planner.port import PlannerLost
from heddle_controller.serve import errors
from heddle_controller.serve.interceptors.around import CallLayer, Context, Method, Rest
from heddle_controller.state import errors as ports
from heddle_controller.state.errors import Unavailable

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


class CallTrace(CallLayer):
    """Binds the id to the log context; logs the call's end at debug level, and tells a span."""

    def __init__(self, spans: CallSpans | None = None) -> None:
        self._spans = spans

    @override
    async def around(self, method: Method, context: Context, rest: Rest) -> object:
        """Bind, in the context that each call has of its own; run, and tell."""
        request = _given(context) or uuid.uuid4().hex
        context.set_trailing_metadata(((_HEADER, request),))
        start, began, rpc = time.monotonic(), time.time(), f"{method.service}/{method.name}"
        failed = ""
        structlog.contextvars.bind_contextvars(request=request, rpc=rpc)
        try:
            return await rest()
        except BaseException as error:
            failed = str(error) or type(error).__name__
            raise
        finally:
            seconds = time.monotonic() - start
            log.debug("rpc", seconds=round(seconds, 6))
            if self._spans is not None and not method.streams:
                audit = str(structlog.contextvars.get_contextvars().get("audit", ""))
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


class CallMetrics(CallLayer):
    """Tells the meter of every call, streams too."""

    def __init__(self, meter: CallMeter) -> None:
        self._meter = meter

    @override
    async def around(self, method: Method, context: Context, rest: Rest) -> object:
        """Count in, run, count out."""
        self._meter.call_started(method.service, method.name)
        start, code = time.monotonic(), grpc.StatusCode.OK
        try:
            return await rest()
        except aio.AbortError:
            code = _code(context)
            raise
        except asyncio.CancelledError:
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


class Errors(CallLayer):
    """Ends calls with the status of what was raised."""

    def __init__(self, unary_limit: float) -> None:
        self._limit = unary_limit

    @override
    async def around(self, method: Method, context: Context, rest: Rest) -> object:
        """Run under a deadline where there is one answer; translate what is raised."""
        try:
            if method.streams:
                return await rest()
            async with asyncio.timeout(self._limit):
                return await rest()
        except (aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:  # the outermost edge: nothing may pass
            status = status_of(error) or self._incident(error)
            known = context.trailing_metadata() or ()
            await context.abort_with_status(errors.with_request(status, current_request(), known))
            raise  # not reached: aborting raises

    def _incident(self, error: Exception) -> status_pb2.Status:
        """Log a fault of ours with its traceback; the status names only the incident."""
        if isinstance(error, TimeoutError):
            message = f"not done within {self._limit:g} s; repeat it with the same request_id"
            code = grpc.StatusCode.DEADLINE_EXCEEDED
            return errors.refused(errors.Refusal(code, "SERVER_DEADLINE", message))
        incident = uuid.uuid4().hex[:12]
        log.error("rpc failed", incident=incident, exc_info=error)
        return errors.refused(errors.internal(incident))


def status_of(error: Exception) -> status_pb2.Status | None:
    """The status of an expected error; None for a fault of ours."""
    if isinstance(error, InputError):
        return errors.invalid_argument(error)
    if isinstance(error, errors.Refusal):
        return errors.refused(error)
    if isinstance(error, ports.RequestReused):
        return errors.invalid_argument(_reused(error))
    if isinstance(error, ports.FailedPrecondition):
        return errors.precondition(error.source, error.problems)
    if isinstance(error, ports.PortError):
        refusal = _refusal(error)
        return errors.refused(refusal) if refusal else None
    return None


def _reused(error: ports.RequestReused) -> InputError:
    return InputError("request", Problem("request_id", str(error)))


_CODES: dict[type[ports.PortError], tuple[grpc.StatusCode, str]] = {
    ports.NotFound: (grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
    ports.AlreadyExists: (grpc.StatusCode.ALREADY_EXISTS, "ALREADY_EXISTS"),
    ports.Conflict: (grpc.StatusCode.ABORTED, "ETAG_MISMATCH"),
    ports.StaleEpoch: (grpc.StatusCode.ABORTED, "STALE_EPOCH"),
    ports.StaleGeneration: (grpc.StatusCode.ABORTED, "STALE_GENERATION"),
    ports.Unavailable: (grpc.StatusCode.UNAVAILABLE, "STORE_UNAVAILABLE"),
    PlannerLost: (grpc.StatusCode.UNAVAILABLE, "PLANNER_LOST"),
    ports.Unusable: (grpc.StatusCode.UNAVAILABLE, "STORE_UNUSABLE"),
}


def _refusal(error: ports.PortError) -> errors.Refusal | None:
    if type(error) not in _CODES:
        return None
    code, reason = _CODES[type(error)]
    name = getattr(error, "name", None)
    metadata = {"name": name} if isinstance(name, str) else None
    retry = error.retry_after if isinstance(error, ports.Unavailable | PlannerLost) else None
    return errors.Refusal(code, reason, str(error), metadata, retry)


class StaleMarks(CallLayer):
    """Marks what is answered while ``stale_for`` is more than 0 seconds."""

    def __init__(self, stale_for: Callable[[], float]) -> None:
        self._stale_for = stale_for

    @override
    async def around(self, method: Method, context: Context, rest: Rest) -> object:
        """Run, then mark."""
        del method
        before = self._stale_for()
        try:
            answer = await rest()
        except Unavailable:
            raise  # nothing was answered, neither from now nor from the past
        except Exception:
            self._mark(context, before)
            raise
        self._mark(context, before)
        return answer

    def _mark(self, context: Context, before: float) -> None:
        age = max(before, self._stale_for())
        if age > 0:
            known = tuple(context.trailing_metadata() or ())
            context.set_trailing_metadata((*known, (STALE, "true"), (AGE, f"{age:.1f}")))
