"""Spread many trials over workers: processes of this machine, or actors of a Ray cluster.

A worker is made once and keeps what is slow to set up, such as a fabric with its controller. It
plays one trial at a time. An executor gives each free worker the next trial, yields results as they
come, and shuts its workers down when the caller closes the iterator.

``ProcessExecutor`` uses processes of this machine, each with one worker. They ignore Ctrl-C and
leave it to the parent. They shut down when told to, or when the parent is gone, so nothing that a
worker started is left behind.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from multiprocessing.resource_tracker import ensure_running
from types import FrameType
from typing import Any, Generic, Protocol, TypeVar

T_contra = TypeVar("T_contra", contravariant=True)
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")
R = TypeVar("R")


class ExecutorError(RuntimeError):
    """Trials cannot go on: a worker died or could not be set up. The message is one line."""


class Worker(Protocol[T_contra, R_co]):
    """Plays trials one after another."""

    def run(self, trial: T_contra) -> R_co:
        """Play one trial.

        Raises:
            ExecutorError: the worker cannot be set up.
        """

    def close(self) -> None:
        """Cancel a running trial and end everything; safe to call from any thread, and twice."""


MakeWorker = Callable[[], Worker[T, R]]
"""Makes a worker in the worker's process. It goes there by pickle, as do trials and results."""


class Executor(Protocol):
    """Plays trials on a set of workers."""

    def map(self, make: MakeWorker[T, R], trials: Sequence[T]) -> Iterator[R]:
        """Yield the result of every trial as it comes, in any order.

        Closing the iterator cancels running trials and ends everything that was started.

        Raises:
            ExecutorError: a worker died, or could not be set up.
        """


WATCH_SECONDS = 0.5
_END_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class ProcessExecutor:
    """Plays trials in at most ``workers`` processes of this machine."""

    workers: int

    def map(self, make: MakeWorker[T, R], trials: Sequence[T]) -> Iterator[R]:
        """Implement ``Executor.map``."""
        waiting = deque(trials)
        workers = [_WorkerProcess(make) for _ in range(min(self.workers, len(trials)))]
        try:
            for worker in workers:
                worker.begin(waiting.popleft())
            busy = {worker.pipe: worker for worker in workers}
            while busy:
                for pipe in wait(list(busy)):
                    worker = busy.pop(pipe)  # type: ignore[call-overload]  # connections, all
                    yield worker.result()
                    if waiting:
                        worker.begin(waiting.popleft())
                        busy[worker.pipe] = worker
        finally:
            for worker in workers:
                worker.process.terminate()
            for worker in workers:
                worker.end()


class _WorkerProcess(Generic[T, R]):
    """A process with one worker, as its parent handles it."""

    def __init__(self, make: MakeWorker[T, R]) -> None:
        context = get_context("spawn")
        self.pipe, far = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_serve, args=(make, far, os.getpid()), name="worker"
        )
        # Ctrl-C is blocked in it from its birth on, since it imports modules before it can ignore
        # it. The tracker comes first, because it would unblock Ctrl-C as it starts.
        ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        self.process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        far.close()

    def begin(self, trial: T) -> None:
        """Send a trial. If the process is gone, ``result`` reports it."""
        with suppress(OSError):
            self.pipe.send(trial)

    def result(self) -> R:
        """Wait for the result of the trial.

        Raises:
            ExecutorError: the worker died, or could not be set up.
        """
        try:
            found: R | ExecutorError = self.pipe.recv()
        except (EOFError, OSError) as error:
            self.process.join(_END_SECONDS)
            reason = f"a worker ended with exit code {self.process.exitcode}"
            raise ExecutorError(reason) from error
        if isinstance(found, ExecutorError):
            raise found
        return found

    def end(self) -> None:
        """Wait for the process to end, and kill it if it does not."""
        self.process.join(_END_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _serve(make: MakeWorker[Any, Any], pipe: Connection, parent: int) -> None:
    """Run a worker process from its start to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # its parent ends it, also with a terminal
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGTERM, _end)
    with closing(make()) as worker:
        threading.Thread(target=_follow, args=(parent, worker), daemon=True).start()
        with suppress(EOFError, OSError):  # the parent has closed its end
            while True:
                pipe.send(_answer(worker, pipe.recv()))


def _answer(worker: Worker[T, R], trial: T) -> R | ExecutorError:
    try:
        return worker.run(trial)
    except ExecutorError as error:
        return error


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler
    raise SystemExit(0)


def _follow(parent: int, worker: Worker[Any, Any]) -> None:
    """End this process when its parent has ended, for whatever reason."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    worker.close()
    os._exit(1)
