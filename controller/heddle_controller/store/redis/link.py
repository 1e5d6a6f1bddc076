"""The connection to Redis: whether it can be had, and how it is had again.

After the first call that fails, or that is not answered in time, every further one is
refused at once: a slow server must not hang the callers of the API one after the other.
Meanwhile one task knocks, with growing, jittered pauses. When the server answers again,
those who have to look at what it has (``on_return``) do so before anybody else may use it.

Clients for each form of address, once it is known which server that is now.

Retries are ours (``link``), so the library's are off: a call that failed has to be seen to have
failed.
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
    """The server itself: whoever the sentinels, or the nodes of the cluster, say it is now.

    Raises:
        RedisError: nobody of them answers, or none knows.
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
    """What the library tells of the sentinels, in a line without its own representations."""
    hosts = ",".join(f"{host}:{port}" for host, port in address.hosts)
    trouble = told.rpartition("> - ")[2] if "> - " in told else "none of them knows it"
    return f"no master {address.service!r} by the sentinels {hosts}: {trouble}"


async def _find_in_cluster(address: Address, files: Files, timeout: float) -> Address:  # noqa: ASYNC109 - of each
    """The master of the slot that all our keys are in, by the first node that knows."""
    slot, trouble = key_slot(f"{{{address.name}}}".encode()), ""
    for host, port in random.sample(address.hosts, len(address.hosts)):  # one may be long silent
        node = replace(address, hosts=((host, port),), cluster=False)
        try:
            async with connect(node, files, timeout) as client:
                ranges: Any = await client.execute_command("CLUSTER", "SLOTS")  # type: ignore[no-untyped-call]
        except (RedisError, OSError) as error:
            trouble = str(error)
            continue
        for first, last, (at, at_port, *_), *_replicas in ranges:
            if first <= slot <= last:
                # A node that does not know by which name it is reached leaves that out.
                return replace(node, hosts=((at.decode() if at else host, at_port),))
        trouble = f"{host}:{port} knows no node that has slot {slot}"
    raise ClusterDownError(trouble)


def connect(address: Address, files: Files, timeout: float, block: float = 0.0) -> Redis:
    """A client; connections are made when they are first needed.

    Args:
        address: Where: what ``find`` found.
        files: For TLS.
        timeout: Seconds that a server may take to answer, or to be connected to.
        block: Seconds more for a client whose calls wait in the server.
    """
    options = _options(address, files, timeout, block)
    if address.path:
        # Redis(unix_socket_path=...) would not pass on the time that connecting may take.
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
"""For which a call may wait in the server."""
FIRST_PAUSE, LAST_PAUSE = 0.05, 1.0
"""Seconds between knocks."""
WHY_MOST = 160
"""Characters of an error that are worth telling."""
AWAY = (
    AskError,  # and MovedError: our slot is, or is to be, with another node of the cluster
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
    """One server, or whichever is the master now."""

    def __init__(
        self, address: Address, files: Files, timeout: float, patience: float = 0.0
    ) -> None:
        """A link that is up until a call fails.

        Args:
            address: Of the server, or of the sentinels that know it.
            files: For TLS.
            timeout: Seconds within which the server has to answer a call.
            patience: Seconds for which a server that is older than the one before is
                not believed to be the one: the right one may still be found.
        """
        self._address = address
        self._files = files
        self.name = str(address)
        """Of the server, for people; without a password."""
        self.timeout = timeout
        self.patience = patience
        self.on_return: list[Callable[[], Awaitable[None]]] = []
        """Called, in order, when the server is there again, before others may use it."""
        self.returned = asyncio.Event()
        """Set while the server can be used."""
        self.returned.set()
        self.why = ""
        self.closed = False
        self.ending = False
        """Set before ``closed``: what was begun is finished, nobody waits any longer."""
        self.losses = 0
        self._under_way = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._client: Redis | None = None
        self._blocking: Redis | None = None
        self._old: list[tuple[float, Redis]] = []
        """Clients of before, which may have calls under way, and when they have none."""
        self._heard = time.monotonic()
        self._knocking: asyncio.Task[None] | None = None

    @property
    def up(self) -> bool:
        """Whether calls are let through."""
        return self.returned.is_set() and not self.closed

    def silent_for(self) -> float:
        """Seconds since the server was last heard, while it is away; otherwise 0."""
        return 0.0 if self.up else max(time.monotonic() - self._heard, 1e-3)

    async def call(
        self, make: Callable[[Redis], Awaitable[_Answer]], *, inner: bool = False
    ) -> _Answer:
        """What ``make`` answers, within the time.

        Args:
            make: Speaks to the server.
            inner: Whether to try even while the server counts as away.

        Raises:
            Unavailable: the server is away, or did not answer in time, and then it may
                have done what it was asked or not.
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
            if client is self._client:  # not of one that has been given up already
                self.lost(error)
            raise self.refusal() from error
        except RedisError as error:
            raise Unavailable(f"store {self.name}: {error}") from error
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()
        self.heard()
        if asked_to_end() > asked:  # the library may take a cancellation for an answer
            raise asyncio.CancelledError
        return answer

    async def _find(self) -> Redis:
        """A client of whichever is the server now; the one before is given up.

        All connections of one client are to one server: a mixture of two masters, the old
        one and the new, would answer each question by the other's facts.
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
        """Let go of clients whose calls are over."""
        over = [client for end, client in self._old if end <= now]
        self._old = [(end, client) for end, client in self._old if end > now]
        for client in over:
            await client.aclose()

    @property
    def blocking(self) -> Redis:
        """A client of the same server whose calls may wait there, ``BLOCK_SECONDS`` at most."""
        if self._blocking is None:
            raise self.refusal()
        return self._blocking

    def check(self, *, inner: bool = False) -> None:
        """Nothing while the server can be used. Raises ``Unavailable``."""
        if self.closed:
            raise Unavailable(f"store {self.name}: closed, the controller is stopping")
        if not inner and not self.returned.is_set():
            raise self.refusal()

    def refusal(self) -> Unavailable:
        """What callers are told while the server is away."""
        return Unavailable(f"store {self.name} is away: {self.why}", LAST_PAUSE)

    def heard(self) -> None:
        """The server answered; while it is looked at, that does not count."""
        if self.up:
            self._heard = time.monotonic()

    def lost(self, error: BaseException) -> None:
        """A call failed: refuse the next ones, and knock."""
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
            # Jitter, so that all replicas do not come at the same moment.
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
        """No more calls."""
        self.ending = self.closed = True
        if self._knocking is not None:
            await end(self._knocking)
        await self._idle.wait()  # what is under way when a client is closed is never let go of
        self._old += [(0.0, one) for one in (self._client, self._blocking) if one is not None]
        await self._drop(float("inf"))


def _words(error: BaseException) -> str:
    """What went wrong in one line; the library's own can be pages."""
    return " ".join(str(error).split())[:WHY_MOST] or "no answer in time"


async def _usable(client: Redis) -> None:
    """Nothing if the server can be written. Raises what says that it cannot."""
    role = await client.execute_command("ROLE")  # type: ignore[no-untyped-call]
    if role[0] != b"master":
        raise ReadOnlyError(f"is a {role[0].decode()} now")
