"""The Redis store: one server, or a master with replicas, shared by several controllers.

Acknowledged writes are as durable as the server's settings make them. With ``appendfsync always``
they are on the disk. With ``everysec``, a machine that loses power may lose the last second.
Without ``appendonly``, a server that ends loses what it had not saved. A failover loses what no
replica had yet; ``Durability`` makes writes wait for replicas. A controller keeps nothing that it
cannot get again from the server and the agents.

If the server cannot be used at the start, the error says what to do. Most first starts fail for
other reasons than a server that is down: a missing password, the wrong authority, a missing file.
Advice to start the server would then mislead.
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
"""Part of the client library's message when the server has closed a connection."""


def redis_cure(error: BaseException, *, tls: bool) -> str:
    """Return advice about a failed first call, as a sentence without a full stop.

    With TLS, a server that rejects our certificate says so only after the client considers the
    connection established, and then closes it. Its message may arrive after the close, so over
    ``tls`` a closed connection also counts as a certificate problem.
    """
    behind = list(_behind(error))
    if any(isinstance(one, AuthenticationError) for one in behind):
        return PASSWORD
    if any(isinstance(one, ssl.SSLError) or (tls and _is_end(one)) for one in behind):
        return TRUST
    return _START


def _is_end(error: BaseException) -> bool:
    """Return whether the error means that an established connection was closed."""
    ends = ConnectionResetError, BrokenPipeError, EOFError
    return isinstance(error, ends) or CLOSED in str(error)


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def check_readable(files: Files) -> None:
    """Raise ``Unusable``, naming the file, if one of the files cannot be read."""
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
"""Length of a lease: how long others wait for a leader that was killed."""
ELECTION_SECONDS = 3.0
"""Time that sentinels or a cluster take to change the master. The old one may come back in it."""


class RedisStore(Store):
    """A ``Store`` on a Redis. ``open_redis`` makes it."""

    def __init__(self, applier: RedisApplier, now: Callable[[], float]) -> None:
        super().__init__(applier, now)
        self._redis = applier

    @property
    def link(self) -> Link:
        """The connection, for other data in the same server."""
        return self._redis.link

    def figures(self) -> Iterable[tuple[str, str, Callable[[], float]]]:
        """Metrics of the server: name, help text, and a function that reads the value."""
        recovery = self._redis.recovery
        return (
            (
                "heddle_store_losses_total",
                "Times that the store was lost",
                lambda: self.link.losses,
            ),
            (
                "heddle_store_older_returns_total",
                "Times that the store came back without writes that it had acknowledged",
                lambda: recovery.returns,
            ),
        )

    async def secret(self, name: str, proposal: bytes) -> bytes:
        """Return the secret that all replicas share under a name.

        It is the first one that any replica proposed.
        """
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
    """Open the store in the Redis at ``url``.

    Args:
        url: Address of the Redis; see the module ``address``.
        files: PEM files for TLS.
        timeout: Seconds within which the server must answer.
        durability: What each write waits for.
        bounds: How many records of each growing kind are kept.
        lease: Length of a lease in seconds: how long others wait for a leader that was killed.
        now: Returns the time in Unix seconds.

    Raises:
        Unavailable: the server cannot be reached, or is still loading. The text says what to do.
        Unusable: the data is of another version of Heddle, the address is not valid, or a file
            cannot be read.
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
    """Mark the keys as ours. Raises ``Unusable`` if another version of Heddle wrote them."""
    await client.hsetnx(keys.meta, "form", FORM)
    form = await client.hget(keys.meta, "form")
    if form != FORM.encode():
        raise Unusable(
            f"store {name}: written by another Heddle (form {form!r}, this one knows only {FORM}); "
            "run that one, or start with another ?name="
        )


async def _warn(client: Any, name: str) -> None:  # noqa: ANN401 - the library's types are unions
    """Log how durable writes are, if the server reveals its settings."""
    settings: dict[str, str] = {}
    for setting in ("appendonly", "appendfsync", "maxmemory-policy"):
        try:
            for value in (await client.config_get(setting)).values():
                settings[setting] = value.decode() if isinstance(value, bytes) else value
        except ResponseError:
            return  # this user may not read settings
    log.info("store settings", store=name, **settings)
    if settings.get("maxmemory-policy", "").startswith("allkeys"):
        log.error("the server may throw away what it keeps: set maxmemory-policy noeviction")
    if settings.get("appendonly") == "no":
        log.warning("the server keeps nothing when it ends: set appendonly yes", store=name)
