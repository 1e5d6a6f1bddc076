"""Many trials, spread over workers: processes of this machine, or actors of a Ray cluster.

A worker is made once and keeps what is slow to set up, such as a fabric with its controller; it
plays one trial at a time. An executor gives each worker the next trial when it is free, yields
results as they come, and ends its workers in order when the caller closes the iterator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TypeVar

T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
R = TypeVar("R")


class ExecutorError(RuntimeError):
    """Trials cannot go on, in one line: a worker died, or none could be set up."""


class Worker(Protocol[T_contra, R_co]):
    """Plays trials one after another."""

    def run(self, trial: T_contra) -> R_co:
        """Play one trial.

        Raises:
            ExecutorError: the worker cannot be set up.
        """

    def close(self) -> None:
        """Cancel the trial under way and end everything; safe from any thread, and twice."""


MakeWorker = Callable[[], Worker[T, R]]
"""Called in the process of the worker; goes there by pickle, as trials and results do."""


class Executor(Protocol):
    """Plays trials somewhere."""

    def map(self, make: MakeWorker[T, R], trials: Sequence[T]) -> Iterator[R]:
        """Yield the result of every trial as it comes, in any order.

        Closing the iterator cancels what is under way and ends all that was started.

        Raises:
            ExecutorError: a worker died, or could not be set up.
        """
