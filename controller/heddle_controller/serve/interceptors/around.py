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
