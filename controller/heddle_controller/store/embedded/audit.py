"""The audit trail in the embedded store, read; its rows are written with each change."""

from __future__ import annotations

import sqlite3

from heddle_controller.state.audit import AuditEntry, AuditPage, AuditRecord
from heddle_controller.store.embedded.audit_rows import COLUMNS, mark_of
from heddle_controller.store.embedded.part import Part


class AuditTable(Part):
    """``AuditStore``."""

    async def audit(self, *, after: int = 0, limit: int = 0) -> AuditPage:
        """See ``AuditStore``."""

        def work(connection: sqlite3.Connection) -> AuditPage:
            rows = connection.execute(
                f"SELECT {COLUMNS} FROM audit WHERE number > ? "  # noqa: S608 - our own names
                "ORDER BY number LIMIT ?",
                (after, limit or -1),
            )
            records = tuple(AuditRecord(n, h, AuditEntry(*entry)) for n, h, *entry in rows)
            return AuditPage(mark_of(connection, "anchor"), mark_of(connection, "head"), records)

        return await self._read(work)
