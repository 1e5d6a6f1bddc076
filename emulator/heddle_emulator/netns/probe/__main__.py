"""One half of a probe as a process: ``python -m heddle_emulator.netns.probe send SPACE``.

The other half is ``receive``. The first line of standard input says what to do. The process ends
with its standard input, so it never outlives the one that started it. It runs in the namespace
SPACE, which marks it as the lab's. It prints "ready" once it can send or receive, and "written" at
the end.
"""

from __future__ import annotations

import contextlib
import os
import select
import sys
from pathlib import Path

from heddle_emulator.netns.kernel import enter
from heddle_emulator.netns.probe.packets import Receiver, Sender
from heddle_emulator.netns.probe.spec import UDP, load

REAL_TIME = 1
"""Priority of probes among real-time processes. They measure, so they must not be slow themselves.
They sleep between packets, so that the programs under test get their turn."""


def _ended() -> bool:
    """Return whether standard input has ended."""
    return bool(select.select([sys.stdin], (), (), 0)[0])


def main() -> None:
    """Run one half of a probe."""
    half, space = sys.argv[1:]
    enter(space)
    flows, folder = load(sys.stdin.readline())
    if all(flow.protocol == UDP for flow in flows):  # TCP takes all there is
        with contextlib.suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(REAL_TIME))
    probe = (Sender if half == "send" else Receiver)(flows, _ended)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    probe.run()
    probe.write(Path(folder))
    probe.close()
    sys.stdout.write("written\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
