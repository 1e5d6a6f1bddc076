"""One SQLite connection in one thread of its own.

A single thread makes every write a transaction that no other can come between,
without locks in Python, and keeps fsync out of the event loop.

What agents will say again by themselves need not wait for the disk (``lasting``): a
controller that is killed loses nothing of it, and a machine that loses power no more than
the newest. Writes stay in order: the next one that does wait takes all before it along.

The tables of the embedded store, and what is checked before they are trusted.

The file has the number of its form. One of another number is refused: guessing at what
another Heddle meant loses data.
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
"""Tells a file of Heddle from any other SQLite file."""

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
    """A new store in an empty file.

    Raises:
        OSError: it cannot be written.
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
    """A connection to a sound file of this form; ``told`` is how people know the path.

    Commits are in the write-ahead log and on the disk when they return.

    Raises:
        Unusable: not a file of Heddle's, damaged, of another form, or not writable.
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
    """A store file, open and locked from making to ``close``."""

    def __init__(self, path: Path) -> None:
        """Raises ``Unusable``; the text names the cure."""
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
        """What ``work`` returns, called in the thread and inside a transaction.

        Durable when this returns, unless it need not be ``lasting``: then a loss of power may
        undo it. Nothing is written if ``work`` raises.

        Raises:
            Unavailable: the file cannot be read or written now, or is closed, or is not what lies
                at its path any more: then the transaction may have been made, in a lost file.
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
        """Whether the file was not what lies at its path, when it was last looked at."""
        return self._lost

    def check(self) -> None:
        """Nothing while the file is what lies at its path. Raises ``Unavailable``."""
        self._check_open()
        trouble = self._file.trouble()
        self._lost = bool(trouble)
        if trouble:
            raise Unavailable(f"store {self.path}: {trouble}")

    def _check_open(self) -> None:
        if not self._open:
            raise Unavailable(f"store {self.path}: closed, the controller is stopping")

    async def close(self) -> None:
        """Finish what was begun, then let go of the file; twice does nothing more."""
        if not self._open:
            return
        self._open = False
        await asyncio.to_thread(self._thread.shutdown)
        self._connection.close()
        self._file.release()
