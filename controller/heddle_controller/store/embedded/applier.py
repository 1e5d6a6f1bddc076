"""Applies changes to one SQLite file, in one transaction a batch.

One process has the file, so its views are in memory and always of now: they are read from
the file when it is opened, and again where it is not known what became of a transaction.
Leadership is of this process; its epochs live in the file all the same, as agents refuse
what an earlier process may still have under way. Whose file is gone leads no more: another
may have begun with a copy of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

from heddle_controller.reconcile.replicas import Following, Leader, heed_nobody
from heddle_controller.state.audit import AuditPage
from heddle_controller.state.change import FACTS, NEITHER, Ask, Change, Outcome
from heddle_controller.state.errors import Unavailable
from heddle_controller.state.view import View
from heddle_controller.store.applier import Bounds
from heddle_controller.store.batches import Sent, WriteBatcher
from heddle_controller.store.embedded import tables
from heddle_controller.store.embedded.database import Database, Work
from heddle_controller.store.feed import Feed

_Answer = TypeVar("_Answer")


class FileApplier:
    """Implements ``Applier``; made by ``open_applier``."""

    def __init__(self, database: Database, bounds: Bounds) -> None:
        self.name = str(database.path)
        self.feed = Feed()
        self._database = database
        self._bounds = bounds
        self._views: dict[str, View] = {}
        self._newest = Leader()
        self._doubtful = True
        """Whether the file may have other fields than the views."""
        self._looking: asyncio.Task[None] | None = None
        self._turn = asyncio.Condition()
        self._leading = 0
        """Epoch of whoever leads in this process; 0 for nobody."""
        self._closed = False
        self._writes = WriteBatcher(self.name, self._deliver)

    @property
    def epoch(self) -> int:
        """See ``Applier``."""
        return self._newest.epoch

    def check(self) -> None:
        """See ``Applier``."""
        self._database.check()

    async def fresh(self) -> None:
        """See ``Applier``. Readers that come together look at the file once."""
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())
        await asyncio.shield(self._looking)

    async def _look(self) -> None:
        self._looking = None
        try:
            self.check()
        except Unavailable:
            await self._lose()
            raise
        if self._doubtful:
            await self._load()

    async def _load(self) -> None:
        fields, self._newest = await self._run(
            lambda c: (tables.all_fields(c), tables.leader_of(c))
        )
        for fabric in {*fields, *self._views}:
            view = self._views.setdefault(fabric, View(fabric))
            view.replace(fields.get(fabric, ()))
        self._doubtful = False

    async def _run(self, work: Work[_Answer], *, lasting: bool = True) -> _Answer:
        try:
            return await self._database.run(work, lasting=lasting)
        except Unavailable:
            self._doubtful = True
            if self._database.lost:
                await self._lose()
            raise

    def view(self, fabric: str) -> View:
        """See ``Applier``."""
        return self._views.get(fabric) or View(fabric)

    def fabrics(self) -> Sequence[str]:
        """See ``Applier``."""
        return sorted(name for name, view in self._views.items() if view.known)

    async def apply(self, change: Change, ask: Ask) -> Outcome:
        """See ``Applier``."""
        return await self._writes.send(change, ask)

    async def _deliver(self, batch: Sequence[Sent]) -> Sequence[Outcome]:
        if self._doubtful:
            await self._load()
        outcomes = await self._run(
            lambda c: [tables.write(c, one.change, one.ask, self._bounds) for one in batch],
            lasting=batch[0].change.lasting,
        )
        for one, outcome in zip(batch, outcomes, strict=True):
            if outcome.kind == "done":
                self._made(one.change)
        return outcomes

    def _made(self, change: Change) -> None:
        self._views.setdefault(change.fabric, View(change.fabric)).advance(change)
        if change.moves != NEITHER:
            self.feed.tell(change.fabric, facts=change.moves == FACTS)

    async def remembered(self, request: str) -> bytes | None:
        """See ``Applier``."""
        return await self._run(lambda c: tables.remembered(c, request))

    async def blob(self, identity: str) -> bytes | None:
        """See ``Applier``."""
        return await self._run(lambda c: tables.blob_of(c, identity))

    async def audit(self, *, after: int = 0, limit: int = 0) -> AuditPage:
        """See ``AuditStore``."""
        return await self._run(lambda c: tables.audit_page(c, after, limit))

    async def acquire_leadership(
        self, holder: str, *, above: int = 0, following: Following = heed_nobody
    ) -> int:
        """See ``Leadership``."""
        async with self._turn:
            if self._leading:
                following(self._newest)
            await self._turn.wait_for(lambda: not self._leading or self._closed)
            if self._closed:
                raise Unavailable("the store is closed, the controller is stopping")
            # Not ``_run``, which would take the turn again.
            self._newest = await self._database.run(lambda c: tables.next_leader(c, holder, above))
            self._leading = self.epoch
            return self._leading

    async def leadership_lost(self, epoch: int) -> None:
        """See ``Leadership``."""
        async with self._turn:
            await self._turn.wait_for(lambda: self._leading != epoch or self._closed)

    async def release_leadership(self, epoch: int) -> None:
        """See ``Leadership``."""
        if self._leading == epoch:
            await self._lose()

    async def _lose(self) -> None:
        """Nobody leads any more."""
        async with self._turn:
            self._leading = 0
            self._turn.notify_all()

    def leads(self, epoch: int) -> bool:
        """See ``Succession``."""
        return self._leading == epoch and not self._closed

    async def leader(self) -> Leader:
        """See ``Succession``."""
        await self.fresh()
        return self._newest

    def stale_for(self) -> float:
        """See ``Freshness``: the file is here, or nothing is."""
        return 0.0

    async def close(self) -> None:
        """See ``Applier``."""
        self.feed.close()
        async with self._turn:
            self._closed = True
            self._turn.notify_all()
        await self._writes.close()
        await self._database.close()
