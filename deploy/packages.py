#!/usr/bin/env python3
"""Write deploy/packages: the packages that each distribution pulls in; --check only compares.

They are read from what is installed in .venv, so no package index is asked. The lists are
committed, so that what a switch or a server gets is reviewed and no surprise of the resolver. They
hold what any supported Python (3.11 and newer) on Linux needs. The markers in the lock decide which
of these a given Python gets.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FOLDER = Path(__file__).resolve().parent / "packages"
LISTS = {
    "agent": "heddle-agent",
    "sonic": "heddle-agent[sonic]",
    "controller": "heddle-controller[web]",
    "emulator": "heddle-emulator",
    "kubernetes": "heddle-kubernetes",
    "build": "hatchling",  # builds our own wheels
    "uv": "uv",  # installs all others
}
LINUX = {
    "os_name": "posix",
    "platform_system": "Linux",
    "sys_platform": "linux",
    "platform_python_implementation": "CPython",
    "implementation_name": "cpython",
}
# That of Debian 12, the newest 3.11, and the versions since.
PYTHONS = ("3.11.2", "3.11.14", "3.12.12", "3.13.9", "3.14.0")
HEADER = "# Packages of {}, written by deploy/packages.py. Versions: requirements.lock.\n"


def applies(requirement: Requirement, extras: Iterable[str]) -> bool:
    """Whether any of ``PYTHONS``, with any of these extras, needs a requirement."""
    if requirement.marker is None:
        return True
    return any(
        requirement.marker.evaluate(
            {
                **LINUX,
                "python_version": python.rpartition(".")[0],
                "python_full_version": python,
                "extra": extra,
            }
        )
        for python in PYTHONS
        for extra in ("", *extras)
    )


def requirements(wanted: Requirement) -> list[Requirement]:
    """Return what a package requires; empty if it is not installed for this Python."""
    try:
        lines = distribution(wanted.name).requires or []
    except PackageNotFoundError:
        return []
    found = [Requirement(line) for line in lines]
    return [each for each in found if applies(each, wanted.extras)]


def closure(name: str) -> list[str]:
    """Return every package outside this repository that a distribution pulls in, sorted."""
    seen: set[str] = set()
    done: set[tuple[str, frozenset[str]]] = set()
    waiting = [Requirement(name)]
    while waiting:
        wanted = waiting.pop()
        key = (canonicalize_name(wanted.name), frozenset(wanted.extras))
        if key not in done:
            done.add(key)
            seen.add(key[0])
            waiting += requirements(wanted)
    return sorted(each for each in seen if not each.startswith("heddle-"))


def main(*, check: bool) -> int:
    """Write every list, or with ``check`` name those that differ; return 1 in that case."""
    stale = 0
    for stem, name in LISTS.items():
        path = FOLDER / f"{stem}.txt"
        text = HEADER.format(name) + "".join(f"{each}\n" for each in closure(name))
        if path.exists() and path.read_text("utf-8") == text:
            continue
        if check:
            stale = 1
            cure = "run .venv/bin/python deploy/packages.py and commit the result"
            sys.stderr.write(f"{path.name} is not what {name} pulls in: {cure}\n")
        else:
            path.write_text(text, "utf-8")
    return stale


if __name__ == "__main__":
    sys.exit(main(check=sys.argv[1:] == ["--check"]))
