"""What can be fuzzed: something that takes bytes, and what it may do with them.

A target takes its input (True), refuses it in the way it declares (False), or has a fault:
any other exception is a crash; ``WrongError`` says that what was taken is not what it should be,
by a check that the code under test has no part in; and what takes longer than its deadline
hangs.
"""

from __future__ import annotations

import json
import os
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
_folder = tempfile.TemporaryDirectory(
    prefix="heddle-fuzz", dir="/dev/shm" if Path("/dev/shm").is_dir() else None
)


def scratch() -> Path:
    """A folder of this process, in memory where there is such a place; gone when it ends.

    That of a process that was forked is gone with the one it was forked from.
    """
    path = Path(_folder.name) / str(os.getpid())
    path.mkdir(exist_ok=True)
    return path


class WrongError(Exception):
    """Something was taken that should have been refused, or as something else than it says."""


@dataclass(frozen=True)
class Target:
    """One thing that reads what strangers write."""

    name: str
    run: Callable[[bytes], bool]
    """Whether the input was taken."""
    corpus: Sequence[bytes]
    """Good inputs, to begin from."""
    make: Callable[[random.Random], bytes] | None = None
    """Inputs of the right shape with odd content; without it, only good ones are spoilt."""
    vary: Callable[[bytes, random.Random], bytes] | None = None
    """An input of the right shape, like another one."""
    weight: float = 1.0
    """Its share of the inputs."""
    words: Sequence[bytes] = ()
    """What its inputs are made of."""


def check(holds: object, what: str) -> None:
    """Raise ``WrongError`` unless it holds."""
    if not holds:
        raise WrongError(what)


def of_file(
    load: Callable[[Path], object],
    refusals: type[BaseException] | tuple[type[BaseException], ...],
    judge: Callable[[Any, bytes], None] | None = None,
    suffix: str = "",
) -> Callable[[bytes], bool]:
    """Run a loader of files on bytes; ``judge`` looks at what it made of them."""
    folder = scratch()
    path = folder / f"{len(list(folder.iterdir()))}{suffix}"

    def run(content: bytes) -> bool:
        path.write_bytes(content)
        try:
            made = load(path)
        except refusals:
            return False
        if judge is not None:
            judge(made, content)
        return True

    path.touch()
    return run


def as_json(value: object) -> bytes:
    """JSON, for corpora."""
    return json.dumps(value).encode()
