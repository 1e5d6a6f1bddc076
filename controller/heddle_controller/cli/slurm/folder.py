"""The folder of the prolog and the epilog, on a file system that nodes share or on their own.

DIRECTORY/alps-42/0/hosts      job 42 of cluster alps, first start: its hosts in rank order
DIRECTORY/alps-42/0/n0.json    the ports that QPs of host n0 have to use, and n0.ports, n0.env
DIRECTORY/alps-42/0/said       why it is not programmed, where it is not
DIRECTORY/owed/alps-41         has ended, and no controller has heard of it yet
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from heddle.ports import ports_text
from heddle.ports_environment import environment_text

OWED = "owed"


class JobsFolder:
    """What is kept of the jobs of one cluster."""

    def __init__(self, path: Path) -> None:
        """``path`` has to be there; whoever runs slurmctld writes to it."""
        self._path = path
        self._owed = path / OWED

    def knows(self, job: str) -> bool:
        """Whether a job was submitted, or may have been."""
        return (self._path / job).is_dir()

    def begin(self, job: str, restart: int) -> Path:
        """An empty folder for a start of a job; those of earlier starts go."""
        self.forget(job)
        path = self._path / job / str(restart)
        path.mkdir(mode=0o755, parents=True)
        return path

    def forget(self, job: str) -> None:
        """Remove what there is of a job."""
        shutil.rmtree(self._path / job, ignore_errors=True)

    def owe(self, job: str) -> None:
        """Note that a job has ended, for whoever reaches a controller next."""
        self._owed.mkdir(mode=0o755, exist_ok=True)
        (self._owed / job).touch()

    def acquit(self, job: str) -> None:
        """The job runs again: nobody is to end it any more."""
        with self.held(job, wait=True):
            pass

    def debts(self) -> list[str]:
        """Jobs that have ended."""
        return sorted(path.name for path in self._owed.glob("*"))

    @contextmanager
    def held(self, job: str, *, wait: bool) -> Iterator[bool]:
        """Hold the note of a job that has ended, and remove it if all goes well meanwhile.

        False where there is none, or somebody else holds it and that is not to be waited for.
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


def write_hosts(folder: Path, hosts: Sequence[str]) -> None:
    """Its hosts in rank order."""
    _replace(folder / "hosts", "".join(f"{host}\n" for host in hosts))


def write_said(folder: Path, text: str) -> None:
    """Why it is not programmed, for its user."""
    _replace(folder / "said", f"{text}\n")


def write_ports(folder: Path, host: str, document: Mapping[str, Any]) -> None:
    """The ports of one host, and variables for programs that take them from there."""
    path = folder / f"{host}.json"
    _replace(path, json.dumps(document, indent=1) + "\n")
    _replace(path.with_suffix(".ports"), ports_text(document))
    text = environment_text(document, path, "heddle slurm prolog")
    _replace(path.with_suffix(".env"), text)


def _replace(path: Path, text: str) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text)
    fresh.chmod(0o644)  # whatever the umask: programs of other users read it
    fresh.replace(path)
