"""The definition of a fuzz target: something that takes bytes, and what it may do with them.

A target accepts its input (True), refuses it in the way that it declares (False), or has a fault.
Any other exception is a crash. ``WrongError`` says that the accepted result is not what it should
be, by a check that is independent of the code under test. An input that takes longer than its
deadline hangs.
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
    """Return a folder of this process, in memory if possible; it is removed when the process ends.

    The folder of a forked process is removed when the process that forked it ends.
    """
    path = Path(_folder.name) / str(os.getpid())
    path.mkdir(exist_ok=True)
    return path


class WrongError(Exception):
    """Something was accepted that should be refused, or was read as something else than it says."""


@dataclass(frozen=True)
class Target:
    """One thing that reads untrusted input."""

    name: str
    run: Callable[[bytes], bool]
    """Returns whether the input was accepted."""
    corpus: Sequence[bytes]
    """Good inputs, to start from."""
    make: Callable[[random.Random], bytes] | None = None
    """Makes inputs of the right shape with odd content. None if only good ones are spoilt."""
    vary: Callable[[bytes, random.Random], bytes] | None = None
    """Makes an input of the right shape that resembles a given one."""
    weight: float = 1.0
    """Its share of the inputs, relative to other targets."""
    words: Sequence[bytes] = ()
    """Words that its inputs are made of."""


def check(holds: object, what: str) -> None:
    """Raise ``WrongError`` unless the condition holds."""
    if not holds:
        raise WrongError(what)


def of_file(
    load: Callable[[Path], object],
    refusals: type[BaseException] | tuple[type[BaseException], ...],
    judge: Callable[[Any, bytes], None] | None = None,
    suffix: str = "",
) -> Callable[[bytes], bool]:
    """Return a function that runs a file loader on bytes.

    ``judge`` checks what the loader returns, given that and the bytes.
    """
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
    """Return a value as JSON, for corpora."""
    return json.dumps(value).encode()
