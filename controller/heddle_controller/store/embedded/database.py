"""The SQLite connection of the embedded store, in a thread of its own, and its tables.

With a single thread no transactions overlap, without locks in Python, and fsync does not block the
event loop.

Facts that agents report again anyway need not wait for the disk (``lasting``). A controller that is
killed loses none of them, and a machine that loses power loses only the newest. Writes stay in
order: the next one that waits for the disk also makes all earlier ones durable.

The file is checked before it is used. It contains the number of its schema, and another number is
refused, because guessing what another version of Heddle meant would lose data.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from heddle_controller.state.errors import Unavailable, Unusable
from heddle_controller.store.embedded.file import StoreFile

APPLICATION_ID = 0x4844_4C31
"""Distinguishes a file of Heddle from other SQLite files."""

SCHEMA_VERSION = 10

_TABLES = """
CREATE TABLE leader (
    only INTEGER PRIMARY KEY CHECK (only = 1),
    epoch INTEGER NOT NULL,
    holder TEXT NOT NULL
) STRICT;
INSERT INTO leader VALUES (1, 0, '');
CREATE TABLE fields (
    fabric TEXT NOT NULL,
    field TEXT NOT NULL,
    value BLOB NOT NULL,
    PRIMARY KEY (fabric, field)
) STRICT, WITHOUT ROWID;
CREATE TABLE blobs (
    id TEXT PRIMARY KEY,
    body BLOB NOT NULL
) STRICT;
CREATE TABLE pointers (           -- beside the blobs: to count would write these again
    blob TEXT PRIMARY KEY,
    count INTEGER NOT NULL        -- how often fabrics point at it
) STRICT, WITHOUT ROWID;
CREATE TABLE requests (
    number INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    answer BLOB NOT NULL
) STRICT;
CREATE TABLE audit (
    number INTEGER PRIMARY KEY,
    hash BLOB NOT NULL,
    entry BLOB NOT NULL
) STRICT;
CREATE TABLE anchor (             -- of the audit trail: the newest record that was dropped
    only INTEGER PRIMARY KEY CHECK (only = 1),
    number INTEGER NOT NULL,
    hash BLOB NOT NULL
) STRICT;
"""


def create_database(path: Path) -> None:
    """Create the tables of a new store in an empty file.

    Raises:
        OSError: the file cannot be written.
    """
    try:
        connection = sqlite3.connect(path, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = FULL")
            connection.executescript(
                f"BEGIN IMMEDIATE;{_TABLES}PRAGMA application_id = {APPLICATION_ID};"
                f"PRAGMA user_version = {SCHEMA_VERSION};COMMIT;"
            )
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise OSError(0, str(error)) from error


def open_database(path: Path, told: Path) -> sqlite3.Connection:
    """Check a store file and return a connection to it.

    When a commit returns, it is in the write-ahead log and on the disk.

    Args:
        path: The file.
        told: The path as the user gave it, for messages.

    Raises:
        Unusable: the file belongs to another program, is damaged, has another schema, or cannot
            be written.
    """
    try:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    except sqlite3.Error as error:
        raise Unusable(f"store {told}: {error}; give a path that can be written") from None
    try:
        _check(connection, told)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _pragma(connection, "user_version")  # opens the log, which is then locked
    except sqlite3.DatabaseError as error:
        connection.close()
        raise Unusable(_cure(told, error)) from None
    except Unusable:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, path: Path) -> None:
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise Unusable(f"store {path}: belongs to another program; give a file of its own")
    version = _pragma(connection, "user_version")
    if version != SCHEMA_VERSION:
        age = "a newer" if version > SCHEMA_VERSION else "an older"
        raise Unusable(
            f"store {path}: written by {age} Heddle (schema {version}, this one knows only "
            f"{SCHEMA_VERSION}); run that one, or move the file aside to start with a new one"
        )
    report = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if report != "ok":
        raise Unusable(_cure(path, report))


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _cure(path: Path, trouble: object) -> str:
    reason = " ".join(str(trouble).split())
    return (
        f"store {path}: cannot be read ({reason}); restore it from a backup,"
        " or move it aside to start with an empty one"
    )


_Answer = TypeVar("_Answer")
Work = Callable[[sqlite3.Connection], _Answer]


class Database:
    """A store file that is open and locked until ``close``."""

    def __init__(self, path: Path) -> None:
        """Open and lock the file. Raises ``Unusable``; the text names the cure."""
        self.path = path
        self._file = StoreFile(path, create_database)
        try:
            self._connection = open_database(self._file.path, path)
        except Unusable:
            self._file.release()
            raise
        try:
            self._file.lock_log()
        except Unusable:
            self._connection.close()
            self._file.release()
            raise
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="heddle-store")
        self._open = True
        self._lost = False

    async def run(self, work: Work[_Answer], *, lasting: bool = True) -> _Answer:
        """Run ``work`` in the thread, inside a transaction, and return its result.

        The transaction is durable when this returns. If it need not be ``lasting``, a power loss
        may undo it. If ``work`` raises, nothing is written.

        Raises:
            Unavailable: the file cannot be read or written now, is closed, or is no longer the one
                at its path. In the last case the transaction may have been made in the lost file.
        """
        self._check_open()
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._transaction, work, lasting)

    def _transaction(
        self,
        work: Work[_Answer],
        lasting: bool,  # noqa: FBT001 - an executor passes no names
    ) -> _Answer:
        self.check()
        try:
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if lasting else 'NORMAL'}")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                answer = work(self._connection)
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
        except sqlite3.Error as error:
            raise Unavailable(f"store {self.path}: {error}; free its disk, or mend it") from error
        self.check()
        return answer

    @property
    def lost(self) -> bool:
        """Whether the last check found the file missing, replaced or truncated."""
        return self._lost

    def check(self) -> None:
        """Raise ``Unavailable`` if the file is closed, missing, replaced or truncated."""
        self._check_open()
        trouble = self._file.trouble()
        self._lost = bool(trouble)
        if trouble:
            raise Unavailable(f"store {self.path}: {trouble}")

    def _check_open(self) -> None:
        if not self._open:
            raise Unavailable(f"store {self.path}: closed, the controller is stopping")

    async def close(self) -> None:
        """Finish the work in progress and release the file. A second call does nothing."""
        if not self._open:
            return
        self._open = False
        await asyncio.to_thread(self._thread.shutdown)
        self._connection.close()
        self._file.release()
