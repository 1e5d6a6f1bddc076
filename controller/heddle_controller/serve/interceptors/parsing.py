"""Reads what clients say, once auth and limits have let the call pass, and no more than it may say.

gRPC would parse before the handlers run: bytes that are no message would pass all
interceptors by, end in UNKNOWN and leave a traceback in the log, and a stranger could have
megabytes parsed. So gRPC is given no parser, and calls with one question are turned into
calls that read it themselves (``around.Reading``); all that is raised here is raised inside
the other interceptors.

How much a message may hold depends on the method: to parse takes the interpreter, and nobody
else is answered meanwhile.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from functools import partial

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from heddle_controller.model.errors import refuse
from heddle_controller.serve.errors import exhausted
from heddle_controller.serve.interceptors.around import (
    Behaviour,
    Context,
    Handler,
    kind_of,
    reading,
)

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


class Parsing(aio.ServerInterceptor):
    """Innermost: between the other interceptors and the handler."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler | None:
        """The handler, made to read by itself; an unknown method has none."""
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        read = _reader(handler_call_details.method, handler.request_deserializer)
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
