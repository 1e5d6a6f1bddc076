"""The file of an embedded store: locked by what it is, not by what it is called, and watched.

Whoever opens the file takes an flock of the file itself, so another name of it (a link) is the
same file. The kernel lets go when the process ends, however it ends. SQLite has locks of its own
on it, of the kind that a process loses when it closes *any* descriptor of the file: ours is
opened before SQLite's and closed after it. The write-ahead log is locked likewise, because the
next process at the same path would take it for its own file's.

A file that somebody takes away, replaces or cuts short under SQLite goes on taking writes that
nobody will find again. So it is looked at around each transaction: is it still what lies at its
path, and has it lost nothing?
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from heddle_controller.state.errors import Unusable


class StoreFile:
    """Held from making to ``release``."""

    def __init__(self, path: Path, make: Callable[[Path], None]) -> None:
        """Take the store file at ``path``; where there is none, ``make`` makes one.

        Raises:
            Unusable: another process has it, or it is none that a store may be kept in.
        """
        _check_name(path)
        self._told = path
        self.path = Path(os.path.realpath(path))
        """Where it lies; SQLite puts its log beside it."""
        self._log = self.path.with_name(f"{self.path.name}-wal")
        if not self.path.exists():
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
        """Make the file, whole before it has its name: a crash leaves no half of one."""
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
            fcntl.flock(folder, fcntl.LOCK_EX)  # one at a time, or the second would replace it
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
        """Lock the log as it now is; before SQLite opens it, and again once it has made it.

        Raises:
            Unusable: another process has it.
        """
        if self._log_file is not None:
            if self._log_stands(os.fstat(self._log_file)):
                return
            os.close(self._log_file)  # of a crash, and SQLite is through with it
            self._log_file = None
        if not self._log.exists():
            return
        self._log_file = self._open(self._log)
        self._take(self._log_file)

    def trouble(self) -> str:
        """What has become of the file that no write to it may be acknowledged; empty: nothing."""
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
        """Let go, once SQLite has."""
        for file in (self._log_file, self._file):
            if file is not None:
                os.close(file)

    def _no_place(self, error: OSError) -> Unusable:
        cure = "give a path in a folder that exists and can be written"
        return self._unusable(f"cannot be created ({error.strerror}); {cure}")

    def _unusable(self, reason: str) -> Unusable:
        return Unusable(f"store {self._told}: {reason}")


def _check_name(path: Path) -> None:
    """Nothing, where the name is one of a file. Raises ``Unusable`` for SQLite's own words."""
    if path.name in {"", ".", ".."} or path.name.startswith(":"):
        raise Unusable(
            f"store {path}: does not name a file; a store outlives its controller: give a path "
            "such as /var/lib/heddle/heddle.db"
        )


def _holder(file: int) -> str:
    """The process that has the flock of a file, as the kernel tells; "unknown" if it does not."""
    inode = os.fstat(file).st_ino
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii")
    except OSError:
        return "unknown"
    found = re.search(rf"FLOCK .* ([0-9]+) [0-9a-f]+:[0-9a-f]+:{inode} ", locks)
    return found[1] if found else "unknown"
