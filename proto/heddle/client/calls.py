"""Calls that survive the loss of a controller: several addresses, deadlines, retries, request ids.

``Calls`` takes the place of a channel in generated stubs. All controllers of a fabric share one
store, so each of them answers every call, whoever leads. A call goes to the address that answered
last, and to the next one if nobody answers there. Repeating a call is safe: every call that changes
something has a request id, which is the same in all its attempts.
"""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.message import Message

from heddle.client.credentials import SOCKET, Credentials, CredentialsError
from heddle.client.errors import (
    Closed,
    HeddleError,
    NotAllowed,
    TimedOut,
    Unavailable,
    Unreachable,
    error_of,
)
from heddle.client.wire import Wire
from heddle.freshness import AGE, STALE
from heddle.text import split_address

PAUSE = 0.05
"""Seconds to pause after the first round over all addresses; doubles up to ``LONGEST_PAUSE``."""
LONGEST_PAUSE = 1.0
NO_LIMIT = 1e9
"""Seconds from which a limit is none: gRPC takes no deadline that is too far away."""
NOT_AGAIN = {"PLANNER_LOST"}
"""Reasons of UNAVAILABLE where the call itself may be what broke the controller."""


def split_addresses(addresses: str | Iterable[str]) -> tuple[str, ...]:
    """Return the addresses in "a:7400,b:7400" or in several such texts; "unix:PATH" is a socket.

    Raises:
        ValueError: There is no address, or one has another form; the message says what to write.
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
    """Most seconds a call may take in all, with all attempts and pauses."""
    patience: float
    """How many of these seconds to look for a controller that answers; 0: each address once."""
    note: Callable[[str, str], None]
    """Called with a word and a text: "stale" for an outdated answer, "lost" for a broken watch."""
    current: int = 0
    """Index of the address that answered last."""
    reached: bool = False
    """Whether any controller has answered a call."""
    closed: bool = False
    """Whether the client was closed: it makes no more calls."""
    _channels: dict[int, Any] = field(default_factory=dict)
    """Channels for attempts that begin now, by index of the address."""
    _users: dict[Any, int] = field(default_factory=dict)
    """How many attempts use each open channel, also those with credentials that were renewed."""
    _lock: threading.RLock = field(default_factory=threading.RLock)
    """Held while a channel is opened: ``close`` ends only calls of channels that it knows.

    The garbage collector may end a watch that nobody refers to while its own thread holds this."""
    _contents: tuple[bytes | None, ...] | None = None
    _metadata: tuple[tuple[str, str], ...] | None = None

    def unary_unary(self, path: str, **how: Any) -> Callable[..., Any]:  # noqa: ANN401 - gRPC's
        """Implement ``grpc.Channel.unary_unary``: a callable with one request and one answer."""
        return _Unary(self, "unary_unary", path, how)

    def stream_unary(self, path: str, **how: Any) -> Callable[..., Any]:  # noqa: ANN401 - gRPC's
        """Implement ``grpc.Channel.stream_unary``: a callable with many requests and one answer."""
        return _Unary(self, "stream_unary", path, how)

    def unary_stream(self, path: str, **how: Any) -> Callable[..., Any]:  # noqa: ANN401 - gRPC's
        """Implement ``grpc.Channel.unary_stream``: a callable with one request and many answers."""
        return _Stream(self, "unary_stream", path, how)

    def stream_stream(self, path: str, **_: Any) -> Callable[..., Any]:  # noqa: ANN401 - gRPC's
        """Implement ``grpc.Channel.stream_stream``, which no client uses."""
        raise NotImplementedError(path)

    async def close(self) -> None:
        """End all calls and close the channels."""
        with self._lock:
            self.closed = True
            self._channels.clear()
            channels, self._users = list(self._users), {}
        for channel in channels:
            await self.wire.close(channel)

    @asynccontextmanager
    async def channel(self, row: int) -> AsyncGenerator[Any]:
        """Yield the channel to an address, given its index, for one attempt.

        Raises:
            Closed: The client was closed.
        """
        with self._lock:
            if self.closed:
                raise closed()
            if row not in self._channels:
                credentials = self.credentials.of_channel()
                self._channels[row] = self.wire.open(self.addresses[row], credentials)
            channel = self._channels[row]
            self._users[channel] = self._users.get(channel, 0) + 1
        try:
            yield channel
        finally:
            with self._lock:
                if channel in self._users:  # else it was closed
                    self._users[channel] -= 1
            await self._close_old()

    async def _close_old(self) -> None:
        """Close channels with credentials that were renewed, once no attempt uses them."""
        with self._lock:
            used = {*self._channels.values()}
            every = self._users.copy()  # the collector may change it meanwhile
            old = [one for one, users in every.items() if not users and one not in used]
            old = [one for one in old if self._users.pop(one, None) is not None]
        for channel in old:
            await self.wire.close(channel)

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Metadata of every call. A token is read from its file once, until ``renewed``."""
        if self._metadata is None:
            self._metadata = self.credentials.metadata(self.addresses)
        return self._metadata

    @property
    def contents(self) -> tuple[bytes | None, ...]:
        """What the files of the credentials held when they were read for calls that begin now."""
        if self._contents is None:
            self._contents = self.credentials.contents()
        return self._contents

    async def renewed(self, error: HeddleError, used: tuple[bytes | None, ...]) -> bool:
        """Return whether a call failed with credentials that have been renewed since.

        If so, the next calls use the new ones. Files that cannot be used count as not renewed: they
        may be half written.

        Args:
            error: How the call failed.
            used: ``contents`` when it began.
        """
        if not isinstance(error, Unreachable | NotAllowed):
            return False
        with self._lock:
            if self._contents == used and not self.closed:
                try:
                    fresh = self.credentials.contents()
                    if fresh == used:
                        return False
                    self.credentials.of_channel()
                    self._metadata = self.credentials.metadata(self.addresses)
                except CredentialsError:
                    return False
                self._contents = fresh
                self._channels.clear()
            renewed = self._contents != used
        await self._close_old()
        return renewed

    def tell_age(self, trailing: Iterable[Any] | None) -> None:
        """Note with ``note`` that an answer is outdated, if its metadata says so."""
        marks = dict(trailing or ())
        if marks.get(STALE) == "true":
            age = str(marks.get(AGE, "some"))
            self.note("stale", f"the controller's store is away: this is of {age} s ago")


class Search:
    """One call's search for a controller that answers it.

    Calls of several threads or tasks search at the same time, so each has its own current address.
    """

    def __init__(self, calls: Calls, timeout: float | None) -> None:
        """Start the search; ``timeout`` is in seconds for all of it, None for no limit."""
        now = time.monotonic()
        self._calls, self._row = calls, calls.current
        self._contents: tuple[bytes | None, ...] = ()  # with which the last attempt was made
        self._end = math.inf if timeout is None else now + timeout
        self._seek = min(self._end, now + calls.patience)
        self._tried, self._pause = 0, PAUSE

    @property
    def left(self) -> float | None:
        """Seconds until the end; None means no limit."""
        left = self._end - time.monotonic()
        return None if left > NO_LIMIT else max(0.0, left)

    @asynccontextmanager
    async def method(self, kind: str, path: str, how: dict[str, Any]) -> AsyncGenerator[Any]:
        """Yield the method on the channel to the address of the next attempt, to call it there."""
        self._contents = self._calls.contents
        async with self._calls.channel(self._row) as channel:
            yield getattr(channel, kind)(path, **how)

    def answered(self) -> None:
        """Note that the current address answers: other calls go there first."""
        self._calls.current, self._calls.reached = self._row, True

    def failed(self, error: grpc.RpcError) -> HeddleError:
        """Return the exception for a failed attempt at the current address."""
        if self._calls.closed:
            return closed()
        call: Any = error
        self._calls.tell_age(call.trailing_metadata())
        failed = error_of(
            call,
            self._calls.addresses[self._row],
            self._calls.credentials,
            reached=self._calls.reached,
        )
        failed.__cause__ = error
        return failed

    async def after(self, error: HeddleError) -> None:
        """Return when it is time for the next attempt; pauses if all addresses were tried.

        Raises:
            HeddleError: ``error`` itself, if another attempt has no use or no time.
        """
        if await self._calls.renewed(error, self._contents):
            return
        if not may_pass(error):
            raise error
        self._tried += 1
        pause = error.retry_after
        if isinstance(error, Unreachable | Unavailable):
            self._row = (self._row + 1) % len(self._calls.addresses)
            if self._tried % len(self._calls.addresses):
                return
            if pause is None:
                pause, self._pause = self._pause, min(2 * self._pause, LONGEST_PAUSE)
        if time.monotonic() + (pause or 0.0) >= self._seek:
            raise error
        await self._calls.wire.sleep(pause or 0.0)


def may_pass(error: HeddleError) -> bool:
    """Return whether the same call may succeed a little later or at another controller."""
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
        """Return the answer; raise the error of the last attempt if there is none."""
        if isinstance(request, Message):
            asked = [with_request_id(request)]
        else:
            asked = list(request)  # kept, because later attempts send the same requests
            asked[:1] = map(with_request_id, asked[:1])
        limit = self.calls.timeout if timeout is None else timeout
        search = Search(self.calls, limit)
        while True:
            given = asked[0] if isinstance(request, Message) else iter(asked)
            try:
                async with search.method(self.kind, self.path, self.how) as method:
                    answer, trailing = await self.calls.wire.unary(
                        method, given, search.left, self.calls.metadata
                    )
            except grpc.RpcError as error:
                failed = search.failed(error)
                changes = any(map(_changes, asked[:1]))
                if isinstance(failed, TimedOut) and changes and not failed.told:
                    failed = _unsure(failed)
                await search.after(failed)
            else:
                search.answered()
                self.calls.tell_age(trailing)
                return answer


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
        """Yield answers as they arrive; an error is retried only before the first answer."""
        search, begun = Search(self.calls, timeout), False
        while True:
            try:
                async with (
                    search.method(self.kind, self.path, self.how) as method,
                    aclosing(
                        self.calls.wire.stream(method, request, search.left, self.calls.metadata)
                    ) as stream,
                ):
                    async for answer in stream:
                        begun = True
                        search.answered()
                        yield answer
            except grpc.RpcError as error:
                failed = search.failed(error)
                if begun:
                    raise failed from error
                await search.after(failed)
            else:
                return


def _changes(request: Message) -> bool:
    """Return whether a call with this request changes something: only such requests have an id."""
    return "request_id" in request.DESCRIPTOR.fields_by_name


def _unsure(error: TimedOut) -> TimedOut:
    """Return the error of a call that may have changed something although no answer came."""
    message = f"{error.message}, but it may have made the change"
    unsure = TimedOut(message, code=error.code, address=error.address)
    unsure.__cause__ = error.__cause__
    return unsure


def with_request_id(message: Message) -> Message:
    """Return the message with a new request id, if it has a field for one and that is empty."""
    if not _changes(message) or getattr(message, "request_id"):  # noqa: B009 - known to be there
        return message
    named = type(message)()
    named.CopyFrom(message)
    setattr(named, "request_id", uuid.uuid4().hex)  # noqa: B010 - as above
    return named


def closed() -> Closed:
    """Return the exception for calls of a client that was closed."""
    return Closed("the client is closed", code=grpc.StatusCode.CANCELLED)


def timed_out(what: str, calls: Calls) -> TimedOut:
    """Return the exception for something that took too long."""
    address = calls.addresses[calls.current]
    return TimedOut(what, code=grpc.StatusCode.DEADLINE_EXCEEDED, address=address)
