"""One process at a time may have a store file open.

SQLite would let two controllers write one file in turn, and both would think they
lead. The lock is an flock on a file beside it: the kernel lets go of it when the
process ends, however it ends, so a killed controller leaves nothing to clean up.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from heddle_controller.reconcile.errors import Unusable


class FileLock:
    """Held from making to ``release``."""

    def __init__(self, path: Path) -> None:
        """Take the lock of the store file at ``path``.

        Raises:
            Unusable: another process holds it, or the folder cannot be written.
        """
        lock = path.with_name(path.name + ".lock")
        try:
            self._file = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise Unusable(
                f"store {path}: cannot create {lock.name} ({error.strerror}); "
                "give a path in a folder that exists and can be written"
            ) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._file, 32, 0).decode(errors="replace").strip()
            os.close(self._file)
            raise Unusable(
                f"store {path}: in use by another controller (process {holder or 'unknown'}); "
                "stop that one, or give this one a file of its own"
            ) from None
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        """Let go. The lock file stays: removing it would race with who opens it next."""
        os.close(self._file)
