"""The Redis store: one server, or a master with replicas, shared by several controllers.

What is acknowledged is as durable as the server is set to be: with ``appendfsync
always`` it is on the disk, with ``everysec`` a machine that loses power may lose the last
second, without ``appendonly`` a server that ends loses what it had not saved. A master
that fails over loses what no replica had yet; ``Durability`` waits for replicas.
Everything a replica knows can be had again from the server and the agents.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import structlog
from redis.asyncio import Redis
from redis.exceptions import ResponseError

from heddle_controller.state.errors import Unavailable, Unusable
from heddle_controller.store.changes import Changes, Watcher
from heddle_controller.store.redis.address import Files, parse_address
from heddle_controller.store.redis.blobs import Blobs
from heddle_controller.store.redis.change import FACTS, INTENT, Outcome, new_token
from heddle_controller.store.redis.cures import check_readable, cure_of
from heddle_controller.store.redis.fabrics import FabricPart
from heddle_controller.store.redis.facts import FactPart
from heddle_controller.store.redis.follower import Follower
from heddle_controller.store.redis.jobs import JobPart
from heddle_controller.store.redis.lane import Bounds, Durability, Lane, Sent
from heddle_controller.store.redis.link import Link
from heddle_controller.store.redis.mirror import Mirror
from heddle_controller.store.redis.part import FORM, Shared
from heddle_controller.store.redis.plans import PlanPart
from heddle_controller.store.redis.recovery import RecoveryPart
from heddle_controller.store.redis.scripts import Keys
from heddle_controller.store.redis.states import StatePart

log = structlog.stdlib.get_logger(__name__)

LEASE_SECONDS = 1.5
"""For which a leader that was killed is waited for."""
ELECTION_SECONDS = 3.0
"""Of sentinels or a cluster from one master to the next, in which the old one may turn up."""


class RedisStore(
    FabricPart,
    StatePart,
    JobPart,
    FactPart,
    PlanPart,
    RecoveryPart,
):
    """``Store`` on a Redis; made by ``open_redis``."""

    def __init__(self, shared: Shared) -> None:
        super().__init__(shared)
        self._follower = Follower(shared.mirror, shared.changes, shared.writer, self.wake)
        shared.lane.on_done.append(self._written)
        shared.link.on_return += [self._look_again, self._follower.begin_anew]

    @property
    def link(self) -> Link:
        """The connection, for what else is kept in the same server."""
        return self._shared.link

    def figures(self) -> Iterable[tuple[str, str, Callable[[], float]]]:
        """What an operator should see of the server: name, meaning, and how to read it."""
        link, recoveries = self._shared.link, self._shared.recoveries
        return (
            ("heddle_store_losses", "Times that the store was lost", lambda: link.losses),
            (
                "heddle_store_writes_offered_again",
                "Acknowledged writes that a store which came back older did not have",
                lambda: sum(recovery.lost for recovery in recoveries),
            ),
            (
                "heddle_store_writes_lost",
                "Those of them that could not be given back",
                lambda: sum(recovery.refused for recovery in recoveries),
            ),
        )

    def _written(self, sent: Sent, outcome: Outcome) -> None:
        self._shared.mirror.advance(sent.change, outcome.number, sent.token)
        self._journal(sent, outcome)
        if sent.change.kind in (INTENT, FACTS):
            self._shared.changes.tell(sent.change.fabric, facts=sent.change.kind == FACTS)

    async def changes(self, *, facts: bool = False) -> AsyncIterator[str]:
        """See ``Store``."""
        changes = self._shared.changes
        watcher = Watcher(facts=facts)
        changes.add(watcher)
        try:
            await self._shared.mirror.fresh()
            for fabric in sorted(self._shared.mirror.views):
                watcher.tell(fabric)
            async for name in watcher.names():
                yield name
        finally:
            changes.remove(watcher)

    async def secret(self, name: str, proposal: bytes) -> bytes:
        """What all replicas share under a name: the first that anybody proposed."""
        key = self._shared.keys.secrets

        async def agree(client: Any) -> bytes:  # noqa: ANN401 - the library's types are unions
            await client.hsetnx(key, name, proposal)
            agreed: bytes = await client.hget(key, name)
            return agreed

        agreed = await self._shared.link.call(agree)
        self._shared.secrets[name] = agreed
        return agreed

    async def close(self) -> None:
        """See ``Store``."""
        link = self._shared.link
        if link.ending:
            return
        link.ending = True
        self.wake()
        self._shared.changes.close()
        await self._resign_all()
        await self._shared.lane.close()
        await self._follower.close()
        await link.close()


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
        Unusable: what it has is of a newer Heddle, the address is none, or a file cannot be read.
    """
    try:
        address = parse_address(url)
    except ValueError as error:
        raise Unusable(f"store: {error}") from None
    if address.tls:
        check_readable(files or Files())
    bounds = bounds or Bounds()
    keys, writer = Keys(address.name), new_token()
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
        raise Unavailable(f"{str(error).rstrip('.')}. {cure_of(error, tls=address.tls)}") from error
    blobs = Blobs(link, keys)
    lane = Lane(blobs, writer, bounds, durability or Durability())
    shared = Shared(link, keys, mirror, lane, blobs, Changes(), writer, bounds, now, lease)
    return RedisStore(shared)


async def _claim(client: Redis, keys: Keys, name: str) -> None:
    """Say whose the keys are. Raises ``Unusable`` where they are of a newer Heddle."""
    await client.hsetnx(keys.meta, "form", FORM)
    form = await client.hget(keys.meta, "form")
    if form is None or not form.isdigit() or int(form) > int(FORM):
        raise Unusable(
            f"store {name}: written by a newer Heddle (form {form!r}, this one knows {FORM}); "
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
