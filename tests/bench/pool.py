"""Work that is not timed, over a few processes."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")
WATCH_SECONDS = 0.5


def each(
    function: Callable[[Item], Result], items: Sequence[Item], workers: int
) -> Iterator[Result]:
    """The function's answer to each item, as they come.

    Processes start afresh: nothing of this one, no thread of a solver, is in them.
    With one worker it is this very process, since starting another takes longer than
    a few cases do.
    """
    if workers == 1:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(workers, get_context("spawn"), _end_with, (os.getpid(),)) as pool:
        try:
            for future in as_completed([pool.submit(function, item) for item in items]):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _end_with(parent: int) -> None:
    """In a new process: leave Ctrl-C to the parent, and do not outlive it, however it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
