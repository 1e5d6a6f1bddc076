"""How much this machine lets a program do, measured while a drill runs.

Limits on time are written for a machine that does nothing else. On one that does, whatever is
told something waits for its turn before it hears of it, and works for longer than its work
takes. A program beside the run finds out both: how late it is woken, and how long a piece of
work lasts over the processor's time for it. It is a process of its own, as agents are, and runs
this file with the standard library alone.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import time
from typing import Self

_TICK_SECONDS = 0.005
"""It wants to be woken so often."""
EVERY = 8
"""Of so many times that it is woken it works once."""
WORK_SECONDS = 0.002
"""Of the processor."""
_PATIENCE = 60.0


class Pace:
    """Use as ``with``: measures until ``told``."""

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
        """By measure: ``late``, the longest wait in seconds; ``stretch``, a ratio of at least 1."""
        said, _ = self._process.communicate("", timeout=_PATIENCE)
        return {(measure, ""): float(value) for measure, value in json.loads(said).items()}

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


def watch() -> dict[str, float]:
    """Look at the clock until standard input is closed."""
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
