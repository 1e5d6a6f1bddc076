"""The one gRPC interceptor: layers around the handler of each call, and parsing of requests.

gRPC has four kinds of methods, and two kinds of handlers (generators, and coroutines that write
by themselves). Here all become coroutines. A layer is a coroutine too, which awaits the rest of
the call. gRPC sees all layers as one interceptor, and each handler is wrapped once, not for each
call. There are thousands of streams, and the garbage collector visits all objects that they keep.

gRPC would parse a request before any handler runs. Bytes that are no message would bypass all
layers, end in UNKNOWN and leave a traceback in the log. A stranger could make the server hold and
parse megabytes. So gRPC gets no parser, and is told that every method takes a stream of requests.
Then it reads no more than the stream's window until the call has passed authentication and limits.
Errors of parsing are raised inside the layers. Each method limits the size of its messages,
because parsing blocks the event loop.

The layers here record each call (id, span, metrics) and decide how it ends (status, mark of stale
data). The client may bring its own id as ``x-request-id``. Anything that does not look like an id
is replaced, because it ends up in logs.

``Errors`` is inside the layers for metrics and traces, so that they see the same status as the
client. It gives a call with one answer a deadline, because a call that hangs must not hold memory
for ever. A shorter deadline of the client still applies.

``StaleMarks`` is inside ``Errors``, which makes the status. While the store cannot be reached,
reads are answered from the last known state, because operators need it most when something is
wrong, and the answers are marked as stale. Writes are refused, so a marked call has changed
nothing. An error such as "there is no such job" is an answer too, and is marked.
"""

from __future__ import annotations

import abc
import asyncio
import inspect
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias, cast

import grpc
import structlog
from google.protobuf.message import DecodeError
from google.rpc import status_pb2
from grpc import aio
from typing_extensions import override

from heddle.freshness import AGE, STALE
from heddle_controller.model.errors import InputError, Problem, refuse
from heddle_controller.planner.port import PlannerLost
from heddle_controller.serve import errors
from heddle_controller.serve.bucket import TokenBucket
from heddle_controller.serve.errors import exhausted
from heddle_controller.state import errors as ports
from heddle_controller.state.errors import Unavailable

Context = aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # not subscriptable when run
Rest = Callable[[], Awaitable[object]]
"""What is inside a layer: the next layer, or the handler."""


@dataclass(frozen=True, slots=True)
class Method:
    """The method that is called."""

    service: str
    name: str
    streams: bool
    """Whether it streams in either direction, so that a call may last for any time."""

    @classmethod
    def of(cls, path: str, handler: Handler) -> Method:
        """Return the method with the path ``/package.Service/Name``."""
        _, service, name = path.split("/", 2)
        return cls(service, name, bool(handler.request_streaming or handler.response_streaming))


class CallLayer(abc.ABC):
    """Something that is done around every call."""

    @abc.abstractmethod
    async def around(self, method: Method, context: Context, rest: Rest) -> object:
        """Await the rest of the call, and return its answer, if it has one."""


class Around(aio.ServerInterceptor):
    """Wraps the handler of every call in all layers, the first outermost."""

    def __init__(self, *layers: CallLayer) -> None:
        self._layers = layers
        self._wrapped: dict[str, Handler] = {}
        """Wrapped handlers by path of the method."""

    @override
    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """Return the wrapped handler of the call; None for an unknown method."""
        path = handler_call_details.method
        known = self._wrapped.get(path)
        if known is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            known = self._wrapped[path] = self._wrap(path, handler)
        return known

    def _wrap(self, path: str, handler: Handler) -> Handler:
        method, answer = Method.of(path, handler), _answering(path, handler)
        outwards = [layer.around for layer in reversed(self._layers)]

        async def run(said: Said, context: Context) -> object:
            rest: Rest = partial(answer, said, context)
            for around in outwards:
                rest = partial(around, method, context, rest)
            return await rest()

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(run, None, handler.response_serializer)
        return grpc.stream_unary_rpc_method_handler(run, None, handler.response_serializer)


_MEBIBYTE = 1 << 20
USUAL = _MEBIBYTE
"""Most bytes of a message, for methods that ``_LARGE`` does not name."""
_LARGE: Mapping[str, int | None] = {
    "/heddle.v1.FabricService/PutFabric": None,
    "/heddle.v1.DemandService/PutDemands": None,
    "/heddle.v1.DemandService/ReportRates": None,
    "/heddle.v1.PlanService/WhatIf": 16 * _MEBIBYTE,
    "/heddle.v1.AgentService/Session": 8 * _MEBIBYTE,
}
"""Most bytes of a message, for some methods; None means only the limit of the whole server."""

Said = AsyncIterator[bytes]
"""The requests of a call as bytes, as they arrive."""
Read = Callable[[bytes], object]
Behaviour = Callable[[Any, Context], Any]
"""The function of a handler; it returns an awaitable or an asynchronous generator."""


def _answering(path: str, handler: Handler) -> Callable[[Said, Context], Awaitable[object]]:
    """Return a coroutine function that parses the requests and runs the handler."""
    assert handler.request_deserializer is not None, "generated code gives one"
    read = _reader(path, handler.request_deserializer)
    one = not handler.request_streaming
    kinds = handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream
    (behaviour,) = cast("list[Behaviour]", [kind for kind in kinds if kind is not None])
    if not inspect.isasyncgenfunction(behaviour):

        async def answer(said: Said, context: Context) -> object:
            return await behaviour(await _one(read, said) if one else _many(read, said), context)

        return answer

    async def answers(said: Said, context: Context) -> None:
        request = await _one(read, said) if one else _many(read, said)
        async with aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                await context.write(response)
                del response  # free its memory while the stream waits

    return answers


def _reader(path: str, parse: Read) -> Read:
    most = _LARGE.get(path, USUAL)

    def read(data: bytes) -> object:
        if most is not None and len(data) > most:
            text = f"a message of {len(data)} bytes: this method takes {most} at most"
            raise exhausted("MESSAGE_TOO_LARGE", text)
        try:
            return parse(data)
        except DecodeError:
            text = f"{len(data)} bytes are not the message this method takes: see heddle.v1"
            raise refuse("request", "", text) from None

    return read


async def _one(read: Read, said: Said) -> object:
    """Wait for the request of a call that has one, and parse it."""
    async for data in said:
        return read(data)
    raise refuse("request", "", "no message came: send the one that this method takes")


async def _many(read: Read, said: Said) -> AsyncIterator[object]:
    """Parse requests as they arrive."""
    async for data in said:
        yield read(data)


_HEADER = "x-request-id"
SANE = re.compile(r"[A-Za-z0-9._:/-]{1,64}")

log = structlog.stdlib.get_logger(__name__)


def current_request() -> str:
    """Return the id of the current call; empty outside a call."""
    return str(structlog.contextvars.get_contextvars().get("request", ""))


class CallSpans(Protocol):
    """Takes the spans of calls with one answer, once they have ended."""

    def call_ended(
        self, request: str, rpc: str, call: str, times: tuple[float, float], failed: str
    ) -> None:
        """Take in a call that has ended.

        Args:
            request: Id of the request in the audit trail.
            rpc: The method, as ``service/name``.
            call: Id of the call in the logs; mostly the same as ``request``.
            times: When it began and ended, Unix seconds.
            failed: Why it failed; empty if it did not.
        """


def name_request(request: str) -> None:
    """Note that the audit trail knows the current call by this id."""
    structlog.contextvars.bind_contextvars(audit=request)


DENIED = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
LINES_AT_ONCE, LINES_PER_SECOND = 20.0, 1.0
"""Denied calls that are logged after a pause, and in the long run."""


class DeniedLog:
    """Logs denied calls, of all clients together no more than a stranger may fill the log with."""

    def __init__(self) -> None:
        self._lines = TokenBucket(LINES_AT_ONCE, LINES_PER_SECOND, time.monotonic())
        self._omitted = 0

    def tell(self, code: str, why: str, **about: str) -> None:
        """Log a denied call with what else is known about it, or count it for the next line."""
        if self._lines.take(time.monotonic()) > 0:
            self._omitted += 1
            return
        omitted, self._omitted = self._omitted, 0
        log.warning("call denied", code=code, why=why, omitted_before=omitted, **about)


class CallTrace(CallLayer):
    """Binds the call's id to the log context, logs its end, and records a span.

    The end is logged at debug level. That of a denied call is also logged as a warning.
    """

    def __init__(self, spans: CallSpans | None = None) -> None:
        self._spans = spans
        self._denied = DeniedLog()

    @override
    async def around(self, method: Method, context: Context, rest: Rest) -> object:
        """Bind the id in the call's own log context, run the call, then log it and its span."""
        request = _given(context) or uuid.uuid4().hex
        context.set_trailing_metadata(((_HEADER, request),))
        start, began, rpc = time.monotonic(), time.time(), f"{method.service}/{method.name}"
        failed, code = "", grpc.StatusCode.OK
        structlog.contextvars.bind_contextvars(request=request, rpc=rpc)
        try:
            return await rest()
        except BaseException as error:
            failed, code = str(error) or type(error).__name__, _code(error, context)
            raise
        finally:
            seconds = time.monotonic() - start
            log.debug("rpc", code=code.name, seconds=round(seconds, 6))
            if code in DENIED:
                self._denied.tell(code.name, str(context.details() or ""))
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
    """Measures calls."""

    def call_started(self, service: str, method: str) -> None:
        """Count a call that began."""

    def call_ended(self, service: str, method: str, code: str, seconds: float) -> None:
        """Count a call that ended; ``code`` is a status name such as "OK"."""


class CallMetrics(CallLayer):
    """Reports every call to the meter, also streams."""

    def __init__(self, meter: CallMeter) -> None:
        self._meter = meter

    @override
    async def around(self, method: Method, context: Context, rest: Rest) -> object:
        """Count the start, run the call, and count its end."""
        self._meter.call_started(method.service, method.name)
        start, code = time.monotonic(), grpc.StatusCode.OK
        try:
            return await rest()
        except (aio.AbortError, asyncio.CancelledError) as error:
            code = _code(error, context)
            raise
        finally:
            seconds = time.monotonic() - start
            self._meter.call_ended(method.service, method.name, code.name, seconds)


_BY_NUMBER = {int(code.value[0]): code for code in grpc.StatusCode}


def _code(error: BaseException, context: Context) -> grpc.StatusCode:
    """Return the status of a call that ended in an error; gRPC stores it as a number."""
    if isinstance(error, asyncio.CancelledError):
        return grpc.StatusCode.CANCELLED
    code: object = context.code()
    if isinstance(code, grpc.StatusCode):
        return code
    return (
        _BY_NUMBER.get(code, grpc.StatusCode.UNKNOWN)
        if isinstance(code, int)
        else grpc.StatusCode.UNKNOWN
    )


class Errors(CallLayer):
    """Ends a call with the status of the error that it raised."""

    def __init__(self, unary_limit: float) -> None:
        self._limit = unary_limit

    @override
    async def around(self, method: Method, context: Context, rest: Rest) -> object:
        """Run the call, with a deadline if it has one answer, and turn errors into a status."""
        try:
            if method.streams:
                return await rest()
            async with asyncio.timeout(self._limit):
                return await rest()
        except (aio.AbortError, asyncio.CancelledError):
            raise
        except Exception as error:  # no error may reach gRPC itself
            status = status_of(error) or self._incident(error)
            known = context.trailing_metadata() or ()
            await context.abort_with_status(errors.with_request(status, current_request(), known))
            raise  # not reached: aborting raises

    def _incident(self, error: Exception) -> status_pb2.Status:
        """Return DEADLINE_EXCEEDED for a timeout, or log an unexpected error as an incident.

        The status of an incident names only its id; the log has the traceback.
        """
        if isinstance(error, TimeoutError):
            cure = "if it is a change, repeat it with the same request_id, and it is made once"
            message = f"not done within {self._limit:g} s: ask for less, or again later; {cure}"
            code = grpc.StatusCode.DEADLINE_EXCEEDED
            return errors.refused(errors.Refusal(code, "SERVER_DEADLINE", message))
        incident = uuid.uuid4().hex[:12]
        log.error("rpc failed", incident=incident, exc_info=error)
        return errors.refused(errors.internal(incident))


def status_of(error: Exception) -> status_pb2.Status | None:
    """Return the status of an expected error; None for any other error."""
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
    ports.FabricDeleted: (grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
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
    """Marks answers as stale while ``stale_for`` returns more than 0 seconds."""

    def __init__(self, stale_for: Callable[[], float]) -> None:
        self._stale_for = stale_for

    @override
    async def around(self, method: Method, context: Context, rest: Rest) -> object:
        """Run the call, then mark its answer or error if it is stale."""
        del method
        before = self._stale_for()
        try:
            answer = await rest()
        except Unavailable:
            raise  # no answer, neither from current nor from old data
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
