"""Calls that survive a controller: several addresses, deadlines, retries, request ids.

``Calls`` is what the generated stubs take for a channel. Every controller of a fabric answers every
call, as they share one store; which of them leads is their affair. So a call goes to the address
that answered last, and to the next one where nobody answers there. Repeating is safe: what changes
something has a request id, which is made once a call and is the same in each attempt.
"""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message

from heddle.client.credentials import SOCKET, Credentials
from heddle.client.errors import HeddleError, TimedOut, Unavailable, Unreachable, error_of
from heddle.client.wire import Wire
from heddle.freshness import AGE, STALE
from heddle.text import split_address

PAUSE = 0.05
"""Seconds between the first rounds over all addresses; doubles up to ``LONGEST_PAUSE``."""
LONGEST_PAUSE = 1.0
NOT_AGAIN = {"PLANNER_LOST"}
"""Reasons of UNAVAILABLE where the question itself may be what failed the controller."""


def split_addresses(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """Addresses of "a:7400,b:7400", or of several such texts; "unix:PATH" is a socket's.

    Raises:
        ValueError: in words, when there is none, or one has another form.
    """
    texts = [addresses] if isinstance(addresses, str) else addresses
    found = tuple(part.strip() for text in texts for part in text.split(","))
    for address in found or ("",):
        if not address.startswith(SOCKET):
            split_address(address)
    return found


@dataclass(eq=False)
class Calls:
    """Calls to the controllers of one installation."""

    wire: Wire
    addresses: tuple[str, ...]
    credentials: Credentials
    timeout: float
    """Seconds a call may take in all, attempts and pauses together."""
    patience: float
    """Of these, how long a controller that answers is looked for; 0: each address once."""
    note: Callable[[str, str], None]
    """Hears a word and a text: "stale", an answer is of the past; "lost", a watch broke."""
    current: int = 0
    """Index of the address that answered last."""
    reached: bool = False
    """Whether any has answered."""
    _channels: dict[int, Any] = field(default_factory=dict)
    _metadata: tuple[tuple[str, str], ...] | None = None

    def unary_unary(self, path: str, **how: Any) -> Callable[..., Any]:  # noqa: ANN401 - gRPC's
        """As a channel has it: a callable of one request, for one answer."""
        return _Unary(self, "unary_unary", path, how)

    def stream_unary(self, path: str, **how: Any) -> Callable[..., Any]:  # noqa: ANN401 - gRPC's
        """As a channel has it: a callable of several requests, for one answer."""
        return _Unary(self, "stream_unary", path, how)

    def unary_stream(self, path: str, **how: Any) -> Callable[..., Any]:  # noqa: ANN401 - gRPC's
        """As a channel has it: a callable of one request, for answers as they come."""
        return _Stream(self, "unary_stream", path, how)

    def stream_stream(self, path: str, **_: Any) -> Callable[..., Any]:  # noqa: ANN401 - gRPC's
        """As a channel has it; nothing that a client calls is of this kind."""
        raise NotImplementedError(path)

    async def close(self) -> None:
        """End all calls."""
        for channel in self._channels.values():
            await self.wire.close(channel)
        self._channels.clear()

    def method(self, kind: str, path: str, how: dict[str, Any]) -> Any:  # noqa: ANN401 - gRPC's
        """The method at the present address."""
        if self.current not in self._channels:
            address, credentials = self.addresses[self.current], self.credentials.of_channel()
            self._channels[self.current] = self.wire.open(address, credentials)
        return getattr(self._channels[self.current], kind)(path, **how)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """What every call brings along; a token is read once."""
        if self._metadata is None:
            self._metadata = self.credentials.metadata(self.addresses)
        return self._metadata

    def failed(self, error: grpc.RpcError) -> HeddleError:
        """What an attempt at the present address ended in."""
        call: Any = error
        self.tell_age(call.trailing_metadata())
        return error_of(call, self.addresses[self.current])

    def tell_age(self, trailing: Iterable[Any] | None) -> None:
        """Say so where an answer is of the past."""
        marks = dict(trailing or ())
        if marks.get(STALE) == "true":
            age = str(marks.get(AGE, "some"))
            self.note("stale", f"the controller's store is away: this is of {age} s ago")


class Search:
    """One call's search for a controller that answers it."""

    def __init__(self, calls: Calls, timeout: float | None) -> None:
        """``timeout``: seconds for all of it; None: no limit."""
        now = time.monotonic()
        self._calls = calls
        self._end = math.inf if timeout is None else now + timeout
        self._seek = min(self._end, now + calls.patience)
        self._tried, self._pause = 0, PAUSE

    @property
    def left(self) -> float | None:
        """Seconds until the end; None: no limit."""
        return None if math.isinf(self._end) else max(0.0, self._end - time.monotonic())

    async def after(self, error: HeddleError) -> None:
        """Go on to the next attempt, after a pause where all addresses were tried.

        Raises:
            HeddleError: the error itself, where there is no use or no time for another one.
        """
        if not may_pass(error):
            raise error
        self._tried += 1
        pause = error.retry_after
        if isinstance(error, Unreachable | Unavailable):
            self._calls.current = (self._calls.current + 1) % len(self._calls.addresses)
            if self._tried % len(self._calls.addresses):
                return
            if pause is None:
                pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        if time.monotonic() + (pause or 0.0) >= self._seek:
            raise error
        await self._calls.wire.sleep(pause or 0.0)


def may_pass(error: HeddleError) -> bool:
    """Whether the same call may succeed a little later, or at another controller."""
    if isinstance(error, Unreachable):
        return True
    if isinstance(error, Unavailable):
        return error.reason not in NOT_AGAIN
    return error.code is grpc.StatusCode.RESOURCE_EXHAUSTED and error.retry_after is not None


@dataclass(frozen=True, slots=True)
class _Unary:
    calls: Calls
    kind: str
    path: str
    how: dict[str, Any]

    async def __call__(self, request: Any, timeout: float | None = None) -> Message:  # noqa: ANN401, ASYNC109 - a message or several; gRPC's own
        """The answer; the last attempt's error where there is none."""
        if isinstance(request, Message):
            asked = [with_request_id(request)]
        else:
            asked = list(request)  # an attempt after the first says the same again
            asked[:1] = map(with_request_id, asked[:1])
        limit = self.calls.timeout if timeout is None else timeout
        search = Search(self.calls, limit)
        while True:
            method = self.calls.method(self.kind, self.path, self.how)
            given = asked[0] if isinstance(request, Message) else iter(asked)
            try:
                left = search.left or 0.0
                answer, trailing = await self.calls.wire.unary(
                    method, given, left, self.calls.metadata
                )
            except grpc.RpcError as error:
                await search.after(self._failed(error))
            else:
                self.calls.reached = True
                self.calls.tell_age(trailing)
                return answer

    def _failed(self, error: grpc.RpcError) -> HeddleError:
        failed = self.calls.failed(error)
        failed.__cause__ = error
        return failed


@dataclass(frozen=True, slots=True)
class _Stream:
    calls: Calls
    kind: str
    path: str
    how: dict[str, Any]

    async def __call__(
        self,
        request: Message,
        timeout: float | None = None,  # noqa: ASYNC109 - gRPC's own
    ) -> AsyncGenerator[Message]:
        """Answers as they come, until the first error after the first of them."""
        search, begun = Search(self.calls, timeout), False
        while True:
            method = self.calls.method(self.kind, self.path, self.how)
            stream = self.calls.wire.stream(method, request, search.left, self.calls.metadata)
            try:
                async for answer in stream:
                    begun = self.calls.reached = True
                    yield answer
            except grpc.RpcError as error:
                failed = self.calls.failed(error)
                failed.__cause__ = error
                if begun:
                    raise failed from error
                await search.after(failed)
            else:
                return
            finally:
                await stream.aclose()


def with_request_id(message: Message) -> Message:
    """The message with an id of its own, where it has a field for one and none in it."""
    if "request_id" not in message.DESCRIPTOR.fields_by_name or getattr(message, "request_id"):  # noqa: B009 - known to be there
        return message
    named = type(message)()
    named.CopyFrom(message)
    setattr(named, "request_id", uuid.uuid4().hex)  # noqa: B010 - as above
    return named


def timed_out(what: str, calls: Calls) -> TimedOut:
    """The error of something that took too long."""
    address = calls.addresses[calls.current]
    return TimedOut(what, code=grpc.StatusCode.DEADLINE_EXCEEDED, address=address)
