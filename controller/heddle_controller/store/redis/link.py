"""The connection to Redis: it notices when the server is lost, and reconnects.

After the first call that fails or is not answered in time, all further calls are refused at once. A
slow server must not block one caller of the API after another. Meanwhile one task tries to
reconnect, with growing pauses that have jitter. When the server answers again, the callbacks in
``on_return`` check its content before anybody else may use it.

The module also makes clients for each form of address, after finding out which server it means now.
The retries of the client library are off, because ``Link`` must see each call that fails.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, TypeVar

import structlog
from redis.asyncio import ConnectionPool, Redis, UnixDomainSocketConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,  # noqa: A004 - the library's
    MasterDownError,
    ReadOnlyError,
    RedisError,
    TimeoutError,  # noqa: A004 - the library's
    TryAgainError,
)

from heddle_controller.state.errors import Unavailable
from heddle_controller.store.applier import asked_to_end, end
from heddle_controller.store.redis.address import Address, Files


async def find(address: Address, files: Files, timeout: float) -> Address:  # noqa: ASYNC109 - of each
    """Return the address of the server itself, as sentinels or cluster nodes name it now.

    Raises:
        RedisError: none of them answers, or none knows it.
    """
    if address.cluster:
        return await _find_in_cluster(address, files, timeout)
    if not address.service:
        return address
    options = _options(address, files, timeout)
    del options["db"], options["username"], options["password"]  # those are the server's
    sentinel = Sentinel(list(address.hosts), sentinel_kwargs=options)  # type: ignore[no-untyped-call]
    try:
        master = await sentinel.discover_master(address.service)
    except MasterNotFoundError as error:
        raise MasterNotFoundError(_nobody_knows(address, str(error))) from None
    finally:
        for client in sentinel.sentinels:
            await client.aclose()
    return replace(address, hosts=(master,), service="")


def _nobody_knows(address: Address, told: str) -> str:
    """Return what the library says about the sentinels, in one readable line."""
    hosts = ",".join(f"{host}:{port}" for host, port in address.hosts)
    trouble = told.rpartition("> - ")[2] if "> - " in told else "none of them knows it"
    return f"no master {address.service!r} by the sentinels {hosts}: {trouble}"


async def _find_in_cluster(address: Address, files: Files, timeout: float) -> Address:  # noqa: ASYNC109 - of each
    """Return the master of the slot of all our keys, as the first node that answers names it."""
    slot, trouble = key_slot(f"{{{address.name}}}".encode()), ""
    for host, port in random.sample(address.hosts, len(address.hosts)):  # one may be down for long
        node = replace(address, hosts=((host, port),), cluster=False)
        try:
            async with connect(node, files, timeout) as client:
                ranges: Any = await client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
        except (RedisError, OSError) as error:
            trouble = str(error)
            continue
        for first, last, (at, at_port, *_), *_replicas in ranges:
            if first <= slot <= last:
                # A node that does not know its own host name leaves it out.
                return replace(node, hosts=((at.decode() if at else host, at_port),))
        trouble = f"{host}:{port} knows no node that has slot {slot}"
    raise ClusterDownError(trouble)


def connect(address: Address, files: Files, timeout: float, block: float = 0.0) -> Redis:
    """Return a client. It connects when it is first used.

    Args:
        address: The server, as returned by ``find``.
        files: PEM files for TLS.
        timeout: Seconds that the server may take to answer, and to accept a connection.
        block: Additional seconds to answer, for a client whose calls wait in the server.
    """
    options = _options(address, files, timeout, block)
    if address.path:
        # Redis(unix_socket_path=...) would not pass on the timeout for connecting.
        return Redis.from_pool(
            ConnectionPool(UnixDomainSocketConnection, path=address.path, **options)
        )
    host, port = address.hosts[0]
    return Redis(host=host, port=port, **options)


def _options(address: Address, files: Files, timeout: float, block: float = 0.0) -> dict[str, Any]:
    return {
        "db": address.database,
        "username": address.username,
        "password": address.password,
        "socket_timeout": timeout + block,
        "socket_connect_timeout": timeout,
        "retry": Retry(NoBackoff(), 0),
        "protocol": 2,
        "client_name": "heddle-controller",
        **(_tls(files) if address.tls else {}),
    }


def _tls(files: Files) -> dict[str, Any]:
    paths = {"ssl_ca_certs": files.ca, "ssl_certfile": files.cert, "ssl_keyfile": files.key}
    given = {option: str(path) for option, path in paths.items() if path is not None}
    return {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True, **given}


log = structlog.stdlib.get_logger(__name__)

_Answer = TypeVar("_Answer")

BLOCK_SECONDS = 0.5
"""How long a call of the ``blocking`` client may wait in the server."""
FIRST_PAUSE, LAST_PAUSE = 0.05, 1.0
"""Seconds between attempts to reconnect."""
WHY_MOST = 160
"""Most characters of an error that are reported."""
AWAY = (
    AskError,  # and MovedError: our slot is on, or moves to, another node of the cluster
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    ConnectionError,
    MasterDownError,
    ReadOnlyError,
    TimeoutError,
    TryAgainError,
    OSError,
    asyncio.TimeoutError,
)


class Link:
    """The connection to one server, or to whichever server is the master now."""

    def __init__(
        self, address: Address, files: Files, timeout: float, patience: float = 0.0
    ) -> None:
        """Make a link, which counts as up until a call fails.

        Args:
            address: Address of the server, of its sentinels, or of nodes of its cluster.
            files: PEM files for TLS.
            timeout: Seconds within which the server must answer a call.
            patience: Seconds for which a server with older data than before is not accepted,
                because the right one may still be found.
        """
        self._address = address
        self._files = files
        self.name = str(address)
        """Name of the server for people, without the password."""
        self.timeout = timeout
        self.patience = patience
        self.on_return: list[Callable[[], Awaitable[None]]] = []
        """Called in order when the server is reachable again, before others may use it."""
        self.returned = asyncio.Event()
        """Set while the server can be used."""
        self.returned.set()
        self.why = ""
        self.closed = False
        self.ending = False
        """Set before ``closed``: work in progress is finished, but nobody waits for leadership
        or for the server any longer."""
        self.losses = 0
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._client: Redis | None = None
        self._blocking: Redis | None = None
        self._old: list[tuple[float, Redis]] = []
        """Earlier clients that may have calls in progress, and the time when these are over."""
        self._heard = time.monotonic()
        self._knocking: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        """Whether calls are allowed."""
        return self.returned.is_set() and not self.closed

    def silent_for(self) -> float:
        """Return the seconds since the server last answered while it is away, else 0."""
        return 0.0 if self.up else max(time.monotonic() - self._heard, 1e-3)

    async def call(
        self, make: Callable[[Redis], Awaitable[_Answer]], *, inner: bool = False
    ) -> _Answer:
        """Call the server and return its answer.

        Args:
            make: Makes the call on a client, within twice the ``timeout``.
            inner: Whether to try even while the server counts as away.

        Raises:
            Unavailable: the server is away, or refused the call, or did not answer in time. In
                the last case it may or may not have done what it was asked to do.
        """
        self.check(inner=inner)
        client, asked = self._client, asked_to_end()
        self._under_way += 1
        self._idle.clear()
        try:
            async with asyncio.timeout(2 * self.timeout):
                client = client or await self._find()
                answer = await make(client)
        except AWAY as error:
            if asked_to_end() > asked:
                raise asyncio.CancelledError from error
            if client is self._client:  # not an earlier client that was already replaced
                self.lost(error)
            raise self.refusal() from error
        except RedisError as error:
            raise Unavailable(f"store {self.name}: {error}") from error
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
        self.heard()
        if asked_to_end() > asked:  # the library may swallow a cancellation
            raise asyncio.CancelledError
        return answer

    async def _find(self) -> Redis:
        """Make and return a client of the present server, in place of the one before.

        All connections of a client lead to the same server. If some led to the old master and
        some to the new one, their answers would contradict each other.
        """
        found = await find(self._address, self._files, self.timeout)
        now = time.monotonic()
        await self._drop(now)
        over = now + 3 * self.timeout + BLOCK_SECONDS
        self._old += [(over, old) for old in (self._client, self._blocking) if old is not None]
        self._client = connect(found, self._files, self.timeout)
        self._blocking = connect(found, self._files, self.timeout, BLOCK_SECONDS)
        return self._client

    async def _drop(self, now: float) -> None:
        """Close the earlier clients whose calls are over by the time ``now``."""
        over = [client for end, client in self._old if end <= now]
        self._old = [(end, client) for end, client in self._old if end > now]
        for client in over:
            await client.aclose()

    @property
    def blocking(self) -> Redis:
        """A client whose calls may wait in the server for up to ``BLOCK_SECONDS``.

        Raises ``Unavailable`` if there is none yet.
        """
        if self._blocking is None:
            raise self.refusal()
        return self._blocking

    def check(self, *, inner: bool = False) -> None:
        """Raise ``Unavailable`` if the server cannot be used now."""
        if self.closed:
            raise Unavailable(f"store {self.name}: closed, the controller is stopping")
        if not inner and not self.returned.is_set():
            raise self.refusal()

    def refusal(self) -> Unavailable:
        """Return the error that callers get while the server is away."""
        return Unavailable(f"store {self.name} is away: {self.why}", LAST_PAUSE)

    def heard(self) -> None:
        """Note that the server answered. This does not count while it is still being checked."""
        if self.up:
            self._heard = time.monotonic()

    def lost(self, error: BaseException) -> None:
        """Note that a call failed: refuse further calls, and try to reconnect."""
        if self.closed:
            return
        self.why = _words(error)
        if self.returned.is_set():
            log.error("store lost", store=self.name, why=self.why)
            self.losses += 1
            self.returned.clear()
        if self._knocking is None or self._knocking.done():
            self._knocking = asyncio.create_task(self._knock(), name="store knock")

    async def _knock(self) -> None:
        pause = FIRST_PAUSE
        while not self.closed:
            # Jitter, so that not all replicas try at the same moment.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 - not a secret
            pause = min(2 * pause, LAST_PAUSE)
            try:
                async with asyncio.timeout(2 * self.timeout):
                    await self._find()
                await self.call(_usable, inner=True)
                for look in self.on_return:
                    await look()
            except (Unavailable, *AWAY) as error:
                self.why = _words(error.__cause__ or error)
            except Exception as fault:
                log.exception("store cannot be taken up again", store=self.name)
                self.why = str(fault)
            else:
                log.warning("store is back", store=self.name, away_seconds=self.silent_for())
                self.returned.set()
                self.heard()
                return

    async def close(self) -> None:
        """Wait for calls in progress, and close all connections."""
        self.ending = self.closed = True
        if self._knocking is not None:
            await end(self._knocking)
        # Connections that are in use when a client is closed would never be released.
        await self._idle.wait()
        self._old += [(0.0, one) for one in (self._client, self._blocking) if one is not None]
        await self._drop(float("inf"))


def _words(error: BaseException) -> str:
    """Return an error in one short line. The library's messages can be very long."""
    return " ".join(str(error).split())[:WHY_MOST] or "no answer in time"


async def _usable(client: Redis) -> None:
    """Raise ``ReadOnlyError`` if the server is not a master."""
    role = await client.execute_command("ROLE")  # type: ignore[no-untyped-call]
    if role[0] != b"master":
        raise ReadOnlyError(f"is a {role[0].decode()} now")
