"""Who may call, and how often: the first checks of every call.

| transport | the caller shows | the caller is |
|---|---|---|
| TLS | a certificate of our authority | what its names say (``security.certificates``) |
| TLS, or this host | a bearer token | what the token file says (``security.files``) |
| plain text from this host | nothing | LOCAL: everyone on the controller's host is trusted |
| plain text from elsewhere | nothing | refused, or LOCAL with --insecure |

The server does not listen for plain text from other hosts, and every call is checked against the
same rule here, so that a forwarded port does not bypass it. A revoked certificate is refused
whatever else the caller shows. Then the table of permissions decides.

A call is checked once, and a stream may last for hours. So open streams are checked again when the
file of tokens or of revoked certificates has changed, and at intervals for tokens that have
expired. A stream that is no longer permitted ends with the reason.

Each client has a token bucket of calls and a number of concurrent streams. A client is an identity,
or a host if the caller shows no identity. So ``Limits`` come after ``Auth``. The number of
remembered clients is bounded. Beyond it, the client that was idle for longest and has no open
stream is forgotten. It would start with a full bucket again. Calls in plain text from the
controller's own host are not limited. The whole emulator may run in one process there, and anybody
on this host could stop the controller anyway.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import ip_address
from urllib.parse import unquote

import grpc
import structlog
from grpc import aio
from typing_extensions import override

from heddle_controller.serve import errors
from heddle_controller.serve.bucket import TokenBucket
from heddle_controller.serve.interceptors.around import (
    CallLayer,
    Context,
    Method,
    Rest,
    current_request,
)
from heddle_controller.serve.security.caller import (
    Caller,
    Role,
    current_caller,
    may_call,
    set_caller,
)
from heddle_controller.serve.security.certificates import Mapper, Names, names_of
from heddle_controller.serve.security.files import Revoked, TokenFile

log = structlog.stdlib.get_logger(__name__)

_LOOK_SECONDS = 2.0
"""Seconds between two looks at the files."""
ROUND_LOOKS = 15
"""After so many looks all streams are checked, even if no file changed."""
_AT_ONCE = 100
"""Streams that are checked before other tasks get a turn."""


@dataclass(frozen=True, slots=True, eq=False)
class Stream:
    """One open stream."""

    context: Context
    peer: str
    """The address that it comes from, for people."""
    task: asyncio.Task[object]
    check: Callable[[], None]
    """Raises ``Refusal`` if it may not go on; does not use the call, which may have ended."""


class OpenStreams:
    """All open streams of one server, which are checked again and again."""

    def __init__(self, stamp: Callable[[], object]) -> None:
        """``stamp`` returns a value that changes with the files that say who may call."""
        self._stamp = stamp
        self._streams: set[Stream] = set()

    async def having(
        self, context: Context, peer: str, check: Callable[[], None], rest: Rest
    ) -> object:
        """Await the rest of the call, which counts as an open stream until then."""
        task = asyncio.current_task()
        assert task is not None
        stream = Stream(context, peer, task, check)
        self._streams.add(stream)
        try:
            return await rest()
        finally:
            self._streams.discard(stream)

    async def run(self) -> None:
        """Check all streams when the files have changed, and at intervals, until cancelled."""
        before, looks = self._stamp(), 0
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            stamp, looks = self._stamp(), looks + 1
            if stamp != before or looks >= ROUND_LOOKS:
                before, looks = stamp, 0
                await self.look()

    async def look(self) -> None:
        """Check all streams, and end those that may not go on."""
        for number, stream in enumerate(list(self._streams)):
            if number % _AT_ONCE == _AT_ONCE - 1:
                await asyncio.sleep(0)
            try:
                stream.check()
            except errors.Refusal as refusal:
                await self._end(stream, refusal)

    async def _end(self, stream: Stream, refusal: errors.Refusal) -> None:
        if stream not in self._streams or stream.task.done():
            return  # it ended by itself meanwhile
        log.warning("stream ended", peer=stream.peer, why=refusal.message)
        with suppress(aio.AbortError, aio.BaseError, aio.UsageError):
            status = errors.with_request(errors.refused(refusal), "")
            await stream.context.abort_with_status(status)
        stream.task.cancel()


PLAIN_TEXT = errors.unauthenticated(
    "PLAIN_TEXT",
    "plain text is served to this host only: set up TLS, or start the controller with --insecure",
)
PLAIN_TOKEN = errors.unauthenticated(
    "PLAIN_TOKEN",
    "a token came over plain text, where others can read it: take it back, and use TLS",
)
BAD_TOKEN = errors.unauthenticated(
    "BAD_TOKEN",
    "the token is unknown or has expired: ask for a new one (heddle token new)",
)
NO_ROLE = errors.unauthenticated(
    "NO_ROLE",
    "neither a certificate that names a role nor a token was shown (the port for tokens asks for"
    " no certificate): see SECURITY.md for how to get one",
)
REVOKED = errors.unauthenticated(
    "REVOKED",
    "the certificate was revoked: ask for a new one",
)
CHANGED = errors.unauthenticated(
    "GRANT_CHANGED",
    "what the caller may do has changed: call again",
)
HEADER, SCHEME = "authorization", "bearer "


def peer_host(peer: str) -> str:
    """Return the host of a gRPC peer: ``ipv4:127.0.0.1:4711`` or ``ipv6:%5B::1%5D:4711``."""
    _, _, address = unquote(peer).partition(":")
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback address or the name localhost."""
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


@dataclass(frozen=True, slots=True)
class Shown:
    """What a caller shows, over gRPC or HTTP."""

    host: str
    """The address that it comes from."""
    secure: bool
    """Whether it comes over TLS."""
    own: bool
    """Whether it comes in plain text that does not leave this host."""
    names: Names
    """The names in its certificate."""
    certificates: tuple[bytes, ...] = ()
    """Its certificates as PEM."""
    token: str | None = None
    """Its bearer token; None if there is none, empty if the header has no bearer token."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Decides who a caller is."""

    insecure: bool = False
    """Whether plain text from other hosts is allowed."""
    mapper: Mapper = field(default_factory=Mapper)
    tokens: TokenFile | None = None
    revoked: Revoked | None = None
    origin: Callable[[str], str | None] | None = None
    """If there is a port for strangers: returns the client's address behind its connections."""

    def stamp(self) -> object:
        """Return a value that changes with the files of tokens and of revoked certificates."""
        return (
            self.tokens.stamp() if self.tokens else None,
            self.revoked.stamp() if self.revoked else None,
        )

    def shown(self, context: Context) -> Shown:
        """Return what the caller of a call shows.

        It is read once, when the call begins, because gRPC crashes if a call that has ended is
        asked for its peer.

        Raises:
            Refusal: behind a port for strangers, the connection did not come through that port.
        """
        peer, about = context.peer(), context.auth_context()
        secure = list(about.get("transport_security_type", ())) == [b"ssl"]
        host = peer_host(peer)
        if self.origin is not None and not secure:
            host = self._behind(peer)
            if not host:
                raise PLAIN_TEXT
            secure = True
        return Shown(
            host or peer,
            secure=secure,
            own=peer.startswith("unix:") or (not secure and is_loopback(host)),
            names=names_of(about) if secure else {},
            certificates=tuple(about.get("x509_pem_cert", ())),
            token=_token(context),
        )

    def judge(self, shown: Shown) -> Caller:
        """Return the caller who shows this.

        Raises:
            Refusal: the certificate is revoked or names two roles, the token is unknown or came in
                plain text, or plain text is not allowed.
        """
        if self.revoked and any(map(self.revoked.names, shown.certificates)):
            raise REVOKED
        if shown.token is not None:
            return self._bearer(shown.token, hidden=shown.secure or shown.own)
        if shown.secure:
            found = self.mapper.caller(shown.names)
            found = found if found.identity else Caller(Role.NOBODY, shown.host)
            return replace(found, certificate=next(iter(shown.certificates), b""))
        if shown.own or self.insecure:
            return Caller(Role.LOCAL, shown.host)
        raise PLAIN_TEXT

    def peer(self, context: Context) -> str:
        """Return the address that a call comes from, for people."""
        return self._behind(context.peer()) or context.peer()

    def _behind(self, peer: str) -> str:
        """Return the client behind a connection from the port for strangers; else empty."""
        return (self.origin(unquote(peer).removeprefix("unix:")) if self.origin else None) or ""

    def _bearer(self, token: str, *, hidden: bool) -> Caller:
        if not hidden:
            raise PLAIN_TOKEN
        caller = self.tokens.caller(token) if self.tokens else None
        if caller is None:
            raise BAD_TOKEN
        return caller


class Auth(CallLayer):
    """Refuses calls of callers who may not make them."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.standing = OpenStreams(admission.stamp)
        """The open streams; its ``run`` must be started."""

    @override
    async def around(self, method: Method, context: Context, rest: Rest) -> object:
        """Check the caller, and add its name to the call's log lines."""
        if not context.peer():  # the call has ended, so nobody is denied anything
            raise asyncio.CancelledError
        peer = self._admission.peer(context)
        structlog.contextvars.bind_contextvars(peer=peer)
        try:
            shown = self._admission.shown(context)
            caller = self._admission.judge(shown)
            structlog.contextvars.bind_contextvars(client=str(caller))
            _check(caller, method)
        except errors.Refusal as refusal:
            status = errors.with_request(errors.refused(refusal), current_request())
            await context.abort_with_status(status)
            raise  # not reached: aborting raises
        set_caller(caller)
        if not method.streams:
            return await rest()
        check = partial(self._again, caller, method, shown)
        return await self.standing.having(context, peer, check, rest)

    def _again(self, before: Caller, method: Method, shown: Shown) -> None:
        """Check the caller of an open stream again.

        Raises:
            Refusal: the caller would not be admitted now, or only as another caller.
        """
        caller = self._admission.judge(shown)
        _check(caller, method)
        if caller != before:
            raise CHANGED


def _check(caller: Caller, method: Method) -> None:
    check_role(caller, method.service, method.name)


def check_role(caller: Caller, service: str, method: str) -> None:
    """Raise ``Refusal`` unless the caller's role may call the method."""
    if may_call(caller.role, service, method):
        return
    if caller.role is Role.NOBODY:
        raise NO_ROLE
    message = f"{caller} may not call {service}/{method}"
    raise errors.denied("ROLE_DENIED", message, role=caller.role)


def _token(context: Context) -> str | None:
    for name, value in context.invocation_metadata() or ():
        if name == HEADER:
            text = value if isinstance(value, str) else value.decode(errors="replace")
            return text[len(SCHEME) :].strip() if text[: len(SCHEME)].lower() == SCHEME else ""
    return None


@dataclass(frozen=True, slots=True)
class Allowance:
    """What each client is allowed."""

    calls_per_second: float = 1000.0
    """Calls per second in the long run; 0 means no limit."""
    burst: float = 2000.0
    """Calls at once after a pause."""
    streams: int = 64
    """Streams that are open at the same time; 0 means no limit."""


@dataclass(slots=True)
class _Account:
    calls: TokenBucket
    streams: int = 0


class Budget:
    """The accounts of all clients: calls that they may make, and streams that are open."""

    def __init__(
        self,
        allowance: Allowance,
        now: Callable[[], float] = time.monotonic,
        remembered: int = 10_000,
    ) -> None:
        self._allowance = allowance
        self._now = now
        self._remembered = remembered
        self._accounts: OrderedDict[str, _Account] = OrderedDict()

    def call(self, client: str) -> float:
        """Take one call from a client's account; return 0.0, or the seconds until it has one."""
        if self._allowance.calls_per_second <= 0:
            return 0.0
        return self._account(client).calls.take(self._now())

    def open(self, client: str) -> bool:
        """Count a new stream and return True, or return False if the client has too many.

        Each counted stream needs a ``close``.
        """
        account = self._account(client)
        if 0 < self._allowance.streams <= account.streams:
            return False
        account.streams += 1
        return True

    def close(self, client: str) -> None:
        """Stop counting a stream."""
        account = self._accounts.get(client)
        if account is not None and account.streams > 0:
            account.streams -= 1

    def _account(self, client: str) -> _Account:
        account = self._accounts.get(client)
        if account is None:
            most = self._allowance
            calls = TokenBucket(most.burst, most.calls_per_second, self._now())
            account = self._accounts[client] = _Account(calls)
            self._forget()
        self._accounts.move_to_end(client)
        return account

    def _forget(self) -> None:
        """If there are too many accounts, drop the oldest that has no open stream."""
        if len(self._accounts) <= self._remembered:
            return
        for client, account in self._accounts.items():
            if not account.streams:
                del self._accounts[client]
                return


BUSY_SECONDS = 1.0
"""Seconds after which a client with too many streams is told to try again."""


class Limits(CallLayer):
    """Refuses calls beyond the limits with RESOURCE_EXHAUSTED and when to try again."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    @override
    async def around(self, method: Method, context: Context, rest: Rest) -> object:
        """Take the call from the caller's account, and run it if the account allows."""
        caller = current_caller()
        if _is_here(caller):
            return await rest()
        client = str(caller)
        if (wait := self._budget.call(client)) > 0:
            await _refuse(context, "RATE_LIMIT", "too many calls: slow down", wait)
        if not method.streams:
            return await rest()
        if not self._budget.open(client):
            text = "too many streams at once: end some first"
            await _refuse(context, "STREAM_LIMIT", text, BUSY_SECONDS)
        try:
            return await rest()
        finally:
            self._budget.close(client)


def _is_here(caller: Caller) -> bool:
    """Return whether a caller uses plain text from this host; other LOCAL callers are limited."""
    own = caller.identity.startswith("unix:") or is_loopback(caller.identity)
    return caller.role is Role.LOCAL and own


async def _refuse(context: Context, reason: str, message: str, seconds: float) -> None:
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    refusal = errors.Refusal(code, reason, message, retry_seconds=max(seconds, 0.001))
    status = errors.with_request(errors.refused(refusal), current_request())
    await context.abort_with_status(status)
