"""Run programs of the system for a lab, and check beforehand that the machine has what it needs."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from heddle_emulator.netns import LabError
from heddle_emulator.netns.kernel import inside

_T = TypeVar("_T")
WORKERS = 4
_SECONDS = 60.0
AHEAD = -15
"""Niceness of FRR and agents. In reality each has its own switch; here they share cores."""


def run_program(command: Sequence[str], script: str = "") -> str:
    """Run a program to its end with ``script`` as its input, and return what it printed.

    Raises:
        LabError: it failed, with its last lines, or did not end in time.
    """
    try:
        done = subprocess.run(
            command,
            input=script,
            text=True,
            capture_output=True,
            check=False,
            timeout=_SECONDS,
            env={**os.environ, "PATH": _search_path()},
        )
    except subprocess.TimeoutExpired:
        raise LabError(f"{command[0]} did not end in {_SECONDS:g} s") from None
    if done.returncode:
        words = (done.stderr or done.stdout).strip().splitlines()
        raise LabError(f"{' '.join(command)} failed: {'; '.join(words[-3:]) or done.returncode}")
    return done.stdout


def _search_path() -> str:
    """Return where programs are looked for. Debian's PATH of users, and of su, has no sbin."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


def run_inside(namespace: str, command: Sequence[str], script: str = "") -> str:
    """Run a program in a namespace; see ``run_program``."""
    return inside(namespace, lambda: run_program(command, script))


def start_inside(namespace: str, command: Sequence[str], log: Path) -> int:
    """Start a program in a namespace, in its own session, and return its process id.

    Its output goes to a file. It may outlive this process.
    """
    nothing = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        nothing,
        (os.POSIX_SPAWN_OPEN, 1, str(log), flags, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    return inside(
        namespace,
        lambda: os.posix_spawn(
            command[0], list(command), os.environ, file_actions=actions, setsid=True
        ),
    )


def go_ahead(process: int | str) -> None:
    """Give a process ("self" for this one) a higher priority than the rest of the machine's.

    Linux may group processes by session and weigh groups first. So the group's niceness is set too.
    """
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0 if process == "self" else int(process), AHEAD)
        Path(f"/proc/{process}/autogroup").write_text(str(AHEAD))


def each(do: Callable[[_T], object], items: Iterable[_T]) -> None:
    """Call ``do`` for every item, a few at a time. The first error is raised."""
    with ThreadPoolExecutor(WORKERS) as pool:
        for _ in pool.map(do, items):
            pass


def write_settings(told: Mapping[str, Mapping[str, str]]) -> None:
    """Write settings by namespace: files under /proc/sys and their content.

    Raises:
        LabError: the kernel lacks a setting that the lab needs.
    """
    for namespace, settings in told.items():
        inside(namespace, lambda settings=settings: _write(settings))  # type: ignore[misc]


def _write(settings: Mapping[str, str]) -> None:
    for name, value in settings.items():
        try:
            Path("/proc/sys", name).write_text(value)
        except FileNotFoundError:
            if "ipv6" not in name:
                raise LabError(
                    f"this kernel has no setting {name}: the lab needs Linux 5.12, with"
                    " fib_multipath_hash_fields, or newer"
                ) from None


FRR = Path("/usr/lib/frr")
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nft": "nftables"}
DAEMONS = ("zebra", "bgpd", "bfdd")


def missing() -> str:
    """Return what keeps this machine from running a lab, and the cure; "" if nothing does."""
    return "; ".join(_faults())


def check_needs() -> None:
    """Check that this machine can run a lab.

    Raises:
        LabError: it cannot. The message names everything that is missing.
    """
    faults = missing()
    if faults:
        raise LabError(f"no lab on this machine: {faults}")


def _faults() -> Iterator[str]:
    if os.geteuid() != 0:
        yield "it needs root, for network namespaces: use sudo"
    where = _search_path()
    packages = {
        package for tool, package in TOOLS.items() if shutil.which(tool, path=where) is None
    }
    if any(not (FRR / daemon).exists() for daemon in DAEMONS):
        packages.add("frr")
    if packages:
        yield f"programs are missing: apt-get install {' '.join(sorted(packages))}"
    if not Path("/proc/self/ns/net").exists():
        yield "this kernel has no network namespaces"
