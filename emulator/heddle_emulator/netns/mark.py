"""How a lab marks what belongs to it, and how all of that is removed.

There are two marks. Nothing without a mark is ever touched:

- Namespaces are called ``heddle.LAB.NODE``, and a process belongs to a lab if it is inside one. The
  lab starts everything inside. So no list of process ids can be out of date, and an id that another
  program uses again does no harm.
- ``/run/heddle-lab/LAB`` has configurations, logs and a lock. The process that builds or runs a lab
  holds the lock as long as it lives. So a free lock means that the owner is gone, for whatever
  reason.

The next lab that starts removes a lab whose owner is gone, unless that one was finished and meant
to stay (``lab up``).
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
    """Return the name of a lab unchanged if it is a valid one.

    Raises:
        InputError: the name is not valid.
    """
    if not _GOOD_LAB.fullmatch(lab):
        raise refuse("lab", f"name {lab!r}", "use up to 40 letters, digits, '-' and '_'")
    return lab


def fresh_name() -> str:
    """Return an unused name for a lab that lasts no longer than this process."""
    return f"drill-{os.getpid()}-{secrets.token_hex(2)}"


def namespace(lab: str, node: str) -> str:
    """Return the name of a node's namespace."""
    return f"{PREFIX}{lab}.{node}"


def namespaces(lab: str) -> list[str]:
    """Return the existing namespaces of a lab."""
    return sorted(name for name in _listed(NAMESPACES) if name.startswith(f"{PREFIX}{lab}."))


def labs() -> list[str]:
    """Return the names of all labs that have a namespace or a folder."""
    spaces = {name.split(".")[1] for name in _listed(NAMESPACES) if name.startswith(PREFIX)}
    folders = {name for name in _listed(FOLDER) if _GOOD_LAB.fullmatch(name)}
    return sorted(name for name in spaces | folders if _GOOD_LAB.fullmatch(name))


def _listed(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def processes(spaces: Iterable[str]) -> dict[int, str]:
    """Return the processes inside namespaces, as the namespace by process id."""
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
    """The right to build or run one lab. It ends with ``release`` or with the process."""

    lab: str
    _handle: int = -1

    @property
    def folder(self) -> Path:
        """The lab's folder on disk."""
        return FOLDER / self.lab

    def write_state(self, state: dict[str, Any]) -> None:
        """Write the lab's state file atomically, which marks the lab as finished."""
        path = self.folder / STATE
        path.with_suffix(".new").write_text(json.dumps(state, indent=1))
        path.with_suffix(".new").replace(path)

    def release(self) -> None:
        """Give the claim up, so that others can take it."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


def claim(lab: str) -> Claim:
    """Take the claim of a lab.

    Raises:
        InputError: the name is not valid.
        LabError: another process uses the lab now.
    """
    with _registry():
        taken = _try_claim(check_name(lab))
    if taken is None:
        raise LabError(f"lab {lab} is being built, run or removed by another process; wait for it")
    return taken


def _try_claim(lab: str) -> Claim | None:
    """Take a claim if it is free, else None. The registry must be held, so the folder stays."""
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
    """Hold the registry's lock: only one process at a time may make or take claims."""
    FOLDER.mkdir(mode=0o755, exist_ok=True)
    handle = os.open(FOLDER / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def read_state(lab: str) -> dict[str, Any] | None:
    """Return the state of a finished lab; None if the lab was never finished."""
    try:
        state: dict[str, Any] = json.loads((FOLDER / lab / STATE).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return state


def sweep() -> list[str]:
    """Remove every unfinished lab whose owner is gone, and return their names."""
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
    """End all processes of a lab, delete its namespaces and its folder, and release it.

    Raises:
        LabError: a process does not end although it was killed.
    """
    (taken.folder / STATE).unlink(missing_ok=True)  # the lab is unfinished from here on
    spaces = namespaces(taken.lab)
    end_processes(spaces)
    script = "".join(f"netns del {space}\n" for space in spaces)
    if spaces:
        subprocess.run(["ip", "-batch", "-"], input=script, text=True, check=True)  # noqa: S607
    with _registry():
        shutil.rmtree(taken.folder, ignore_errors=True)
        taken.release()


def end_processes(spaces: list[str]) -> None:
    """Kill all processes inside namespaces, and wait until they are gone.

    Raises:
        LabError: a process does not end.
    """
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
    """Collect ended children of this process, which would stay as zombies."""
    for process in found:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(process, os.WNOHANG)
