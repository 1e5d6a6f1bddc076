"""Work that is not timed, over a few processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


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
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        try:
            for future in as_completed([pool.submit(function, item) for item in items]):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
