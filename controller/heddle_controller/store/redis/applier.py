"""Applies changes to a Redis that several controllers share, and decides who leads.

Each controller decides on what it knows of the store (``Mirror``), which the log of writes keeps up
to date. Redis decides nothing: a script compares the guards and writes, in one step.

*Leadership* is a lease that expires, and an epoch that only grows. A controller that takes the
lease gets the next epoch in the same script. The script that writes compares the epoch of each
write with the newest one. So safety does not depend on the lease; it only keeps two leaders from
working against each other. The holder measures the lease by its own clock, from the moment before
it asked, so it never believes that it holds a lease that has ended. A process that was suspended
and resumes notices that first of all.

*Blobs.* Large values are stored in pieces, so that no single call occupies a server or a connection
for long. A blob is written under a name of its own before the change that refers to it. It expires
after some minutes unless the change makes it permanent. So a blob disappears by itself if its
change was refused or its writer died.

*Recovery.* A server that comes back may be older than before: its disk was a second behind, a
replica without the last writes took over, a backup was restored, or somebody emptied it. Then
writes that were acknowledged to clients are lost. The content of the server counts from then on: it
is read anew, and clients must repeat what is missing. REPLICAS.md says how to set up a server so
that this does not happen.

All leases are void then. Epochs continue above the highest that this controller or any agent has
seen, and versions above the highest that was handed out, so that nobody who compares them takes new
state for old. The secrets in use are written again, so that controllers that start later use the
same ones.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import structlog

from heddle_controller.state.audit import AuditPage, AuditRecord, Mark, parse_entry
from heddle_controller.state.errors import PortError, Unavailable, Unusable
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
    end,
    heed_nobody,
)
from heddle_controller.store.redis.link import Link
from heddle_controller.store.redis.mirror import Follower, Mirror, OlderError
from heddle_controller.store.redis.writes import (
    AUDIT,
    FORM,
    LEAD,
    LIFT,
    RENEW,
    RESIGN,
    Durability,
    Keys,
    Writes,
)

log = structlog.stdlib.get_logger(__name__)

RENEWALS = 4
"""How often a lease is renewed during its length."""
MARGIN = 0.05
"""Seconds by which the holder considers its lease over before another one can begin."""


@dataclass(slots=True, eq=False)
class Term:
    """A lease that this controller holds."""

    until: float
    """End of the lease by the monotonic clock."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    renewing: asyncio.Task[None] | None = None

    def left(self) -> float:
        """Return the seconds for which the lease is certain to last."""
        return 0.0 if self.over.is_set() else max(self.until - time.monotonic(), 0.0)


class Leases:
    """The methods of ``Applier`` for leadership."""

    def __init__(self, mirror: Mirror, writer: str, bounds: Bounds, seconds: float) -> None:
        """Begin without a lease. ``seconds`` is the length of each lease."""
        self._mirror = mirror
        self.link = mirror.link
        self.keys = mirror.keys
        self._writer = writer
        self._bounds = bounds
        self._seconds = seconds
        self._new_token = Tokens()
        self._terms: dict[int, Term] = {}
        """Leases that this controller holds, by epoch."""
        self._turn = asyncio.Event()
        """Set when any controller takes or gives up a lease."""

    def wake(self) -> None:
        """Note that some controller took or gave up a lease."""
        self._turn.set()

    async def acquire_leadership(
        self, holder: str, *, above: int = 0, following: Following = heed_nobody
    ) -> int:
        """Implement ``Applier.acquire_leadership``."""
        why = ""
        while True:
            self._check_open()
            self._turn.clear()
            try:
                epoch, pause = await self._ask(holder, above)
                if not epoch:
                    await self._mirror.fresh()
                    following(self._mirror.leader)
            except Unavailable as error:
                if not self.link.up:
                    await self._until_returned()
                    continue
                epoch, pause = 0, error.retry_after  # it answers, but takes no writes
                if str(error) != why:
                    why = str(error)
                    log.warning("nobody can lead, the store refuses writes", why=why)
            if epoch:
                self._check_open()  # if closing, ``resign_all`` gives this lease up too
                return epoch
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._turn.wait()

    def _check_open(self) -> None:
        if self.link.ending:
            raise Unavailable("the store is closed, the controller is stopping")

    async def _ask(self, holder: str, above: int) -> tuple[int, float]:
        """Ask for the lease.

        Returns:
            The new epoch and 0.0; or 0 and the seconds for which another's lease still lasts.
        """
        keys, asked = self.keys, time.monotonic()
        least = max(above, self._mirror.highest)
        names = [keys.lease, keys.leader, keys.sequence, keys.log]
        milliseconds = round(self._seconds * 1000)
        args = [
            holder,
            least,
            milliseconds,
            self._new_token(),
            self._writer,
            self._bounds.writes,
        ]
        given, left = await self.link.call(lambda c: LEAD.call(c, names, args))
        epoch = int(given)
        if not epoch:
            return 0, max(left, 0) / 1000 + 0.002
        self._mirror.highest = epoch
        term = Term(asked + self._seconds - MARGIN)
        self._terms[epoch] = term
        term.renewing = asyncio.create_task(self._renew(epoch, term), name="lease")
        return epoch, 0.0

    async def _until_returned(self) -> None:
        """Wait until the server is back or the store is closing."""
        link = self.link
        while not link.up and not link.ending:
            self._turn.clear()
            waits = [
                asyncio.create_task(link.returned.wait()),
                asyncio.create_task(self._turn.wait()),
            ]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()

    async def _renew(self, epoch: int, term: Term) -> None:
        try:
            while term.left():
                await asyncio.sleep(min(self._seconds / RENEWALS, term.left()))
                if term.left() and not await self._renewed(epoch, term):
                    break
        finally:
            self._end(epoch)

    async def _renewed(self, epoch: int, term: Term) -> bool:
        """Renew a lease. Return False only if the server says that it is over."""
        keys, asked = self.keys, time.monotonic()
        names, args = [keys.lease, keys.leader], [epoch, round(self._seconds * 1000)]
        try:
            async with asyncio.timeout(term.left()):
                done = await self.link.call(lambda c: RENEW.call(c, names, args))
        except (Unavailable, TimeoutError):
            return True
        if done:
            term.until = asked + self._seconds - MARGIN
        return bool(done)

    def _end(self, epoch: int) -> None:
        term = self._terms.pop(epoch, None)
        if term is not None:
            term.over.set()

    def end_all(self) -> None:
        """End all leases at once, because the server no longer knows them."""
        for epoch, term in list(self._terms.items()):
            if term.renewing is not None:
                term.renewing.cancel()
            self._end(epoch)

    async def leadership_lost(self, epoch: int) -> None:
        """Implement ``Applier.leadership_lost``."""
        term = self._terms.get(epoch)
        if term is not None:
            await term.over.wait()

    async def release_leadership(self, epoch: int) -> None:
        """Implement ``Applier.release_leadership``."""
        term = self._terms.get(epoch)
        if term is None:
            return
        self._end(epoch)
        if term.renewing is not None:
            await end(term.renewing)
        keys = self.keys
        names = [keys.lease, keys.leader, keys.sequence, keys.log]
        args = [epoch, self._new_token(), self._writer, self._bounds.writes]
        try:
            await self.link.call(lambda c: RESIGN.call(c, names, args))
        except PortError as error:
            log.warning("lease not handed over, it runs out", epoch=epoch, why=str(error))

    def leads(self, epoch: int) -> bool:
        """Implement ``Applier.leads``."""
        term = self._terms.get(epoch)
        return term is not None and term.left() > 0 and not self.link.closed

    async def leader(self) -> Leader:
        """Implement ``Applier.leader``."""
        await self._mirror.fresh()
        leads = await self.link.call(lambda c: c.exists(self.keys.lease))
        return self._mirror.leader if leads else Leader(self._mirror.leader.epoch)

    async def resign_all(self) -> None:
        """Give up all leases."""
        for epoch in list(self._terms):
            await self.release_leadership(epoch)


PIECE = 256 * 1024
"""Most bytes of one piece."""
UNCLAIMED_SECONDS = 600
"""Time after which a blob expires that no change refers to."""
_COUNT = b"count"


class Blobs:
    """Reads and writes large values (blobs)."""

    def __init__(self, link: Link, keys: Keys) -> None:
        self.link = link
        self.keys = keys

    async def write(self, blob: Blob) -> None:
        """Write a blob, unless the server already has all of it. Raises ``Unavailable``."""
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
        """Return a blob, or None if it is gone.

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


class Recovery:
    """What a controller does when the server is reachable again."""

    def __init__(self, mirror: Mirror, end_leases: Callable[[], None]) -> None:
        """``end_leases`` is called if the server came back older, which makes leases void."""
        self._mirror = mirror
        self._link = mirror.link
        self._keys = mirror.keys
        self._end_leases = end_leases
        self.returns = 0
        """How often the server came back older."""
        self.secrets: dict[str, bytes] = {}
        """Secrets that this controller uses, by name."""
        self._told: dict[str, Versions] = {}
        """Versions before the server came back older, until recovery is complete."""

    async def look_again(self) -> None:
        """Compare the server's content with what is known here, before others may use it.

        If the server came back older, recover from that.
        """
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
        if self._told:  # also after a recovery that was interrupted by another loss
            await self._take_up(self._told)
            self._told = {}

    def _be_patient(self, error: OlderError) -> None:
        """Raise ``Unavailable`` while a newer server than this older one may still be found.

        A master that died and restarted at once still counts as the master until the sentinels
        agree on another one.
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
        """Write again what replicas must agree on: the form of the store, and secrets in use."""
        keys, secrets = self._keys, self.secrets

        async def agree(client: Any) -> None:  # noqa: ANN401 - the library's types are unions
            await client.hsetnx(keys.meta, "form", FORM)
            if secrets:
                await client.hset(keys.secrets, mapping=secrets)

        await self._link.call(agree, inner=True)


class RedisApplier(Leases):
    """Implements ``Applier`` on a Redis."""

    def __init__(
        self, mirror: Mirror, *, bounds: Bounds, durability: Durability, lease: float
    ) -> None:
        """Start to apply changes and to follow the log.

        Args:
            mirror: What is known of the store; it must have loaded everything.
            bounds: How many records of each growing kind are kept.
            durability: What each write waits for.
            lease: Length of a leader's lease in seconds. After a leader was killed, others wait
                this long at most.
        """
        writer = Tokens()()
        super().__init__(mirror, writer, bounds, lease)
        self.name = mirror.link.name
        self.feed = Feed[str]()
        self._blobs = Blobs(mirror.link, mirror.keys)
        self._writes = Writes(mirror.link, mirror.keys, writer, bounds, durability)
        self._batcher = WriteBatcher(self.name, self._writes.deliver)
        self.recovery = Recovery(mirror, self.end_all)
        self._follower = Follower(mirror, self.feed, writer, self.wake)
        self._writes.on_done.append(self._made)
        self.link.on_return += [self.recovery.look_again, self._follower.begin_anew]

    @property
    def epoch(self) -> int:
        """Implement ``Applier.epoch``."""
        return self._mirror.leader.epoch

    def check(self) -> None:
        """Implement ``Applier.check``."""
        self.link.check()

    async def fresh(self) -> None:
        """Implement ``Applier.fresh``."""
        await self._mirror.fresh()

    def view(self, fabric: str) -> View:
        """Implement ``Applier.view``."""
        return self._mirror.views.get(fabric) or View(fabric)

    def fabrics(self) -> Sequence[str]:
        """Implement ``Applier.fabrics``."""
        return sorted(name for name, view in self._mirror.views.items() if view.known)

    async def apply(self, change: Change, ask: Ask) -> Outcome:
        """Implement ``Applier.apply``."""
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
        """Implement ``Applier.remembered``."""
        return await self._writes.remembered(request)

    async def blob(self, identity: str) -> bytes | None:
        """Implement ``Applier.blob``."""
        return await self._blobs.read(identity)

    async def audit(self, *, after: int = 0, limit: int = 0) -> AuditPage:
        """Implement ``Applier.audit``."""
        names, args = [self.keys.audit, self.keys.audit_marks], [after, limit]
        told = await self.link.call(lambda c: AUDIT.call(c, names, args))
        rows, (number, last, dropped, anchor) = told
        head = Mark(int(number), last) if number else Mark()
        records = tuple(_record(*row) for row in rows)
        return AuditPage(Mark(int(dropped), anchor) if dropped else Mark(), head, records)

    def stale_for(self) -> float:
        """Implement ``Applier.stale_for``."""
        return self.link.silent_for()

    def write_trouble(self) -> str:
        """Implement ``Applier.write_trouble``."""
        return self._batcher.trouble()

    async def secret(self, name: str, proposal: bytes) -> bytes:
        """Return the secret that all replicas share under a name.

        It is the first one that any replica proposed.
        """
        key = self.keys.secrets

        async def agree(client: Any) -> bytes:  # noqa: ANN401 - the library's types are unions
            await client.hsetnx(key, name, proposal)
            agreed: bytes = await client.hget(key, name)
            return agreed

        agreed = await self.link.call(agree)
        self.recovery.secrets[name] = agreed
        return agreed

    async def close(self) -> None:
        """Implement ``Applier.close``."""
        if self.link.ending:
            return
        self.link.ending = True
        self.wake()
        self.feed.close()
        await self.resign_all()
        await self._batcher.close()
        await self._follower.close()
        await self.link.close()


def _record(identity: bytes, values: list[bytes]) -> AuditRecord:
    fields = dict(zip(values[::2], values[1::2], strict=True))
    return AuditRecord(int(identity.partition(b"-")[0]), fields[b"h"], parse_entry(fields[b"e"]))
