"""The embedded store: one SQLite file. It is durable, and the default.

A write is in the write-ahead log and on the disk before it is acknowledged, except for facts that
agents report again anyway. So SIGKILL at any instruction loses nothing that a client was told.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from heddle_controller.state.errors import PortError
from heddle_controller.store.applier import Bounds
from heddle_controller.store.embedded.applier import FileApplier
from heddle_controller.store.embedded.database import Database
from heddle_controller.store.store import Store

AUDIT_KEPT = Bounds().audit
"""How many records of the audit trail are kept by default."""


class EmbeddedStore(Store):
    """A ``Store`` on one file. ``open_embedded`` makes it."""


async def open_embedded(
    path: Path, now: Callable[[], float] = time.time, *, audit_kept: int = AUDIT_KEPT
) -> EmbeddedStore:
    """Open the store in the file at ``path``, or create it if there is none.

    The newest ``audit_kept`` records of the audit trail are kept.

    Raises:
        Unusable: another controller has the file open; or it is damaged, was written by another
            version of Heddle or by another program, or cannot be written. The text names the cure.
    """
    database = await asyncio.to_thread(Database, path)
    applier = FileApplier(database, Bounds(audit=audit_kept))
    try:
        await applier.fresh()
    except PortError:
        await applier.close()
        raise
    return EmbeddedStore(applier, now)
