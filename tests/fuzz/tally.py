"""Run an input against its target, and count the results.

This module knows nothing of what is fuzzed, so that importing it loads none of the code under test.
"""

from __future__ import annotations

import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from tests.fuzz.target import Target, WrongError

DEADLINE = 30.0
"""Seconds that no input may take, even on a busy machine."""
MOST_FAULTS = 5
"""A target with this many faults is not run any further."""
Share = tuple[int, int, int, int, str]
"""Total of inputs, seed, index of the process, number of processes, a word of target names."""


class HangError(BaseException):
    """An input took too long. It is no Exception, so that the code under test does not catch it."""


@dataclass
class Tally:
    """The results of a target's inputs."""

    name: str
    inputs: int = 0
    taken: int = 0
    kept: int = 0
    """Inputs kept for the code they reached, to be spoilt further."""
    slowest: float = 0.0
    seconds: float = 0.0
    faults: list[tuple[str, bytes]] = field(default_factory=list)
    """Kind and text of each fault, and its input."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise ``HangError`` inside the block after so many seconds."""

    def over(_: int, __: FrameType | None) -> None:
        raise HangError(f"longer than {seconds:g} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def strike(target: Target, content: bytes, tally: Tally, seconds: float = DEADLINE) -> None:
    """Run one input and note the result. It hangs if it takes longer than ``seconds``."""
    begin = time.perf_counter()
    tally.inputs += 1
    try:
        with deadline(seconds):
            tally.taken += target.run(content)
    except WrongError as error:
        tally.faults.append((f"wrong: {error}", content))
    except HangError as error:
        tally.faults.append((f"hang: {error}", content))
    except Exception as error:  # noqa: BLE001 - whatever gets out is what is looked for
        where = traceback.extract_tb(error.__traceback__)[-1]
        text = f"crash: {error!r} at {Path(where.filename).name}:{where.lineno}"
        tally.faults.append((text, content))
    tally.slowest = max(tally.slowest, time.perf_counter() - begin)


def told_of(tally: Tally) -> None:
    """Print a dot for a finished target, or ! if it has faults, to show progress."""
    print("!" if tally.faults else ".", end="", file=sys.stderr, flush=True)  # noqa: T201


def merged(shares: Sequence[Sequence[Tally]]) -> list[Tally]:
    """Merge the tallies of all processes into one for each target."""
    found: dict[str, Tally] = {}
    for tally in (tally for share in shares for tally in share):
        one = found.setdefault(tally.name, Tally(tally.name))
        one.inputs += tally.inputs
        one.taken += tally.taken
        one.seconds += tally.seconds
        one.slowest = max(one.slowest, tally.slowest)
        one.kept += tally.kept
        one.faults += tally.faults
    return list(found.values())
