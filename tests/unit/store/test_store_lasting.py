"""What waits for the disk in the embedded store, and what does not."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from heddle_controller.store.embedded.database import Database

FULL, NORMAL = 2, 1
"""SQLite's numbers: every commit waits for the disk, or only checkpoints do."""


def _waits(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA synchronous").fetchone()[0])


def test_only_writes_that_may_be_said_again_do_not_wait_for_the_disk(tmp_path: Path) -> None:
    """A write waits for the disk unless ``lasting`` is False, also right after such a write."""

    async def modes() -> list[int]:
        database = Database(tmp_path / "store.db")
        found = [
            await database.run(_waits),
            await database.run(_waits, lasting=False),
            await database.run(_waits),
        ]
        await database.close()
        return found

    assert asyncio.run(modes()) == [FULL, NORMAL, FULL]
