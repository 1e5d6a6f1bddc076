"""The file of the embedded store: its lock, its tables, and its connection in a thread of its own.

With a single thread no transactions overlap, without locks in Python, and fsync does not block the
event loop.

Facts that agents report again anyway need not wait for the disk (``lasting``). A controller that is
killed loses none of them, and a machine that loses power loses only the newest. Writes stay in
order: the next one that waits for the disk also makes all earlier ones durable.

The file is checked before it is used. It contains the number of its schema, and another number is
refused, because guessing what another version of Heddle meant would lose data.

The process takes an flock of the file itself, so another name of it (a link) is the same file. The
kernel releases the lock when the process ends for any reason. SQLite has locks of its own, which a
process loses when it closes *any* descriptor of the file. So our descriptor is opened before
SQLite's and closed after it. The write-ahead log is locked in the same way, because the next
process at the same path would take it for the log of its own file.

If the file is removed, replaced or truncated while SQLite uses it, SQLite goes on accepting writes
that nobody will find again. So before and after each transaction the process checks that the file
is still the one at its path and has not become shorter.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import sqlite3
import stat
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from heddle_controller.state.errors import Unavailable, Unusable


class StoreFile:
    """A store file, locked until ``release``."""

    def __init__(self, path: Path, make: Callable[[Path], None]) -> None:
        """Open and lock the store file at ``path``, which ``make`` creates if there is none.

        Raises:
            Unusable: another process has the file, or it cannot hold a store.
        """
        _check_name(path)
        self._told = path
        self.path = Path(os.path.realpath(path))
        """The path without symbolic links. SQLite puts its log in the same folder."""
        self._log = self.path.with_name(f"{self.path.name}-wal")
        try:
            there = self.path.exists()
        except OSError as error:  # a folder on the way may not be searched
            raise self._no_place(error) from None
        if not there:
            self._begin(make)
        self._file = self._open(self.path)
        self._log_file: int | None = None
        try:
            self._check()
            self._take(self._file)
            self.lock_log()
        except Unusable:
            self.release()
            raise

    def _begin(self, make: Callable[[Path], None]) -> None:
        """Create the file under another name and rename it, so that a crash leaves nothing."""
        if self._log.exists():
            raise self._unusable(
                f"is gone, but its log {self._log.name} is there: bring the file back, or, if all "
                "in it may be lost, stop the controller that had it and remove the log"
            )
        try:
            folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            raise self._no_place(error) from None
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # or a second process would replace the file
            if not self.path.exists():
                self._make(make)
            os.fsync(folder)
        except OSError as error:
            raise self._no_place(error) from None
        finally:
            os.close(folder)

    def _make(self, make: Callable[[Path], None]) -> None:
        file, name = tempfile.mkstemp(prefix=f".{self.path.name}.", dir=self.path.parent)
        os.close(file)
        beside = Path(name)
        try:
            make(beside)
            beside.rename(self.path)
        finally:
            beside.unlink(missing_ok=True)

    def _open(self, path: Path) -> int:
        try:
            return os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            reason = f"cannot be opened ({error.strerror}); give a path that can be written"
            raise self._unusable(reason) from None

    def _check(self) -> None:
        about = os.fstat(self._file)
        self._known, self._size = (about.st_dev, about.st_ino), about.st_size
        if not stat.S_ISREG(about.st_mode):
            raise self._unusable(
                "is not a file; give the path of a file, or a path where there is nothing yet"
            )
        if about.st_nlink > 1:
            raise self._unusable(
                f"has {about.st_nlink} names (hard links), and only beside one of them lies its "
                "log: keep that name and remove the others"
            )
        if about.st_size == 0:
            raise self._unusable(
                "is empty, and a store never is: restore it from a backup, or remove it to start "
                "with a new one"
            )

    def _take(self, file: int) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise self._unusable(
                f"in use by another controller (process {_holder(file)}); "
                "stop that one, or give this one a file of its own"
            ) from None

    def lock_log(self) -> None:
        """Lock the write-ahead log, if there is one.

        Called before SQLite opens the log, and again after SQLite has created it.

        Raises:
            Unusable: another process has the log.
        """
        if self._log_file is not None:
            if self._log_stands(os.fstat(self._log_file)):
                return
            os.close(self._log_file)  # the log of a crashed process, which SQLite no longer uses
            self._log_file = None
        if not self._log.exists():
            return
        self._log_file = self._open(self._log)
        self._take(self._log_file)

    def trouble(self) -> str:
        """Return why no write to the file may be acknowledged, or "" if it is in order."""
        try:
            now = self._told.stat()
        except OSError as error:
            return f"is not there any more ({error.strerror}): bring it back, or restore a backup"
        if (now.st_dev, now.st_ino) != self._known:
            return "is another file now: bring the old one back, or restart on the new one"
        if now.st_size < self._size:
            return "was cut short: restore it from a backup"
        self._size = now.st_size
        if self._log_file is not None and not self._log_stands(os.fstat(self._log_file)):
            return f"lost its log {self._log.name}: restart the controller"
        return ""

    def _log_stands(self, known: os.stat_result) -> bool:
        try:
            now = self._log.stat()
        except OSError:
            return False
        return (now.st_dev, now.st_ino) == (known.st_dev, known.st_ino)

    def release(self) -> None:
        """Release the locks. SQLite must have closed the file before."""
        for file in (self._log_file, self._file):
            if file is not None:
                os.close(file)

    def _no_place(self, error: OSError) -> Unusable:
        cure = "give a path in a folder that exists and can be written"
        if not self._told.is_absolute():
            cure += f"; this one is below {Path.cwd()}: sqlite://// begins an absolute path"
        return self._unusable(f"cannot be created ({error.strerror}); {cure}")

    def _unusable(self, reason: str) -> Unusable:
        return Unusable(f"store {self._told}: {reason}")


def _check_name(path: Path) -> None:
    """Raise ``Unusable`` if the path names no file or has a special meaning for SQLite."""
    if path.name in {"", ".", ".."} or path.name.startswith(":"):
        raise Unusable(
            f"store {path}: does not name a file; a store outlives its controller: give a path "
            "such as /var/lib/heddle/heddle.db"
        )


def _holder(file: int) -> str:
    """Return the id of the process that has the flock of a file, or "unknown"."""
    inode = os.fstat(file).st_ino
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return "unknown"
    found = re.search(rf"FLOCK .* ([0-9]+) [0-9a-f]+:[0-9a-f]+:{inode} ", locks)
    return found[1] if found else "unknown"


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
        raise Unusable(_reason(told, error)) from None
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
        raise Unusable(_damaged(path, report))


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""Primary error codes that say that the content of the file is wrong."""


def _reason(path: Path, error: sqlite3.DatabaseError) -> str:
    """Return why a file cannot be opened; a full disk is no reason to give up the file."""
    if error.sqlite_errorcode & 0xFF in _DAMAGE:  # the rest of the code says more
        return _damaged(path, error)
    return (
        f"store {path}: cannot be used now ({error}): is its disk full or faulty, or does another"
        " program use the file?"
    )


def _damaged(path: Path, trouble: object) -> str:
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
