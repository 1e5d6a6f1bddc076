"""Applies changes to a Redis that several controllers share: one script compares and writes.

Each controller decides on what it knows of the store (``Mirror``), kept up to date by the
log of writes. Redis decides nothing.

Large values, in pieces, so that no single call takes a server or a connection for long.

A blob is written under a name of its own before the change that points at it, and lives
for some minutes only; the change makes it last. So one whose change was refused, or whose
writer died, goes by itself.

A server that came back: is it the one we knew, or is it older?

One that is older (its disk was a second behind, a replica took over that had not heard of the
last writes, a backup was put in place, somebody emptied it) lacks writes that clients were told
were kept. What it has counts from then on: it is read anew and what is missing has to be asked
for again. How a server is set so that this does not happen is told in REPLICAS.md.

Leases of the older server are void. Epochs go on from the highest that was seen here or by any
agent, and versions from above the highest that was told of, so that nobody who compares takes
the new for the old. The secret in use is agreed on again, or a controller that starts later
would agree with nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import structlog
from redis.asyncio import Redis

from heddle_controller.state.audit import AuditPage, AuditRecord, Mark, parse_entry
from heddle_controller.state.errors import Unavailable, Unusable
from heddle_controller.state.records import Versions
from heddle_controller.state.view import FACTS, INTENT, Ask, Blob, Change, Outcome, View
from heddle_controller.store.applier import (
    Bounds,
    Feed,
    Following,
    Leader,
    Sent,
    Tokens,
    WriteBatcher,
    heed_nobody,
)
from heddle_controller.store.redis.leadership import Leases
from heddle_controller.store.redis.link import Link
from heddle_controller.store.redis.mirror import Follower, Mirror, OlderError
from heddle_controller.store.redis.writes import FORM, LIFT, Durability, Keys, Writes

PIECE = 256 * 1024
"""Bytes of one piece."""
UNCLAIMED_SECONDS = 600
_COUNT = b"count"


class Blobs:
    """Reads and writes them."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys

    async def write(self, blob: Blob) -> None:
        """Bring a blob to the server, unless it is there whole. Raises ``Unavailable``."""
        key, body = self.keys.blob(blob.id), blob.body
        if body is None:
            return
        call = self.link.call
        if await call(lambda c: _hexists(c, key)):
            return
        pieces = [body[at : at + PIECE] for at in range(0, len(body), PIECE)]
        for row, piece in enumerate(pieces):
            values = {str(row): piece}
            await call(lambda c, v=values: c.hset(key, mapping=v))  # type: ignore[misc]
            if not row:
                await call(lambda c: c.expire(key, UNCLAIMED_SECONDS))
        values = {_COUNT.decode(): str(len(pieces)).encode()}
        await call(lambda c: c.hset(key, mapping=values))  # type: ignore[arg-type]

    async def read(self, identity: str) -> bytes | None:
        """A blob; None if it is there no more.

        Raises:
            Unavailable: the server is away.
            Unusable: a piece of it is missing.
        """
        key = self.keys.blob(identity)
        count = await self.link.call(lambda c: _hget(c, key, _COUNT))
        if count is None:
            return None
        pieces = await asyncio.gather(
            *(self.link.call(lambda c, r=row: _hget(c, key, r)) for row in range(int(count)))  # type: ignore[misc]
        )
        if None in pieces:
            if await self.link.call(lambda c: _hget(c, key, _COUNT)) is None:
                return None
            raise Unusable(f"store {self.link.name}: {key} lacks a piece; restore it from a backup")
        return b"".join(cast("list[bytes]", pieces))


async def _hexists(client: Any, key: str) -> bool:  # noqa: ANN401 - the library's own types are unions
    return bool(await client.hexists(key, _COUNT))


async def _hget(client: Any, key: str, field: bytes | int) -> bytes | None:  # noqa: ANN401 - as above
    value: bytes | None = await client.hget(key, field)
    return value


log = structlog.stdlib.get_logger(__name__)


class Recovery:
    """What is done when the server is there again."""

    def __init__(self, mirror: Mirror, end_leases: Callable[[], None]) -> None:
        """``end_leases`` is called where the store is not the one that gave them out."""
        self._mirror = mirror
        self._link = mirror.link
        self._keys = mirror.keys
        self._end_leases = end_leases
        self.returns = 0
        """Times that the server came back older."""
        self.secrets: dict[str, bytes] = {}
        """That are in use here, by name."""
        self._told: dict[str, Versions] = {}
        """Of before the server came back older, until it is taken up again."""

    async def look_again(self) -> None:
        """See what the server has; before anybody else may use it."""
        mirror = self._mirror
        try:
            await mirror.follow(inner=True)
        except OlderError as error:
            self._be_patient(error)
            self.returns += 1
            known = {fabric: view.versions() for fabric, view in mirror.views.items()}
            self._told = known | self._told
            log.error(  # noqa: TRY400 - a finding, whose trace says nothing
                "store came back older: writes that were acknowledged are lost, ask for them again",
                store=self._link.name,
                why=str(error),
            )
            self._end_leases()
            await mirror.load(inner=True)
        if self._told:  # also where it was cut short, by the server going again
            await self._take_up(self._told)
            self._told = {}

    def _be_patient(self, error: OlderError) -> None:
        """Leave an older server alone for a while, where there may be a newer one.

        A master that died and was started again at once still counts as the master until
        the sentinels have agreed on another.
        """
        if self._link.silent_for() < self._link.patience:
            raise Unavailable(f"another master is looked for, since {error}") from error

    async def _take_up(self, told: Mapping[str, Versions]) -> None:
        await self._agree_again()
        for fabric, versions in told.items():
            key = self._keys.fabric_prefix + fabric
            least = [versions.intent + 1, versions.facts + 1]
            await self._link.call(
                lambda client, k=key, v=least: LIFT.call(client, [k], v),  # type: ignore[misc]
                inner=True,
            )
        await self._mirror.load(inner=True)

    async def _agree_again(self) -> None:
        """Give back what replicas agree on besides: the form of all this, and secrets in use."""
        keys, secrets = self._keys, self.secrets

        async def agree(client: Any) -> None:  # noqa: ANN401 - the library's types are unions
            await client.hsetnx(keys.meta, "form", FORM)
            if secrets:
                await client.hset(keys.secrets, mapping=secrets)

        await self._link.call(agree, inner=True)


class RedisApplier:
    """Implements ``Applier``."""

    def __init__(
        self, mirror: Mirror, *, bounds: Bounds, durability: Durability, lease: float
    ) -> None:
        """On a mirror that has read everything.

        Args:
            mirror: What is known of the store.
            bounds: How much is kept of what grows.
            durability: What each write waits for.
            lease: Seconds for which a leader that was killed is waited for.
        """
        self.link = mirror.link
        self.keys = mirror.keys
        self.name = mirror.link.name
        self.feed = Feed[str]()
        self._mirror = mirror
        self._blobs = Blobs(mirror.link, mirror.keys)
        writer = Tokens()()
        self._leases = Leases(mirror, writer, bounds, lease)
        self._writes = Writes(mirror.link, mirror.keys, writer, bounds, durability)
        self._batcher = WriteBatcher(self.name, self._writes.deliver)
        self.recovery = Recovery(mirror, self._leases.end_all)
        self._follower = Follower(mirror, self.feed, writer, self._leases.wake)
        self._writes.on_done.append(self._made)
        self.link.on_return += [self.recovery.look_again, self._follower.begin_anew]

    @property
    def epoch(self) -> int:
        """See ``Applier``."""
        return self._mirror.leader.epoch

    def check(self) -> None:
        """See ``Applier``."""
        self.link.check()

    async def fresh(self) -> None:
        """See ``Applier``."""
        await self._mirror.fresh()

    def view(self, fabric: str) -> View:
        """See ``Applier``."""
        return self._mirror.views.get(fabric) or View(fabric)

    def fabrics(self) -> Sequence[str]:
        """See ``Applier``."""
        return sorted(name for name, view in self._mirror.views.items() if view.known)

    async def apply(self, change: Change, ask: Ask) -> Outcome:
        """See ``Applier``."""
        self.link.check()
        for blob in change.keep:
            await self._blobs.write(blob)
        return await self._batcher.send(change, ask)

    def _made(self, sent: Sent, outcome: Outcome) -> None:
        self._mirror.advance(sent.change, outcome.number, sent.token)
        if sent.change.moves in (INTENT, FACTS):
            fabric = sent.change.fabric
            self.feed.tell(fabric, fabric, minor=sent.change.moves == FACTS)

    async def remembered(self, request: str) -> bytes | None:
        """See ``Applier``."""
        return await self._writes.remembered(request)

    async def blob(self, identity: str) -> bytes | None:
        """See ``Applier``."""
        return await self._blobs.read(identity)

    async def audit(self, *, after: int = 0, limit: int = 0) -> AuditPage:
        """See ``Applier``."""
        keys = self.keys

        async def read(client: Redis) -> list[Any]:
            async with client.pipeline(transaction=True) as pipeline:
                pipeline.xrange(keys.audit, f"({after}-0", "+", count=limit or None)
                pipeline.hmget(keys.audit_marks, ["number", "hash", "anchor", "anchor_hash"])
                answers: list[Any] = await pipeline.execute()
                return answers

        rows, (number, last, dropped, anchor) = await self.link.call(read)
        head = Mark(int(number), last) if number else Mark()
        records = tuple(_record(*row) for row in rows)
        return AuditPage(Mark(int(dropped), anchor) if dropped else Mark(), head, records)

    async def acquire_leadership(
        self, holder: str, *, above: int = 0, following: Following = heed_nobody
    ) -> int:
        """See ``Applier``."""
        return await self._leases.acquire_leadership(holder, above=above, following=following)

    async def leadership_lost(self, epoch: int) -> None:
        """See ``Applier``."""
        await self._leases.leadership_lost(epoch)

    async def release_leadership(self, epoch: int) -> None:
        """See ``Applier``."""
        await self._leases.release_leadership(epoch)

    def leads(self, epoch: int) -> bool:
        """See ``Applier``."""
        return self._leases.leads(epoch)

    async def leader(self) -> Leader:
        """See ``Applier``."""
        return await self._leases.leader()

    def stale_for(self) -> float:
        """See ``Applier``."""
        return self.link.silent_for()

    async def secret(self, name: str, proposal: bytes) -> bytes:
        """What all replicas share under a name: the first that anybody proposed."""
        key = self.keys.secrets

        async def agree(client: Any) -> bytes:  # noqa: ANN401 - the library's types are unions
            await client.hsetnx(key, name, proposal)
            agreed: bytes = await client.hget(key, name)
            return agreed

        agreed = await self.link.call(agree)
        self.recovery.secrets[name] = agreed
        return agreed

    async def close(self) -> None:
        """See ``Applier``."""
        if self.link.ending:
            return
        self.link.ending = True
        self._leases.wake()
        self.feed.close()
        await self._leases.resign_all()
        await self._batcher.close()
        await self._follower.close()
        await self.link.close()


def _record(identity: bytes, fields: dict[bytes, bytes]) -> AuditRecord:
    return AuditRecord(int(identity.partition(b"-")[0]), fields[b"h"], parse_entry(fields[b"e"]))
