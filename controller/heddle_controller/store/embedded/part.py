"""What the parts of the embedded store share: the file, who watches, and the time."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from heddle_controller.model.fabric import Structure
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Program
from heddle_controller.state.audit_texts import Change
from heddle_controller.state.codec.deltas import Base
from heddle_controller.state.errors import Unavailable
from heddle_controller.state.records import DemandRecord, Programmed, Request
from heddle_controller.store.changes import Changes
from heddle_controller.store.embedded.audit_rows import KEPT, note
from heddle_controller.store.embedded.database import Database, Work
from heddle_controller.store.embedded.reporters import Observations

Answer = TypeVar("Answer")

NOBODY = Request()


class Turn:
    """Who leads in this process, and those who wait for it."""

    def __init__(self) -> None:
        self.changed = asyncio.Condition()
        self.leader = 0
        self.closed = False

    async def lose(self) -> None:
        """Nobody leads any more: the store is lost."""
        async with self.changed:
            self.leader = 0
            self.changed.notify_all()

    async def end(self) -> None:
        """Wake every waiter: the store closes."""
        async with self.changed:
            self.closed = True
            self.changed.notify_all()


@dataclass(frozen=True, slots=True)
class KeptSet:
    """A demand set as it is kept in memory."""

    record: DemandRecord
    text: str
    """For the audit trail; the same for the same content alone."""
    jobs: frozenset[str]
    """Names of jobs whose flows would have ids of this set."""


@dataclass(frozen=True)
class Shared:
    """One of these a store."""

    database: Database
    changes: Changes
    now: Callable[[], float]
    """Unix seconds."""
    observations: Observations = field(default_factory=Observations)
    newest: dict[str, tuple[Plan, Program]] = field(default_factory=dict)
    """The newest plan read or committed, by fabric."""
    demands: dict[tuple[str, str], KeptSet] = field(default_factory=dict)
    """By fabric and name; touched in the store's thread only."""
    bases: dict[str, Base[int]] = field(default_factory=dict)
    """Of the newest plan, by fabric; absent where it is not known."""
    programmed: dict[str, dict[str, Programmed]] = field(default_factory=dict)
    """By fabric and switch, as in the file; touched in the store's thread only."""
    turn: Turn = field(default_factory=Turn)
    audit_kept: int = KEPT
    """Records of the audit trail, oldest dropped first."""
    structures: dict[str, Structure] = field(default_factory=dict)
    """By digest, so that plans and fabrics share them; touched in the store's thread only."""


class Part:
    """Base of the parts: how each reads and writes."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared

    async def _read(self, work: Work[Answer]) -> Answer:
        return await self._run(self._shared.database.run(work))

    async def _run(self, running: Awaitable[Answer]) -> Answer:
        try:
            return await running
        except Unavailable:
            if self._shared.database.lost:
                await self._shared.turn.lose()
            raise

    async def _write(
        self,
        fabric: str,
        work: Work[Answer],
        *,
        facts: bool = False,
        lasting: bool = True,
        then: Callable[[Answer], None] | None = None,
    ) -> Answer:
        """Run a transaction, and tell the watchers of the fabric once it is durable.

        Or written, at least, where it need not be ``lasting``. ``then`` is called before them, in
        the store's thread.
        """
        loop = asyncio.get_running_loop()

        def after(answer: Answer) -> None:
            if then is not None:
                then(answer)
            loop.call_soon_threadsafe(self._tell, fabric, facts)

        return await self._run(self._shared.database.run(work, after, lasting=lasting))

    def _note(self, connection: sqlite3.Connection, request: Request, change: Change) -> None:
        """Add to the audit trail, in the transaction of the change."""
        note(connection, request, change, self._shared.now(), self._shared.audit_kept)

    def _tell(self, fabric: str, facts: bool) -> None:  # noqa: FBT001 - a callback's argument
        self._shared.changes.tell(fabric, facts=facts)


def new_etag(version: int) -> str:
    """One that no record had before, not even in a copy of the file that went another way."""
    return f"{version:x}-{secrets.token_hex(4)}"
