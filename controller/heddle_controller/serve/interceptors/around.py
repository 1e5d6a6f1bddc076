"""One interceptor for all that is done around the handler of a call, layer by layer.

gRPC knows four kinds of methods, and for streaming ones two kinds of handlers
(generators, and coroutines that write by themselves). A layer says only what
happens around a call; this module knows the kinds. To gRPC all layers are one
interceptor: each of its own would keep a dozen objects for every stream, of which
there are thousands.
"""

from __future__ import annotations

import abc
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
from grpc import aio

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


class Layers(aio.ServerInterceptor):
    """Wraps the handler of every call in all layers, the first outermost."""

    def __init__(self, *layers: Around) -> None:
        self._layers = layers

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler of the call, wrapped; an unknown method has none."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = Method.of(handler_call_details.method, handler)
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
