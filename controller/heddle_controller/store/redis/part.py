"""What the parts of the Redis store share, and how each reads and writes.

A write is decided on what this replica knows, sent, and decided anew if that had moved.
A refusal ("there is no such job") is believed only when it was decided on what the
server has now; until then it may just be that this replica is behind.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from heddle_controller.model.demand import Demands
from heddle_controller.model.fabric import Structure
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Program
from heddle_controller.state.audit import AuditEntry
from heddle_controller.state.codec.container import DamagedError
from heddle_controller.state.codec.deltas import Base
from heddle_controller.state.codec.structure import unpack_structure
from heddle_controller.state.errors import (
    PortError,
    RequestReused,
    StaleEpoch,
    Unavailable,
    Unusable,
)
from heddle_controller.state.records import Request, Versions
from heddle_controller.store.changes import Changes
from heddle_controller.store.common.reporters import Reporter
from heddle_controller.store.redis.blobs import Blobs
from heddle_controller.store.redis.change import Ask, Change
from heddle_controller.store.redis.fabric import meta_of
from heddle_controller.store.redis.journal import Journal
from heddle_controller.store.redis.lane import Bounds, Lane
from heddle_controller.store.redis.link import Link
from heddle_controller.store.redis.mirror import Mirror
from heddle_controller.store.redis.scripts import Keys
from heddle_controller.store.redis.view import View

Answer = TypeVar("Answer")
Decide = Callable[[View | None], tuple[Change, Answer]]

Sides = tuple[str, str]
"""What the audit trail tells of before and after."""

NOBODY = Request()
NO_ASK = Ask(NOBODY, "")
TRIES = 50
"""Of one write; others have to come between as often for it to fail."""
PATIENT = 3
"""Tries that follow one another at once; later ones step aside for a moment."""
FINGERPRINT = 64
"""Characters."""
FORM = "1"
"""Of what is stored: a number; a newer one is refused."""


@dataclass(slots=True, eq=False)
class Term:
    """A lease that we have."""

    until: float
    """By the monotonic clock."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    renewing: asyncio.Task[None] | None = None

    def left(self) -> float:
        """Seconds that it is certain to last."""
        return 0.0 if self.over.is_set() else max(self.until - time.monotonic(), 0.0)


@dataclass(slots=True, eq=False)
class Recovery:
    """What became of a server's having come back older."""

    number: int
    """Of the newest write that was known before."""
    known: Mapping[str, Versions]
    """That had been told of, by fabric."""
    fields: Mapping[str, Mapping[str, bytes]]
    """All that was known of each fabric."""
    lost: int = 0
    """Writes of ours that it did not have."""
    refused: int = 0
    """Those of them that could not be given back."""
    done: bool = False


@dataclass(frozen=True)
class Shared:
    """One of these a store."""

    link: Link
    keys: Keys
    mirror: Mirror
    lane: Lane
    blobs: Blobs
    changes: Changes
    writer: str
    """What tells our own writes from those of others."""
    bounds: Bounds
    now: Callable[[], float]
    """Unix seconds."""
    lease: float
    """Seconds for which a leader that was killed is waited for."""
    structures: dict[str, Structure] = field(default_factory=dict)
    """By digest."""
    demands: dict[str, Demands] = field(default_factory=dict)
    """By blob."""
    plans: dict[str, tuple[str, Plan, Program]] = field(default_factory=dict)
    """The newest plan read or committed, and its blob, by fabric."""
    bases: dict[str, Base[str]] = field(default_factory=dict)
    """Of the newest plan, by fabric and named by its blob; absent where it is not known."""
    secrets: dict[str, bytes] = field(default_factory=dict)
    """That are in use here, by name."""
    journal: Journal = field(default_factory=Journal)
    recoveries: list[Recovery] = field(default_factory=list)
    terms: dict[int, Term] = field(default_factory=dict)
    """Leases that we have, by epoch."""
    turn: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a lease was taken or given up."""
    reporting: dict[str, asyncio.Lock] = field(default_factory=dict)
    """Held by who writes a report, by fabric."""
    reporters: dict[tuple[str, str], tuple[bytes | None, Reporter]] = field(default_factory=dict)
    """What a switch's agent said here, and what the store had of it then."""


class Part:
    """Base of the parts."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def _view(self, fabric: str) -> View:
        """A fabric as it is now, or as it was known last. Raises ``NotFound``."""
        await self._shared.mirror.fresh()
        return self._shared.mirror.view(fabric)

    async def _write(
        self,
        fabric: str,
        ask: Ask,
        decide: Decide[Answer],
        decode: Callable[[bytes], Answer] | None = None,
        needs: Callable[[View], Awaitable[object]] | None = None,
    ) -> Answer:
        """Make the change that ``decide`` wants of a fabric.

        Args:
            fabric: Its name.
            ask: The request that it answers.
            decide: The change, and the answer once it is made; refuses by raising.
            decode: The answer, from what is remembered of a request that was done before.
            needs: Brings into memory what ``decide`` looks at, besides the structure.

        Raises:
            StaleEpoch: the change is of a leader who is none any more.
            RequestReused: the id of the request stands for another.
            Unavailable: the server is away; then the change may have been made or not.
        """
        mirror, current = self._shared.mirror, False
        for turn in range(TRIES):
            if turn > PATIENT:
                await asyncio.sleep(random.uniform(0, 0.002 * turn))  # noqa: S311 - no secret
            try:
                change, answer = await self._decided(fabric, decide, needs)
            except PortError:
                self._shared.link.check()
                if current:
                    raise
                await mirror.fresh()
                current = True
                before = await self._remembered(ask)
                if before is not None and decode is not None:
                    return decode(before)
                continue
            outcome = await self._shared.lane.send(change, ask)
            if outcome.kind == "done":
                return answer
            if outcome.kind == "epoch":
                raise StaleEpoch(change.epoch or 0, outcome.number)
            if outcome.kind == "replay" and decode is not None:
                return decode(_same(ask, outcome.answer))
            await mirror.fresh()
            current = True
        raise Unavailable(f"store {self._shared.link.name}: fabrics/{fabric} changes all the time")

    async def _decided(
        self,
        fabric: str,
        decide: Decide[Answer],
        needs: Callable[[View], Awaitable[object]] | None,
    ) -> tuple[Change, Answer]:
        view = self._shared.mirror.views.get(fabric)
        if view is not None:
            await self._structure_of(view)
            if needs is not None:
                await needs(view)  # nothing is awaited from here on: one moment
        with self._sound():
            return decide(view)

    async def _remembered(self, ask: Ask) -> bytes | None:
        """The first answer to this request; None if it is new. Raises ``RequestReused``."""
        if not ask.request.id:
            return None
        key = self._shared.keys.requests
        found: bytes | None = await self._shared.link.call(
            lambda c: c.hget(key, ask.request.id)  # type: ignore[arg-type, return-value]
        )
        return None if found is None else _same(ask, found)

    async def _structure_of(self, view: View) -> Structure:
        """The structure of a fabric, from memory where it has been read before."""
        while True:
            meta = meta_of(view)
            structure = await self._structure(meta.digest, meta.blob)
            if structure is not None:
                return structure
            self._shared.link.check()
            await self._shared.mirror.fresh()  # it was put again, and the old one dropped

    async def _structure(self, digest: str, blob: str) -> Structure | None:
        known = self._shared.structures.get(digest)
        if known is not None:
            return known
        body = await self._shared.blobs.read(blob)
        if body is None:
            return None
        with self._sound():
            structure = await asyncio.to_thread(unpack_structure, body, digest)
        return self._shared.structures.setdefault(digest, structure)

    @contextmanager
    def _sound(self) -> Iterator[None]:
        """Turns damage into what the port says of it."""
        try:
            yield
        except DamagedError as error:
            name = self._shared.link.name
            raise Unusable(
                f"store {name}: a record is damaged ({error}); restore it from a backup"
            ) from error


def entry(request: Request, now: float, action: str, name: str, sides: Sides) -> AuditEntry:
    """The record of a change in the audit trail."""
    return AuditEntry(
        time=now,
        actor=request.actor,
        request=request.id or request.call,
        action=action,
        name=name,
        before=sides[0],
        after=sides[1],
    )


def _same(ask: Ask, remembered: bytes) -> bytes:
    """What was answered, if it was to this request. Raises ``RequestReused``."""
    if remembered[:FINGERPRINT].decode() != ask.fingerprint:
        raise RequestReused(ask.request.id)
    return remembered[FINGERPRINT:]
