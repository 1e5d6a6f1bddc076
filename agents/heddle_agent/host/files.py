"""The folder of the ports: ``JOB.json``, ``JOB.ports`` and ``JOB.env`` for each job.

A file is replaced in one step, so readers always see a complete one. Only files that name this
fabric and this host as their owner are ever removed. Other files in the folder stay.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from heddle.ports import ports_text
from heddle.ports_environment import environment_text

_LONGEST = 100
"""Number of characters of a job's name that become part of a file name."""
_OWNER = ("fabric", "host")


def file_stem(job: str) -> str:
    """Return the name of a job's files, without suffix.

    It is the job's name with all characters percent-encoded except letters, digits and ``_ . - ~``;
    a dot at the beginning is encoded too. A long name is cut, and a digest is appended.
    """
    stem = quote(job, safe="")
    if len(stem) > _LONGEST:
        stem = f"{stem[:_LONGEST]}%{hashlib.sha256(job.encode()).hexdigest()[:32]}"
    return f"%2E{stem[1:]}" if stem.startswith(".") else stem


class PortsFolder:
    """The folder of the ports of one host."""

    def __init__(self, path: Path, fabric: str, host: str) -> None:
        """Create the folder if it is missing; ValueError if it cannot be written to."""
        self._path = path.absolute()  # programs in other folders read where the files are
        self._owner = {"fabric": fabric, "host": host}
        try:
            for folder in reversed([path, *path.parents]):
                if not folder.is_dir():
                    folder.mkdir(exist_ok=True)
                    folder.chmod(0o755)  # despite the umask, as for files
            probe = path / ".heddle-agent.new"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise ValueError(
                f"folder {path} cannot be written to: {error.strerror}; give another with"
                " --directory"
            ) from error

    def write(self, document: Mapping[str, Any]) -> bool:
        """Write the files of a job; return whether any of them changed.

        Raises OSError if the disk refuses.
        """
        path = self._file(document["job"], "json")
        told = {**self._owner, **document}
        contents = {
            ".json": json.dumps(told, indent=1) + "\n",
            ".ports": ports_text(document),
            ".env": environment_text(document, path, "heddle-agent host"),
        }
        changed = [_replace(path.with_suffix(end), text.encode()) for end, text in contents.items()]
        return any(changed)

    def remove(self, job: str) -> bool:
        """Remove the files of a job that has ended; return whether there were any."""
        path = self._file(job, "json")
        if _owner_of(path) != self._owner_of_job(job):
            return False
        for end in (".env", ".ports"):
            path.with_suffix(end).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
        return True

    def keep(self, jobs: set[str]) -> list[str]:
        """Remove the files of all other jobs of this host; return these jobs."""
        gone = [job for job in self._jobs() if job not in jobs]
        for job in gone:
            self.remove(job)
        return gone

    def _jobs(self) -> Iterator[str]:
        """Yield the jobs that have a file of this host."""
        for path in sorted(self._path.glob("*.json")):
            owner = _owner_of(path)
            if owner is None or owner != self._owner_of_job(owner[-1]):
                continue
            if path == self._file(owner[-1], "json"):
                yield owner[-1]

    def _owner_of_job(self, job: str) -> tuple[str, ...]:
        return *(self._owner[name] for name in _OWNER), job

    def _file(self, job: str, end: str) -> Path:
        return self._path / f"{file_stem(job)}.{end}"


def _owner_of(path: Path) -> tuple[str, ...] | None:
    """Return fabric, host and job of a file; None if it is not one of ours."""
    try:
        told = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    if not isinstance(told, dict):
        return None
    names = [told.get(name) for name in (*_OWNER, "job")]
    return tuple(map(str, names)) if all(isinstance(name, str) for name in names) else None


def _replace(path: Path, content: bytes) -> bool:
    """Replace a file in one step; return whether its content changed or it was missing."""
    try:
        if path.read_bytes() == content:
            return False
    except FileNotFoundError:
        pass
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content)
    fresh.chmod(0o644)  # despite the umask, because programs of other users read it
    fresh.replace(path)
    return True
