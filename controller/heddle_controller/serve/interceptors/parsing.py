"""Bytes that are no message are refused like any other malformed request.

gRPC parses before the handlers run, and what fails there passes all interceptors
by: it would end in UNKNOWN and a traceback in the log. So parsing only notes the
failure, and the handler, inside the interceptors, raises it.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from heddle_controller.model.errors import refuse
from heddle_controller.serve.interceptors.around import Behaviour, Context, Handler, kind_of


@dataclass(frozen=True, slots=True)
class Unparsed:
    """Stands for a message that could not be parsed."""

    size: int


class Parsing(aio.ServerInterceptor):
    """Innermost: between the other interceptors and the handler."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler with a parser that never raises; an unknown method has none."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        make, behaviour = kind_of(handler)
        wrapped = _wrapped(behaviour, _checked_stream if handler.request_streaming else _checked)
        return make(wrapped, _lenient(handler.request_deserializer), handler.response_serializer)


def _lenient(parse: Callable[[bytes], object]) -> Callable[[bytes], object]:
    def lenient(data: bytes) -> object:
        try:
            return parse(data)
        except DecodeError:
            return Unparsed(len(data))

    return lenient


def _wrapped(behaviour: Behaviour, check: Callable[[Any], object]) -> Behaviour:
    if inspect.isasyncgenfunction(behaviour):

        async def generate(request: object, context: Context) -> AsyncIterator[object]:
            async with aclosing(behaviour(check(request), context)) as out:
                async for response in out:
                    yield response

        return generate

    async def run(request: object, context: Context) -> object:
        return await behaviour(check(request), context)

    return run


def _checked(request: object) -> object:
    if isinstance(request, Unparsed):
        reason = f"{request.size} bytes are not the message this method takes: see heddle.v1"
        raise refuse("request", "", reason)
    return request


async def _checked_stream(requests: AsyncIterator[object]) -> AsyncIterator[object]:
    async for request in requests:
        yield _checked(request)
