"""How bytes travel: the one thing in which a client that blocks differs from one of asyncio.

Everything above is written once, as coroutines. Those of ``BlockingWire`` never suspend, so
``finish`` runs them to their end without an event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import aclosing
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

Answer = TypeVar("Answer")
Metadata = tuple[tuple[str, str], ...]

MAX_MESSAGE_BYTES = 256 << 20
"""A fabric of 24,576 NICs is one message."""
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # else a ping under way has a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),  # who waits for a restart sees its end
    ("grpc.min_reconnect_backoff_ms", 5000),  # who accepts and says nothing has so long
]


class Wire(Protocol):
    """Channels and calls of one kind."""

    def open(self, address: str, credentials: grpc.ChannelCredentials | None) -> Any:  # noqa: ANN401 - a channel of its kind
        """A channel; gRPC connects with the first call."""

    async def unary(
        self,
        method: Any,  # noqa: ANN401 - of a channel of its kind
        request: Any,  # noqa: ANN401 - a message, or an iterator of them
        timeout: float,  # noqa: ASYNC109 - gRPC's own
        metadata: Metadata,
    ) -> tuple[Message, Any]:
        """One answer, and the trailing metadata. Raises ``grpc.RpcError``."""
        raise NotImplementedError

    def stream(
        self,
        method: Any,  # noqa: ANN401 - as above
        request: Message,
        timeout: float | None,
        metadata: Metadata,
    ) -> AsyncGenerator[Message]:
        """Answers as they come; the server is told when nobody asks any more."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        """Wait."""

    async def close(self, channel: Any) -> None:  # noqa: ANN401 - of its kind
        """End a channel and its calls."""


class AsyncioWire:
    """Calls that leave the event loop to others."""

    def open(self, address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        """See ``Wire``."""
        if credentials is None:
            return grpc.aio.insecure_channel(address, OPTIONS)
        return grpc.aio.secure_channel(address, credentials, OPTIONS)

    async def unary(
        self,
        method: Any,  # noqa: ANN401 - a multi-callable
        request: Any,  # noqa: ANN401 - a message, or an iterator of them
        timeout: float,  # noqa: ASYNC109 - gRPC's own
        metadata: Metadata,
    ) -> tuple[Message, Any]:
        """See ``Wire``."""
        call = method(request, timeout=timeout, metadata=metadata)
        return await call, await call.trailing_metadata()

    async def stream(
        self,
        method: Any,  # noqa: ANN401 - a multi-callable
        request: Message,
        timeout: float | None,  # noqa: ASYNC109 - gRPC's own
        metadata: Metadata,
    ) -> AsyncGenerator[Message]:
        """See ``Wire``."""
        call = method(request, timeout=timeout, metadata=metadata)
        try:
            async for answer in call:
                yield answer
        finally:
            call.cancel()

    async def sleep(self, seconds: float) -> None:
        """See ``Wire``."""
        await asyncio.sleep(seconds)

    async def close(self, channel: grpc.aio.Channel) -> None:
        """See ``Wire``."""
        await channel.close()


class BlockingWire:
    """Calls that return when they are done."""

    def open(self, address: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
        """See ``Wire``."""
        if credentials is None:
            return grpc.insecure_channel(address, OPTIONS)
        return grpc.secure_channel(address, credentials, OPTIONS)

    async def unary(
        self,
        method: Any,  # noqa: ANN401 - a multi-callable
        request: Any,  # noqa: ANN401 - a message, or an iterator of them
        timeout: float,  # noqa: ASYNC109 - gRPC's own
        metadata: Metadata,
    ) -> tuple[Message, Any]:
        """See ``Wire``."""
        answer, call = method.with_call(request, timeout=timeout, metadata=metadata)
        return answer, call.trailing_metadata()

    async def stream(
        self,
        method: Any,  # noqa: ANN401 - a multi-callable
        request: Message,
        timeout: float | None,  # noqa: ASYNC109 - gRPC's own
        metadata: Metadata,
    ) -> AsyncGenerator[Message]:
        """See ``Wire``."""
        call = method(request, timeout=timeout, metadata=metadata)
        try:
            for answer in call:
                yield answer
        finally:
            call.cancel()

    async def sleep(self, seconds: float) -> None:
        """See ``Wire``."""
        time.sleep(seconds)  # noqa: ASYNC251 - it has no event loop

    async def close(self, channel: grpc.Channel) -> None:
        """See ``Wire``."""
        channel.close()


def finish(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """What a coroutine over a ``BlockingWire`` comes to."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Answer = end.value
        return result
    coroutine.close()
    raise RuntimeError("a call that blocks was suspended")


def each(answers: AsyncGenerator[Answer]) -> Generator[Answer]:
    """The items of a generator over a ``BlockingWire``, one by one."""

    async def following() -> tuple[Answer, ...]:
        async for answer in answers:
            return (answer,)
        return ()

    async def end() -> None:
        async with aclosing(answers):
            pass

    try:
        while found := finish(following()):
            yield found[0]
    finally:
        finish(end())
