"""The two gRPC interceptors: layers around the handler of each call, and parsing of requests.

gRPC knows four kinds of methods, and two kinds of handlers for streaming methods (generators, and
coroutines that write by themselves). A layer says only what happens around a call; this module
knows the kinds. gRPC sees all layers as one interceptor. An interceptor for each layer would keep
a dozen objects for every stream, and there are thousands of streams. For the same reason handlers
are wrapped once, and not for each call.

gRPC would parse a request before any handler runs. Bytes that are no message would bypass all
layers, end in UNKNOWN and leave a traceback in the log, and a stranger could have megabytes parsed.
So gRPC is given no parser. A call with one request becomes a call that reads the request itself
(``Reading``), after authentication and limits have let the call pass. What parsing raises is
raised inside the layers. Each method limits the size of its messages, because parsing blocks the
event loop.
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from typing_extensions import override

from heddle_controller.model.errors import refuse
from heddle_controller.serve.errors import exhausted

Context = aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # not subscriptable when run
Behaviour = Callable[[Any, Context], Any]
"""What a handler runs: gives an awaitable, or an asynchronous generator."""


@dataclass(frozen=True, slots=True)
class Method:
    """Which method is called. Calls that stream last as long as both sides like."""

    service: str
    name: str
    streams: bool

    @classmethod
    def of(cls, path: str, handler: Handler) -> Method:
        """The method at ``/package.Service/Name``."""
        _, service, name = path.split("/", 2)
        asks = handler.request_streaming and not isinstance(handler, Reading)
        return cls(service, name, bool(asks or handler.response_streaming))


@dataclass(frozen=True)
class Reading(grpc.RpcMethodHandler):  # type: ignore[type-arg] # not subscriptable when run
    """A handler that reads its one question itself.

    gRPC reads a single question before anything of ours runs, so that a stranger could have as
    much held and parsed as he likes. To gRPC this is a method with a stream of questions: nothing
    beyond the stream's window is taken in until auth and limits have let the call pass.
    """

    stream_unary: Any
    stream_stream: Any
    request_deserializer: Any
    response_serializer: Any
    response_streaming: bool
    request_streaming: bool = True
    unary_unary: None = None
    unary_stream: None = None


def reading(handler: Handler) -> Callable[..., Handler]:
    """How to make one that answers as the handler does."""
    return _many_answers if handler.response_streaming else _one_answer


def _one_answer(behaviour: Behaviour, parse: object, write: object) -> Handler:
    return Reading(behaviour, None, parse, write, response_streaming=False)


def _many_answers(behaviour: Behaviour, parse: object, write: object) -> Handler:
    return Reading(None, behaviour, parse, write, response_streaming=True)


class Around(abc.ABC):
    """One layer."""

    @abc.abstractmethod
    def around(self, method: Method, context: Context) -> AbstractAsyncContextManager[None]:
        """Entered before the handler runs, left when it ends or raises."""


class _Wrapping(aio.ServerInterceptor):
    """Wraps the handler of each method, once."""

    def __init__(self) -> None:
        self._wrapped: dict[str, Handler] = {}
        """By path."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler of the call, wrapped; an unknown method has none."""
        path = handler_call_details.method
        known = self._wrapped.get(path)
        if known is None:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            known = self._wrapped[path] = self._wrap(path, handler)
        return known

    @abc.abstractmethod
    def _wrap(self, path: str, handler: Handler) -> Handler:
        """A handler in place of this one."""


class Layers(_Wrapping):
    """Wraps the handler of every call in all layers, the first outermost."""

    def __init__(self, *layers: Around) -> None:
        super().__init__()
        self._layers = layers

    @override
    def _wrap(self, path: str, handler: Handler) -> Handler:
        method = Method.of(path, handler)
        make, behaviour = kind_of(handler)
        if inspect.isasyncgenfunction(behaviour):
            wrapped: Behaviour = self._generator(method, behaviour)
        else:
            wrapped = self._coroutine(method, behaviour)
        return make(wrapped, handler.request_deserializer, handler.response_serializer)

    def _coroutine(self, method: Method, behaviour: Behaviour) -> Behaviour:
        async def run(request: object, context: Context) -> object:
            async with AsyncExitStack() as stack:
                await self._enter(stack, method, context)
                return await behaviour(request, context)

        return run

    def _generator(self, method: Method, behaviour: Behaviour) -> Behaviour:
        async def run(request: object, context: Context) -> AsyncIterator[object]:
            async with AsyncExitStack() as stack:
                await self._enter(stack, method, context)
                out = await stack.enter_async_context(aclosing(behaviour(request, context)))
                async for response in out:
                    yield response

        return run

    async def _enter(self, stack: AsyncExitStack, method: Method, context: Context) -> None:
        for layer in self._layers:
            await stack.enter_async_context(layer.around(method, context))


def kind_of(handler: Handler) -> tuple[Callable[..., Handler], Behaviour]:
    """How to make a handler of the same kind, and what this one runs."""
    if isinstance(handler, Reading):
        return reading(handler), handler.stream_stream or handler.stream_unary
    kinds: dict[tuple[bool, bool], tuple[Callable[..., Handler], Any]] = {
        (False, False): (grpc.unary_unary_rpc_method_handler, handler.unary_unary),
        (False, True): (grpc.unary_stream_rpc_method_handler, handler.unary_stream),
        (True, False): (grpc.stream_unary_rpc_method_handler, handler.stream_unary),
        (True, True): (grpc.stream_stream_rpc_method_handler, handler.stream_stream),
    }
    return kinds[bool(handler.request_streaming), bool(handler.response_streaming)]


_MEBIBYTE = 1 << 20
USUAL = _MEBIBYTE
"""Bytes that a message of a method may have that is not named below."""
_LARGE: Mapping[str, int | None] = {
    "/heddle.v1.FabricService/PutFabric": None,
    "/heddle.v1.DemandService/PutDemands": None,
    "/heddle.v1.DemandService/ReportRates": None,
    "/heddle.v1.PlanService/WhatIf": 16 * _MEBIBYTE,
    "/heddle.v1.AgentService/Session": 8 * _MEBIBYTE,
}
"""Bytes that a message of others may have; None is as many as any message."""

Read = Callable[[bytes], object]
Take = Callable[[AsyncIterator[bytes]], Awaitable[object]]


class Parsing(_Wrapping):
    """Innermost: between the other interceptors and the handler, which reads by itself."""

    @override
    def _wrap(self, path: str, handler: Handler) -> Handler:
        if handler.request_deserializer is None:
            return handler
        read = _reader(path, handler.request_deserializer)
        make, behaviour = kind_of(handler)
        if handler.request_streaming:
            fed = _fed(behaviour, partial(_many, read))
        else:
            make, fed = reading(handler), _fed(behaviour, partial(_one, read))
        return make(fed, None, handler.response_serializer)


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


def _fed(behaviour: Behaviour, take: Take) -> Behaviour:
    """The behaviour, given what is read of what is said."""
    if inspect.isasyncgenfunction(behaviour):

        async def generate(said: AsyncIterator[bytes], context: Context) -> AsyncIterator[object]:
            async with aclosing(behaviour(await take(said), context)) as out:
                async for response in out:
                    yield response

        return generate

    async def run(said: AsyncIterator[bytes], context: Context) -> object:
        return await behaviour(await take(said), context)

    return run


async def _one(read: Read, said: AsyncIterator[bytes]) -> object:
    """The one question, once it is there."""
    async for data in said:
        return read(data)
    raise refuse("request", "", "no message came: send the one that this method takes")


async def _many(read: Read, said: AsyncIterator[bytes]) -> AsyncIterator[object]:
    """Questions as they come."""
    return (read(data) async for data in said)
