"""What says that something is a lab's, and how all of it is removed.

Two marks, and nothing else is ever touched:

- namespaces are called ``heddle.LAB.NODE``, and a process is a lab's if it is inside
  one. Whatever the lab starts is started inside, so no list of process ids can be out
  of date, and an id used again by a stranger harms nobody;
- ``/run/heddle-lab/LAB`` holds configurations, logs and a lock. Whoever builds or runs
  a lab holds the lock for as long as it lives, so a lock that nobody holds says that
  its owner is gone, however it went.

A lab whose owner is gone is removed by the next that starts, unless it was finished and
meant to stay (``lab up``).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heddle_controller.model.errors import refuse
from heddle_emulator.netns import LabError
from heddle_emulator.netns.kernel import NAMESPACES

FOLDER = Path("/run/heddle-lab")
PREFIX = "heddle."
STATE = "lab.json"
KILL_SECONDS = 10.0

_GOOD_LAB = re.compile(r"[A-Za-z0-9_-]{1,40}")


def check_name(lab: str) -> str:
    """The name again.

    Raises:
        InputError: no lab can be called so.
    """
    if not _GOOD_LAB.fullmatch(lab):
        raise refuse("lab", f"name {lab!r}", "use up to 40 letters, digits, '-' and '_'")
    return lab


def fresh_name() -> str:
    """A name that no lab has, for one that lasts no longer than this process."""
    return f"drill-{os.getpid()}-{secrets.token_hex(2)}"


def namespace(lab: str, node: str) -> str:
    """Namespace of a node."""
    return f"{PREFIX}{lab}.{node}"


def namespaces(lab: str) -> list[str]:
    """Those there are of a lab."""
    return sorted(name for name in _listed(NAMESPACES) if name.startswith(f"{PREFIX}{lab}."))


def labs() -> list[str]:
    """Every lab that has left anything."""
    spaces = {name.split(".")[1] for name in _listed(NAMESPACES) if name.startswith(PREFIX)}
    folders = {name for name in _listed(FOLDER) if _GOOD_LAB.fullmatch(name)}
    return sorted(name for name in spaces | folders if _GOOD_LAB.fullmatch(name))


def _listed(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def processes(spaces: Iterable[str]) -> dict[int, str]:
    """Processes inside namespaces: the namespace by process id."""
    known = {}
    for space in spaces:
        with contextlib.suppress(OSError):
            status = (NAMESPACES / space).stat()
            known[status.st_dev, status.st_ino] = space
    found = {}
    for name in _listed(Path("/proc")):
        if not name.isdecimal():
            continue
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{name}/ns/net").stat()
            inside = known.get((status.st_dev, status.st_ino))
            if inside is not None:
                found[int(name)] = inside
    return found


@dataclass(slots=True)
class Claim:
    """The right to build or run one lab; let go of by ``release`` or by the process's end."""

    lab: str
    _handle: int = -1

    @property
    def folder(self) -> Path:
        """Where the lab keeps what it needs on disk."""
        return FOLDER / self.lab

    def write_state(self, state: dict[str, Any]) -> None:
        """Say what the lab is, whole or not at all."""
        path = self.folder / STATE
        path.with_suffix(".new").write_text(json.dumps(state, indent=1))
        path.with_suffix(".new").replace(path)

    def release(self) -> None:
        """Let others have it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def claim(lab: str) -> Claim:
    """The lab's lock.

    Raises:
        LabError: somebody is using the lab now.
    """
    with _registry():
        taken = _try_claim(check_name(lab))
    if taken is None:
        raise LabError(f"lab {lab} is being built, run or removed by another process; wait for it")
    return taken


def _try_claim(lab: str) -> Claim | None:
    """The lock if nobody has it; the registry must be held, so that folder and lock are one."""
    folder = FOLDER / lab
    folder.mkdir(mode=0o755, exist_ok=True)
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return Claim(lab, handle)


@contextlib.contextmanager
def _registry() -> Iterator[None]:
    """One process at a time makes or takes a claim."""
    FOLDER.mkdir(mode=0o755, exist_ok=True)
    handle = os.open(FOLDER / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def read_state(lab: str) -> dict[str, Any] | None:
    """What a finished lab said of itself; None if it never was finished."""
    try:
        state: dict[str, Any] = json.loads((FOLDER / lab / STATE).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return state


def sweep() -> list[str]:
    """Remove every lab whose owner is gone and that was not meant to stay; returns their names."""
    swept = []
    for lab in labs():
        if read_state(lab) is not None:
            continue
        with _registry():
            taken = _try_claim(lab)
        if taken is not None:
            remove(taken)
            swept.append(lab)
    return swept


def remove(taken: Claim) -> None:
    """End every process of a lab, delete its namespaces and its folder, and release it.

    Raises:
        LabError: a process does not end, even killed.
    """
    (taken.folder / STATE).unlink(missing_ok=True)  # from here on, half a lab
    spaces = namespaces(taken.lab)
    end_processes(spaces)
    script = "".join(f"netns del {space}\n" for space in spaces)
    if spaces:
        subprocess.run(["ip", "-batch", "-"], input=script, text=True, check=True)  # noqa: S607
    with _registry():
        shutil.rmtree(taken.folder, ignore_errors=True)
        taken.release()


def end_processes(spaces: list[str]) -> None:
    """Kill everything inside namespaces, and wait until it is gone."""
    deadline = time.monotonic() + KILL_SECONDS
    while found := processes(spaces):
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        _reap(found)
        if time.monotonic() > deadline:
            raise LabError(f"process {min(found)} in {found[min(found)]} does not end")
        time.sleep(0.01)


def _reap(found: Iterable[int]) -> None:
    """Those that are our own children would stay as zombies."""
    for process in found:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
