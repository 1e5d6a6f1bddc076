"""The file of an embedded store: locks it, and checks that it is still in place.

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

import fcntl
import os
import re
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

from heddle_controller.state.errors import Unusable


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
