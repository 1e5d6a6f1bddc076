"""The one gRPC interceptor: layers around the handler of each call, and parsing of requests.

gRPC knows four kinds of methods, and handlers of two kinds (generators, and coroutines that write
by themselves). Here all become coroutines, so a layer is one, too: it awaits the rest of the call.
gRPC sees all layers as one interceptor and handlers are wrapped once, not for each call, because
there are thousands of streams, and the garbage collector visits whatever each of them keeps.

gRPC would parse a request before any handler runs. Bytes that are no message would bypass all
layers, end in UNKNOWN and leave a traceback in the log, and a stranger could have megabytes held
and parsed. So gRPC is given no parser, and is told that every method takes a stream of requests:
it takes in nothing beyond the stream's window until authentication and limits have let the call
pass. What parsing raises is raised inside the layers. Each method limits the size of its messages,
because parsing blocks the event loop.
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias, cast

import grpc
from google.protobuf.message import DecodeError
from grpc import aio
from typing_extensions import override

from heddle_controller.model.errors import refuse
from heddle_controller.serve.errors import exhausted

Context = aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"  # not subscriptable when run
Rest = Callable[[], Awaitable[object]]
"""What is inside a layer: the next layer, or the handler."""


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
        return cls(service, name, bool(handler.request_streaming or handler.response_streaming))


class CallLayer(abc.ABC):
    """Something that happens around every call."""

    @abc.abstractmethod
    async def around(self, method: Method, context: Context, rest: Rest) -> object:
        """Await the rest of the call, and give the answer that it gives, if it gives one."""


class Around(aio.ServerInterceptor):
    """Wraps the handler of every call in all layers, the first outermost."""

    def __init__(self, *layers: CallLayer) -> None:
        self._layers = layers
        self._wrapped: dict[str, Handler] = {}
        """By path."""

    @override
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
"""Bytes that a message of a method may have that is not named below."""
_LARGE: Mapping[str, int | None] = {
    "/heddle.v1.FabricService/PutFabric": None,
    "/heddle.v1.DemandService/PutDemands": None,
    "/heddle.v1.DemandService/ReportRates": None,
    "/heddle.v1.PlanService/WhatIf": 16 * _MEBIBYTE,
    "/heddle.v1.AgentService/Session": 8 * _MEBIBYTE,
}
"""Bytes that a message of others may have; None is as many as any message."""

Said = AsyncIterator[bytes]
"""The requests of a call as they come."""
Read = Callable[[bytes], object]
Behaviour = Callable[[Any, Context], Any]
"""What a handler runs: gives an awaitable, or an asynchronous generator."""


def _answering(path: str, handler: Handler) -> Callable[[Said, Context], Awaitable[object]]:
    """A coroutine that parses what is said, and does what the handler does."""
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
                del response  # while nothing is said, nothing of what was said is held on to

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
    """The one request, once it is there."""
    async for data in said:
        return read(data)
    raise refuse("request", "", "no message came: send the one that this method takes")


async def _many(read: Read, said: Said) -> AsyncIterator[object]:
    """Requests as they come."""
    async for data in said:
        yield read(data)
