"""``make fuzz``: a million odd inputs for everything that reads what strangers write.

    python -m tests.fuzz.run [--inputs N] [--seed S] [--target WORD] [--processes P]

Inputs are good ones spoilt, and messages made up field by field; one that reaches a line of
ours that none had before is spoilt further (``guide``). All of it follows from the seed and
the number of processes; inputs that show a fault are written to ``fuzz-faults/``. A line a
target: inputs, how many were taken, faults, lines reached, the slowest. Exit 1 at any fault.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from types import FrameType

from tests.fuzz import agents, calls, files
from tests.fuzz.guide import MOST, Guide
from tests.fuzz.mutate import spoilt
from tests.fuzz.target import Target, WrongError

DEADLINE = 30.0
"""Seconds that no input may take, on a machine that does other things too."""
TRACED = 8
"""One input in so many is traced."""
MOST_FAULTS = 5
"""Of one target, after which it is left alone."""
FAULTS = Path("fuzz-faults")


class HangError(BaseException):
    """An input took too long. Not an Exception, so that nobody on the way takes it for one."""


@dataclass
class Tally:
    """What became of a target's inputs."""

    name: str
    inputs: int = 0
    taken: int = 0
    lines: int = 0
    """Of ours, reached by the inputs that were traced."""
    slowest: float = 0.0
    seconds: float = 0.0
    faults: list[tuple[str, bytes]] = field(default_factory=list)
    """Kind and text of each, and its input."""


@contextmanager
def opened() -> Iterator[list[Target]]:
    """All targets, and what they stand on."""
    world = calls.World()
    try:
        yield [*files.targets(), *agents.targets(), *calls.targets(world)]
    finally:
        world.close()


def inputs(
    target: Target, seed: int, numbers: Sequence[int], corpus: Sequence[bytes] = ()
) -> Iterator[bytes]:
    """The inputs of these numbers: good ones spoilt, and made up where the target can do that.

    ``corpus`` may grow while they are taken.
    """
    corpus = corpus or target.corpus
    for number in numbers:
        text = f"{seed}/{target.name}/{number}"
        chance = random.Random(hashlib.sha256(text.encode()).digest())
        if target.make is not None and number % 4:
            made = target.make(chance)
            yield spoilt(chance, [made], target.words) if number % 4 == 1 else made
        else:
            yield spoilt(chance, corpus, target.words)


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Raise ``HangError`` inside after so long."""

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
    """Run one input, and note what became of it; after so many seconds it hangs."""
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


def run_target(target: Target, seed: int, numbers: Sequence[int]) -> Tally:
    """Run the inputs of these numbers."""
    tally, begin = Tally(target.name), time.perf_counter()
    guide, corpus = Guide(), list(target.corpus)
    for content in inputs(target, seed, numbers, corpus):
        if tally.inputs % TRACED:
            strike(target, content, tally)
        elif guide.traced(partial(strike, target, content, tally)) and len(corpus) < MOST:
            corpus.append(content)
        if len(tally.faults) >= MOST_FAULTS:
            break
    tally.seconds = time.perf_counter() - begin
    tally.lines = len(guide.reached)
    return tally


def _share(arguments: tuple[int, int, int, int, str]) -> list[Tally]:
    """One process's part: every so many-th input of every target."""
    total, seed, part, parts, word = arguments
    tallies = []
    with opened() as everything:
        targets = [target for target in everything if word in target.name]
        whole = sum(target.weight for target in targets)
        for target in targets:
            count = max(1, round(total * target.weight / whole))
            tallies.append(run_target(target, seed, range(part, count, parts)))
            print(".", end="", file=sys.stderr, flush=True)  # noqa: T201 - somebody is waiting
    return tallies


def merged(shares: Sequence[Sequence[Tally]]) -> list[Tally]:
    """The tallies of all processes, a target each."""
    found: dict[str, Tally] = {}
    for tally in (tally for share in shares for tally in share):
        one = found.setdefault(tally.name, Tally(tally.name))
        one.inputs += tally.inputs
        one.taken += tally.taken
        one.seconds += tally.seconds
        one.slowest = max(one.slowest, tally.slowest)
        one.lines = max(one.lines, tally.lines)
        one.faults += tally.faults
    return list(found.values())


def told(tallies: Sequence[Tally], seconds: float, seed: int) -> str:
    """A table, and what it comes to."""
    heads = ("inputs", "taken", "faults", "lines", "slowest ms", "/s")
    lines = [f"{'target':36} {'{:>9} {:>9} {:>6} {:>5} {:>10} {:>7}'.format(*heads)}"]
    for one in tallies:
        pace = one.inputs / one.seconds if one.seconds else 0.0
        lines.append(
            f"{one.name:36} {one.inputs:9} {one.taken:9} {len(one.faults):6} {one.lines:5} "
            f"{one.slowest * 1000:10.1f} {pace:7.0f}"
        )
    kinds = [text.partition(":")[0] for one in tallies for text, _ in one.faults]
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("crash", "hang", "wrong"))
    total = sum(one.inputs for one in tallies)
    lines.append(f"{total} inputs in {seconds:.0f} s, seed {seed}: {counted}")
    return "\n".join(lines)


def keep(tallies: Sequence[Tally]) -> None:
    """Write the inputs of faults to files, and say what each did."""
    for one in tallies:
        for number, (text, content) in enumerate(one.faults):
            FAULTS.mkdir(exist_ok=True)
            name = f"{one.name.replace('/', '-').replace(' ', '-')}-{number}"
            (FAULTS / name).write_bytes(content)
            print(f"{FAULTS / name}: {text}")  # noqa: T201 - it talks to a terminal


def main() -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--inputs", type=int, default=2_000_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--target", default="", help="only targets with this in their name")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    given = parser.parse_args()
    begin, parts = time.perf_counter(), given.processes
    work = [(given.inputs, given.seed, part, parts, given.target) for part in range(parts)]
    with get_context("spawn").Pool(parts) as pool:
        tallies = merged(pool.map(_share, work, chunksize=1))
    print()  # noqa: T201
    print(told(tallies, time.perf_counter() - begin, given.seed))  # noqa: T201
    keep(tallies)
    return int(any(one.faults for one in tallies))


if __name__ == "__main__":
    sys.exit(main())
