"""``make fuzz``: over a million odd inputs for everything that reads what strangers write.

    python -m tests.fuzz.both [--inputs N] [--seed S] [--target WORD] [--processes P]

Two thirds are made by ``run``, which knows what inputs look like, and a third by ``guided``, which
sees what code they reach. The output has a line for each target: inputs, how many were accepted,
faults, how many were kept for the code they reached, the slowest input, and inputs per second.
Inputs that show a fault are written to ``fuzz-faults/``. The exit status is 1 if there is a fault.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path

from tests.fuzz.tally import Share, Tally, merged

INPUTS = 1_200_000
FAULTS = Path("fuzz-faults")
Work = Callable[[Share], list[Tally]]


def halves() -> list[tuple[str, Work, float]]:
    """Return the name, the work and the share of all inputs of each half."""
    from tests.fuzz import run  # noqa: PLC0415 - whoever is guided has to load it by itself

    if find_spec("atheris") is None:
        print("no atheris for this Python or machine: what inputs reach is seen by tracing alone")  # noqa: T201
        return [("made", run.share, 1.0)]
    from tests.fuzz import guided  # noqa: PLC0415 - needs atheris

    return [("made", run.share, 2 / 3), ("guided by what they reach", guided.share, 1 / 3)]


def told(tallies: Sequence[Tally]) -> str:
    """Return a table of the tallies."""
    heads = ("inputs", "taken", "faults", "kept", "slowest ms", "/s")
    lines = [f"{'target':36} {'{:>9} {:>9} {:>6} {:>5} {:>10} {:>7}'.format(*heads)}"]
    for one in tallies:
        pace = one.inputs / one.seconds if one.seconds else 0.0
        lines.append(
            f"{one.name:36} {one.inputs:9} {one.taken:9} {len(one.faults):6} {one.kept:5} "
            f"{one.slowest * 1000:10.1f} {pace:7.0f}"
        )
    return "\n".join(lines)


def summed(tallies: Sequence[Tally], seconds: float, seed: int) -> str:
    """Return one line that sums up all tallies."""
    kinds = [text.partition(":")[0] for one in tallies for text, _ in one.faults]
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in ("crash", "hang", "wrong"))
    total = sum(one.inputs for one in tallies)
    return f"{total} inputs in {seconds:.0f} s, seed {seed}: {counted}"


def keep(tallies: Sequence[Tally], half: str) -> None:
    """Write the inputs of faults to files, and print what each did."""
    for one in tallies:
        for number, (text, content) in enumerate(one.faults):
            FAULTS.mkdir(exist_ok=True)
            name = f"{half}-{one.name}-{number}".replace("/", "-").replace(" ", "-")
            (FAULTS / name).write_bytes(content)
            print(f"{FAULTS / name}: {text}")  # noqa: T201 - it talks to a terminal


def main(arguments: Sequence[str] | None = None) -> int:
    """Run both halves and return the exit status."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=INPUTS)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--target", default="", help="only targets with this in their name")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    given = parser.parse_args(arguments)
    begin, parts = time.perf_counter(), given.processes
    done: list[Tally] = []
    for half, work, part in halves():
        whole = round(given.inputs * part)
        shares = [(whole, given.seed, number, parts, given.target) for number in range(parts)]
        with get_context("spawn").Pool(parts) as pool:
            tallies = merged(pool.map(work, shares, chunksize=1))
        print(f"\n\n{half}\n{told(tallies)}", flush=True)  # noqa: T201
        keep(tallies, half.partition(" ")[0])
        done += tallies
    print("\n" + summed(done, time.perf_counter() - begin, given.seed))  # noqa: T201
    return int(any(one.faults for one in done))


if __name__ == "__main__":
    sys.exit(main())
