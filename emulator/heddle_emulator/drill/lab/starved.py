"""A program that is given little time: stopped for a while, again and again.

Whatever it is told waits until it goes on, so it needs up to that long more for everything.
That is what an overloaded switch looks like from outside; kernels cannot be told to be slow
with one program, signals stop it whatever it is doing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading

GOES_ON_SECONDS = 0.01
"""What it has for itself between two stops."""


class Starved:
    """A process that is stopped for so many seconds again and again, until ``end``."""

    def __init__(self, process: int, seconds: float) -> None:
        self._process, self._seconds = process, seconds
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"starved {process}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let it go on for good."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            try:
                while not self._over.is_set():
                    os.kill(self._process, signal.SIGSTOP)
                    self._over.wait(self._seconds)
                    os.kill(self._process, signal.SIGCONT)
                    self._over.wait(GOES_ON_SECONDS)
            finally:
                os.kill(self._process, signal.SIGCONT)
