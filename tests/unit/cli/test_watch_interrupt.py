"""Ctrl-C while a view is watched."""

from __future__ import annotations

import subprocess
import sys

from tests.support.waiting import PATIENCE

WAITING = """
import signal, sys, threading, traceback
from heddle_controller.cli.watching import _Bell

def interrupt():
    calls = []
    while calls[-2:] != ["wait", "wait"] or "start" in calls:
        frame = sys._current_frames()[threading.main_thread().ident]
        calls = [one.name for one in traceback.extract_stack(frame)]
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    _Bell().wait(None)
except KeyboardInterrupt:
    print("heard")
"""


def test_an_interrupt_that_another_thread_takes_is_heard() -> None:
    """The kernel may hand Ctrl-C to any thread. The thread that waits for changes still ends."""
    done = subprocess.run(
        [sys.executable, "-c", WAITING],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE,
    )
    assert done.stdout == "heard\n"
