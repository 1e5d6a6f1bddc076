"""The embedded store: one SQLite file, durable, the default.

Every write is one transaction in the write-ahead log, on the disk before it is
acknowledged, so SIGKILL at any instruction loses nothing that a client was told.
The parts each hold a few tables; this is where they meet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from heddle_controller.store.changes import Changes, Watcher
from heddle_controller.store.embedded.audit import AuditTable
from heddle_controller.store.embedded.audit_rows import KEPT
from heddle_controller.store.embedded.database import Database
from heddle_controller.store.embedded.demands import DemandTables
from heddle_controller.store.embedded.fabrics import FabricTables
from heddle_controller.store.embedded.facts import FactTables
from heddle_controller.store.embedded.jobs import JobTables
from heddle_controller.store.embedded.leadership import LeadershipTable
from heddle_controller.store.embedded.observed import ObservedTables
from heddle_controller.store.embedded.overlay import OverlayColumns
from heddle_controller.store.embedded.part import Shared
from heddle_controller.store.embedded.plans import PlanTables
from heddle_controller.store.embedded.states import StateTables


class EmbeddedStore(
    FabricTables,
    StateTables,
    OverlayColumns,
    ObservedTables,
    JobTables,
    DemandTables,
    PlanTables,
    FactTables,
    LeadershipTable,
    AuditTable,
):
    """``Store`` on one file; made by ``open_embedded``."""

    async def changes(self, *, facts: bool = False) -> AsyncIterator[str]:
        """See ``Store``."""
        changes = self._shared.changes
        watcher = Watcher(facts=facts)
        changes.add(watcher)
        try:
            for fabric in await self.list_fabrics():
                watcher.tell(fabric.name)
            async for name in watcher.names():
                yield name
        finally:
            changes.remove(watcher)

    async def close(self) -> None:
        """See ``Store``."""
        self._shared.changes.close()
        await self._shared.turn.end()
        await self._shared.database.close()


async def open_embedded(
    path: Path, now: Callable[[], float] = time.time, *, audit_kept: int = KEPT
) -> EmbeddedStore:
    """The store in the file at ``path``, made new where there is none.

    Of the audit trail the newest ``audit_kept`` records stay.

    Raises:
        Unusable: another controller has it open, it is damaged, of a newer Heddle,
            not Heddle's at all, or cannot be written; the text names the cure.
    """
    database = await asyncio.to_thread(Database, path)
    return EmbeddedStore(Shared(database, Changes(), now, audit_kept=audit_kept))
