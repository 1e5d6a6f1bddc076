"""Applies changes to a Redis that several controllers share: one script compares and writes.

Each controller decides on what it knows of the store (``Mirror``), kept up to date by the
log of writes. Redis decides nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from heddle_controller.reconcile.replicas import Following, Leader, heed_nobody
from heddle_controller.state.audit import AuditPage, AuditRecord, Mark, parse_entry
from heddle_controller.state.change import FACTS, INTENT, Ask, Change, Outcome
from heddle_controller.state.view import View
from heddle_controller.store.applier import Bounds
from heddle_controller.store.batches import Sent, Tokens, WriteBatcher
from heddle_controller.store.feed import Feed
from heddle_controller.store.redis.blobs import Blobs
from heddle_controller.store.redis.follower import Follower
from heddle_controller.store.redis.leadership import Leases
from heddle_controller.store.redis.mirror import Mirror
from heddle_controller.store.redis.recovery import Recovery
from heddle_controller.store.redis.writes import Durability, Writes


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
        self.feed = Feed()
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
            self.feed.tell(sent.change.fabric, facts=sent.change.moves == FACTS)

    async def remembered(self, request: str) -> bytes | None:
        """See ``Applier``."""
        return await self._writes.remembered(request)

    async def blob(self, identity: str) -> bytes | None:
        """See ``Applier``."""
        return await self._blobs.read(identity)

    async def audit(self, *, after: int = 0, limit: int = 0) -> AuditPage:
        """See ``AuditStore``."""
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
        """See ``Leadership``."""
        return await self._leases.acquire_leadership(holder, above=above, following=following)

    async def leadership_lost(self, epoch: int) -> None:
        """See ``Leadership``."""
        await self._leases.leadership_lost(epoch)

    async def release_leadership(self, epoch: int) -> None:
        """See ``Leadership``."""
        await self._leases.release_leadership(epoch)

    def leads(self, epoch: int) -> bool:
        """See ``Succession``."""
        return self._leases.leads(epoch)

    async def leader(self) -> Leader:
        """See ``Succession``."""
        return await self._leases.leader()

    def stale_for(self) -> float:
        """See ``Freshness``."""
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
