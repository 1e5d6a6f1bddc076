"""The signals that end a program of Heddle in order."""

from __future__ import annotations

import signal
from collections.abc import Iterator


def endings() -> Iterator[signal.Signals]:
    """Yield SIGTERM, SIGINT, and SIGHUP unless it is ignored, as it is under ``nohup``."""
    yield from (signal.SIGTERM, signal.SIGINT)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        yield signal.SIGHUP
