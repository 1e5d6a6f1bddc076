"""Measure how fast this machine lets a program work while a drill runs.

Limits on time are written for an idle machine. On a busy one a program is woken late, and its work
takes longer than the processor time that it needs. A process beside the run measures both: how
late it is woken, and the ratio of elapsed time to processor time of a piece of work. Like an agent
it is a process of its own. It runs this file with the standard library alone.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from typing import Self

_TICK_SECONDS = 0.005
"""Time between two wake-ups of the process."""
EVERY = 8
"""The process does a piece of work at every n-th wake-up."""
WORK_SECONDS = 0.002
"""Processor time of a piece of work."""
_PATIENCE = 60.0


class Pace:
    """Measures the pace of the machine from entering its ``with`` until ``told`` is called."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it has begun
        return self

    def told(self) -> dict[tuple[str, str], float]:
        """Stop, and return ``late`` (longest wait, seconds) and ``stretch`` (ratio, at least 1)."""
        said, _ = self._process.communicate("", timeout=_PATIENCE)
        return {(measure, ""): float(value) for measure, value in json.loads(said).items()}

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


def watch() -> dict[str, float]:
    """Measure until standard input is closed; return the values of ``Pace.told``."""
    late = took = cost = 0.0
    now = time.perf_counter()
    for turn in range(sys.maxsize):
        over = select.select([sys.stdin], [], [], _TICK_SECONDS)[0]
        before, now = now, time.perf_counter()
        late = max(late, now - before - _TICK_SECONDS)
        if over:
            break
        if turn % EVERY == 0:
            before, spent = now, time.thread_time()
            while time.thread_time() - spent < WORK_SECONDS:
                pass
            cost += time.thread_time() - spent
            now = time.perf_counter()
            took += now - before
        if turn == 0:
            print("begun", flush=True)  # noqa: T201 - to who started it
    return {"late": late, "stretch": max(took / cost, 1.0) if cost else 1.0}


if __name__ == "__main__":
    print(json.dumps(watch()))  # noqa: T201 - to who started it
