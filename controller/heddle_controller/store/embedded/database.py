"""One SQLite connection in one thread of its own.

A single thread makes every write a transaction that no other can come between,
without locks in Python, and keeps fsync out of the event loop.

What agents will say again by themselves need not wait for the disk (``lasting``): a
controller that is killed loses nothing of it, and a machine that loses power no more than
the newest. Writes stay in order: the next one that does wait takes all before it along.
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
from heddle_controller.store.embedded.schema import create_database, open_database

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
