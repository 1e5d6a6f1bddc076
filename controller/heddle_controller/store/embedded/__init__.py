"""The embedded store: one SQLite file, durable, the default.

Every write is in the write-ahead log and on the disk before it is acknowledged, so SIGKILL
at any instruction loses nothing that a client was told.
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
"""Records kept unless the operator says otherwise."""


class EmbeddedStore(Store):
    """``Store`` on one file; made by ``open_embedded``."""


async def open_embedded(
    path: Path, now: Callable[[], float] = time.time, *, audit_kept: int = AUDIT_KEPT
) -> EmbeddedStore:
    """The store in the file at ``path``, made new where there is none.

    Of the audit trail the newest ``audit_kept`` records stay.

    Raises:
        Unusable: another controller has it open, it is damaged, of another Heddle,
            not Heddle's at all, or cannot be written; the text names the cure.
    """
    database = await asyncio.to_thread(Database, path)
    applier = FileApplier(database, Bounds(audit=audit_kept))
    try:
        await applier.fresh()
    except PortError:
        await applier.close()
        raise
    return EmbeddedStore(applier, now)
