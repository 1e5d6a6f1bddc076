"""Run work that is not timed in a few processes."""

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
    """Call the function on each item and yield its results, in the order they are done.

    The processes are spawned, so they share no state with this one, and no threads of a solver.
    With one worker the calls run in this process, since starting another takes longer than a few
    cases.
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
    """Set up a new process: ignore Ctrl-C, and exit as soon as the parent has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(WATCH_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
