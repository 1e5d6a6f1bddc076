#!/usr/bin/env python3
"""Print the part of requirements.lock that one distribution needs: `subset.py LOCK NAMES`.

uv and pip only check the hashes of a whole file, and the lock holds everything that this repository
uses. A switch must not get a solver for that reason. So the names that a distribution needs are in
a list of their own (deploy/packages, written by packages.py), and versions and hashes come from the
one lock. uv and pip then prove the list complete: with hashes on, they refuse any package that is
not listed. This needs only the standard library, since it runs where nothing is installed yet.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def canonical(name: str) -> str:
    """Return the canonical spelling of a package's name: lower case, single hyphens."""
    return re.sub(r"[-_.]+", "-", name).lower()


def records(lock: str) -> list[tuple[str, str]]:
    """Return name and text of each record: a line with the indented lines that follow it."""
    found: list[tuple[str, str]] = []
    for line in lock.splitlines(keepends=True):
        if match := NAME.match(line):
            found.append((canonical(match[0]), line))
        elif found and line[0].isspace():
            name, text = found[-1]
            found[-1] = (name, text + line)
    return found


def names(text: str) -> set[str]:
    """Return the names of a list with one name per line, where # begins a comment."""
    plain = (line.partition("#")[0].strip() for line in text.splitlines())
    return {canonical(line) for line in plain if line}


def subset(lock: str, wanted: set[str]) -> str:
    """Return the records of these names.

    Raises:
        KeyError: some names are not in the lock; its arguments are these names.
    """
    kept = [(name, text) for name, text in records(lock) if name in wanted]
    if missing := wanted - {name for name, _ in kept}:
        raise KeyError(*sorted(missing))
    return "".join(text for _, text in kept)


def main(lock: str, listed: str) -> None:
    """Print the subset, or one line of error with exit status 2."""
    try:
        text = subset(Path(lock).read_text("utf-8"), names(Path(listed).read_text("utf-8")))
    except OSError as error:
        sys.exit(refuse(f"{error.filename}: {error.strerror}"))
    except KeyError as error:
        sys.exit(refuse(f"{listed}: {', '.join(error.args)} not in {lock}: run make lock"))
    sys.stdout.write(text)


def refuse(message: str) -> int:
    """Print the message on standard error, and return the exit status."""
    sys.stderr.write(f"subset.py: {message}\n")
    return 2


if __name__ == "__main__":
    if len(sys.argv) != 3:  # noqa: PLR2004 - the two arguments
        sys.exit(refuse("give the lock and the list of names"))
    main(sys.argv[1], sys.argv[2])
