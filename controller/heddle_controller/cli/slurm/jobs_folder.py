"""The folder of the prolog and the epilog, which nodes may share, and what is in it.

For example::

    DIRECTORY/alps-42/0/hosts      job 42 of cluster alps, first start: its hosts in rank order
    DIRECTORY/alps-42/0/n0.json    the ports that QPs of host n0 must use; also n0.ports, n0.env
    DIRECTORY/alps-42/0/said       why it is not programmed, if it is not
    DIRECTORY/owed/alps-41         has ended, but no controller has been told yet
    DIRECTORY/.turn-3              locked by the prolog whose turn it is: deploy/slurm/prolog
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from heddle.ports import ports_text
from heddle.ports_environment import environment_text

OWED = "owed"


class JobsFolder:
    """The files that are kept for the jobs of one cluster."""

    def __init__(self, path: Path) -> None:
        """Use the folder ``path``, which the user who runs slurmctld can write to."""
        self._path = path
        self._owed = path / OWED

    def knows(self, job: str) -> bool:
        """Whether a job was submitted, or may have been, and no command has ended it."""
        return (self._path / job).is_dir() or (self._owed / job).exists()

    def begin(self, job: str, restart: int) -> Path:
        """Return an empty folder for a start of a job, and remove those of earlier starts.

        Raises:
            FileNotFoundError: The job has no folder: it has ended.
        """
        of_job = self._path / job
        for earlier in [*of_job.iterdir()]:
            _remove(earlier)
        path = of_job / str(restart)
        path.mkdir(mode=0o755)
        return path

    def forget(self, job: str) -> None:
        """Remove all files of a job, at once for a prolog that still writes some."""
        gone = self._path / f".{job}.gone"
        with suppress(FileNotFoundError):
            (self._path / job).rename(gone)
        _remove(gone)

    def owe(self, job: str) -> None:
        """Note that a job has ended, until a command reaches a controller and ends it there."""
        self._owed.mkdir(mode=0o700, exist_ok=True)  # whoever may read a note may lock it
        (self._owed / job).touch()

    def acquit(self, job: str) -> None:
        """Remove the note that a job has ended, because it runs again."""
        with self.held(job, wait=True):
            pass

    def debts(self) -> list[str]:
        """Return the jobs that have ended but may still exist at the controller."""
        return sorted(path.name for path in self._owed.glob("*"))

    @contextmanager
    def held(self, job: str, *, wait: bool) -> Iterator[bool]:
        """Lock the note that a job has ended, and remove it if the context ends without an error.

        Yields False if there is no such note, or if somebody else has locked it and ``wait`` is
        False.
        """
        path = self._owed / job
        try:
            note = path.open("rb")
        except FileNotFoundError:
            yield False
            return
        with note:
            try:
                fcntl.flock(note, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            if not os.fstat(note.fileno()).st_nlink:
                yield False
                return
            yield True
            path.unlink()


def _remove(path: Path) -> None:
    from shutil import rmtree  # noqa: PLC0415 - so that no job waits for its compression

    rmtree(path, ignore_errors=True)


def write_hosts(folder: Path, hosts: Sequence[str]) -> None:
    """Write the job's hosts in rank order."""
    _replace(folder / "hosts", "".join(f"{host}\n" for host in hosts))


def write_said(folder: Path, text: str) -> None:
    """Write why the job is not programmed, for its user."""
    _replace(folder / "said", f"{text}\n")


def write_ports(folder: Path, host: str, document: Mapping[str, Any]) -> None:
    """Write the ports of one host, as JSON, as lines and as variables for programs."""
    path = folder / f"{host}.json"
    _replace(path, json.dumps(document, indent=1) + "\n")
    _replace(path.with_suffix(".ports"), ports_text(document))
    text = environment_text(document, path, "heddle slurm prolog")
    _replace(path.with_suffix(".env"), text)


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.chmod(0o644)  # despite the umask, because programs of other users read it
    fresh.replace(path)
