"""How bytes travel: the only difference between the blocking client and the asyncio one.

Everything above is written once, as coroutines. Those of ``BlockingWire`` never suspend, so
``finish`` runs them to their end without an event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Coroutine, Generator, Iterator
from contextlib import aclosing, contextmanager
from typing import Any, Protocol, TypeVar

import grpc
from google.protobuf.message import Message

Answer = TypeVar("Answer")
Metadata = tuple[tuple[str, str], ...]

MAX_MESSAGE_BYTES = 256 << 20
"""Large enough for a fabric of 24,576 NICs, which is one message."""
OPTIONS = [
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # the default is a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),  # so that a restarted controller is noticed soon
    ("grpc.min_reconnect_backoff_ms", 5000),  # time for a server that accepts but is silent
]


class Wire(Protocol):
    """Channels and calls of one kind, asyncio or blocking."""

    def open(self, address: str, credentials: grpc.ChannelCredentials | None) -> Any:  # noqa: ANN401 - a channel of its kind
        """Return a channel; gRPC connects with the first call."""

    async def unary(
        self,
        method: Any,  # noqa: ANN401 - of a channel of its kind
        request: Any,  # noqa: ANN401 - a message, or an iterator of them
        timeout: float | None,  # noqa: ASYNC109 - gRPC's own
        metadata: Metadata,
    ) -> tuple[Message, Any]:
        """Return one answer and the trailing metadata. Raises ``grpc.RpcError``."""
        raise NotImplementedError

    def stream(
        self,
        method: Any,  # noqa: ANN401 - as above
        request: Message,
        timeout: float | None,
        metadata: Metadata,
    ) -> AsyncGenerator[Message]:
        """Yield answers as they arrive; closing the generator tells the server to stop."""
        raise NotImplementedError

    async def sleep(self, seconds: float) -> None:
        """Wait so many seconds."""

    async def close(self, channel: Any) -> None:  # noqa: ANN401 - of its kind
        """Close a channel and end its calls."""


class AsyncioWire:
    """A ``Wire`` for asyncio: the event loop runs other tasks during a call."""

    def open(self, address: str, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
        """Implement ``Wire.open``."""
        if credentials is None:
            return grpc.aio.insecure_channel(address, OPTIONS)
        return grpc.aio.secure_channel(address, credentials, OPTIONS)

    async def unary(
        self,
        method: Any,  # noqa: ANN401 - a multi-callable
        request: Any,  # noqa: ANN401 - a message, or an iterator of them
        timeout: float | None,  # noqa: ASYNC109 - gRPC's own
        metadata: Metadata,
    ) -> tuple[Message, Any]:
        """Implement ``Wire.unary``."""
        call = method(request, timeout=timeout, metadata=metadata)
        with _cancelled_by_task():
            return await call, await call.trailing_metadata()

    async def stream(
        self,
        method: Any,  # noqa: ANN401 - a multi-callable
        request: Message,
        timeout: float | None,  # noqa: ASYNC109 - gRPC's own
        metadata: Metadata,
    ) -> AsyncGenerator[Message]:
        """Implement ``Wire.stream``."""
        call = method(request, timeout=timeout, metadata=metadata)
        try:
            with _cancelled_by_task():
                async for answer in call:
                    yield answer
        finally:
            call.cancel()

    async def sleep(self, seconds: float) -> None:
        """Implement ``Wire.sleep``."""
        await asyncio.sleep(seconds)

    async def close(self, channel: grpc.aio.Channel) -> None:
        """Implement ``Wire.close``."""
        await channel.close()


@contextmanager
def _cancelled_by_task() -> Iterator[None]:
    """Turn the cancellation of a call into an error, unless the task itself is cancelled.

    gRPC ends the calls of a channel that is closed as if their tasks were cancelled.
    """
    try:
        yield
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        none = grpc.aio.Metadata()
        raise grpc.aio.AioRpcError(grpc.StatusCode.CANCELLED, none, none) from None


class BlockingWire:
    """A ``Wire`` whose calls block. Its coroutines never suspend; see ``finish``."""

    def open(self, address: str, credentials: grpc.ChannelCredentials | None) -> grpc.Channel:
        """Implement ``Wire.open``."""
        if credentials is None:
            return grpc.insecure_channel(address, OPTIONS)
        return grpc.secure_channel(address, credentials, OPTIONS)

    async def unary(
        self,
        method: Any,  # noqa: ANN401 - a multi-callable
        request: Any,  # noqa: ANN401 - a message, or an iterator of them
        timeout: float | None,  # noqa: ASYNC109 - gRPC's own
        metadata: Metadata,
    ) -> tuple[Message, Any]:
        """Implement ``Wire.unary``."""
        answer, call = method.with_call(request, timeout=timeout, metadata=metadata)
        return answer, call.trailing_metadata()

    async def stream(
        self,
        method: Any,  # noqa: ANN401 - a multi-callable
        request: Message,
        timeout: float | None,  # noqa: ASYNC109 - gRPC's own
        metadata: Metadata,
    ) -> AsyncGenerator[Message]:
        """Implement ``Wire.stream``."""
        call = method(request, timeout=timeout, metadata=metadata)
        try:
            for answer in call:
                yield answer
        finally:
            call.cancel()

    async def sleep(self, seconds: float) -> None:
        """Implement ``Wire.sleep``."""
        time.sleep(seconds)  # noqa: ASYNC251 - it has no event loop

    async def close(self, channel: grpc.Channel) -> None:
        """Implement ``Wire.close``."""
        channel.close()


def finish(coroutine: Coroutine[Any, Any, Answer]) -> Answer:
    """Run a coroutine over a ``BlockingWire`` to its end and return its result."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: Answer = end.value
        return result
    coroutine.close()
    raise RuntimeError("a call that blocks was suspended")


def each(answers: AsyncGenerator[Answer]) -> Generator[Answer]:
    """Yield the items of an asynchronous generator over a ``BlockingWire``."""

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
