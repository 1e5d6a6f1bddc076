"""The Redis store: one server, or a master with replicas, shared by several controllers.

What is acknowledged is as durable as the server is set to be: with ``appendfsync
always`` it is on the disk, with ``everysec`` a machine that loses power may lose the last
second, without ``appendonly`` a server that ends loses what it had not saved. A master
that fails over loses what no replica had yet; ``Durability`` waits for replicas.
Everything a replica knows can be had again from the server and the agents.

What to do where a Redis cannot be had at the start: said by what was in the way.

Most of what fails at the first start is not a server that is down: a password that is
missing, an authority that is not the one, a file that is not there. Who is then told to
start the server looks in the wrong place.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.exceptions import AuthenticationError, ResponseError

from heddle_controller.state.errors import Unavailable, Unusable
from heddle_controller.store.applier import Bounds
from heddle_controller.store.redis.address import Files, parse_address
from heddle_controller.store.redis.applier import RedisApplier
from heddle_controller.store.redis.link import Link
from heddle_controller.store.redis.mirror import Mirror
from heddle_controller.store.redis.writes import FORM, Durability, Keys
from heddle_controller.store.store import Store

_START = "Start it, or name another with --store"
PASSWORD = "Give the user and the password that it wants: --store SCHEME://USER:PASSWORD@HOST"  # noqa: S105 - the form of one
TRUST = (
    "Name the authority that its certificate is of with --store-ca, and, where it asks for "
    "one, a certificate with --store-cert and --store-key"
)


CLOSED = "closed by server"
"""In what the library says of a connection that the server has ended."""


def redis_cure(error: BaseException, *, tls: bool) -> str:
    """What to do about a failed first call.

    Over ``tls`` a server that does not take our certificate says so only after we believe the
    connection made, and ends it: what arrives first, its word or the end, is a matter of luck.
    """
    behind = list(_behind(error))
    if any(isinstance(one, AuthenticationError) for one in behind):
        return PASSWORD
    if any(isinstance(one, ssl.SSLError) or (tls and _is_end(one)) for one in behind):
        return TRUST
    return _START


def _is_end(error: BaseException) -> bool:
    """Whether a connection that was made has been ended."""
    ends = ConnectionResetError, BrokenPipeError, EOFError
    return isinstance(error, ends) or CLOSED in str(error)


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it came of."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def check_readable(files: Files) -> None:
    """Nothing where all files can be read. Raises ``Unusable`` naming the first that cannot."""
    for option, path in (
        ("--store-ca", files.ca),
        ("--store-cert", files.cert),
        ("--store-key", files.key),
    ):
        try:
            if path is not None:
                path.open("rb").close()
        except OSError as error:
            raise Unusable(
                f"store: {option} {path}: {error.strerror}: give a PEM file that can be read"
            ) from None


log = structlog.stdlib.get_logger(__name__)

LEASE_SECONDS = 1.5
"""For which a leader that was killed is waited for."""
ELECTION_SECONDS = 3.0
"""Of sentinels or a cluster from one master to the next, in which the old one may turn up."""


class RedisStore(Store):
    """``Store`` on a Redis; made by ``open_redis``."""

    def __init__(self, applier: RedisApplier, now: Callable[[], float]) -> None:
        super().__init__(applier, now)
        self._redis = applier

    @property
    def link(self) -> Link:
        """The connection, for what else is kept in the same server."""
        return self._redis.link

    def figures(self) -> Iterable[tuple[str, str, Callable[[], float]]]:
        """What an operator should see of the server: name, meaning, and how to read it."""
        recovery = self._redis.recovery
        return (
            ("heddle_store_losses", "Times that the store was lost", lambda: self.link.losses),
            (
                "heddle_store_older_returns",
                "Times that the store came back without writes that it had acknowledged",
                lambda: recovery.returns,
            ),
        )

    async def secret(self, name: str, proposal: bytes) -> bytes:
        """What all replicas share under a name: the first that anybody proposed."""
        return await self._redis.secret(name, proposal)


async def open_redis(
    url: str,
    *,
    files: Files | None = None,
    timeout: float = 1.0,  # noqa: ASYNC109 - of each call to the server, not of this one
    durability: Durability | None = None,
    bounds: Bounds | None = None,
    lease: float = LEASE_SECONDS,
    now: Callable[[], float] = time.time,
) -> RedisStore:
    """The store in the Redis at ``url``.

    Args:
        url: See ``address``.
        files: For TLS.
        timeout: Seconds within which the server has to answer.
        durability: What each write waits for.
        bounds: How much is kept of what grows.
        lease: Seconds for which a leader that was killed is waited for.
        now: Unix seconds.

    Raises:
        Unavailable: the server cannot be reached, or is still loading; says what to do.
        Unusable: what it has is of another Heddle, the address is none, or a file cannot be read.
    """
    try:
        address = parse_address(url)
    except ValueError as error:
        raise Unusable(f"store: {error}") from None
    if address.tls:
        check_readable(files or Files())
    keys = Keys(address.name)
    patience = ELECTION_SECONDS if address.moves else 0.0
    link = Link(address, files or Files(), timeout, patience)
    try:
        await link.call(lambda client: _claim(client, keys, link.name))
        await link.call(lambda client: _warn(client, link.name))
        mirror = Mirror(link, keys)
        await mirror.load()
    except Unusable:
        await link.close()
        raise
    except Unavailable as error:
        await link.close()
        raise Unavailable(
            f"{str(error).rstrip('.')}. {redis_cure(error, tls=address.tls)}"
        ) from error
    applier = RedisApplier(
        mirror,
        bounds=bounds or Bounds(),
        durability=durability or Durability(),
        lease=lease,
    )
    return RedisStore(applier, now)


async def _claim(client: Redis, keys: Keys, name: str) -> None:
    """Say whose the keys are. Raises ``Unusable`` where they are of another Heddle."""
    await client.hsetnx(keys.meta, "form", FORM)
    form = await client.hget(keys.meta, "form")
    if form != FORM.encode():
        raise Unusable(
            f"store {name}: written by another Heddle (form {form!r}, this one knows only {FORM}); "
            "run that one, or start with another ?name="
        )


async def _warn(client: Any, name: str) -> None:  # noqa: ANN401 - the library's types are unions
    """Say how durable what is acknowledged is, where the server tells."""
    settings: dict[str, str] = {}
    for setting in ("appendonly", "appendfsync", "maxmemory-policy"):
        try:
            for value in (await client.config_get(setting)).values():
                settings[setting] = value.decode() if isinstance(value, bytes) else value
        except ResponseError:
            return  # not everybody may ask
    log.info("store settings", store=name, **settings)
    if settings.get("maxmemory-policy", "").startswith("allkeys"):
        log.error("the server may throw away what it keeps: set maxmemory-policy noeviction")
    if settings.get("appendonly") == "no":
        log.warning("the server keeps nothing when it ends: set appendonly yes", store=name)
