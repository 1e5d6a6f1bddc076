"""Who plays trials: processes of this machine, or whatever else meets the same port.

Each process has a seat of its own and is sent a trial whenever it has none, so a slow one holds
up nobody. Processes start afresh, leave Ctrl-C to the parent, and end in order when asked to or
when the parent is gone: a controller is never left behind.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from types import FrameType
from typing import Protocol

from heddle_emulator.campaign.campaign import Campaign
from heddle_emulator.campaign.events import Trial
from heddle_emulator.campaign.result import Result
from heddle_emulator.campaign.seat import CampaignError, Seat

WATCH_SECONDS = 0.5
END_SECONDS = 20.0


class Executor(Protocol):
    """Plays trials somewhere."""

    def results(self, campaign: Campaign, trials: Sequence[Trial]) -> Iterator[Result]:
        """Results as they come, in any order; closing the iterator ends all that it started.

        Raises:
            CampaignError: those who play are gone.
        """


@dataclass(frozen=True, slots=True)
class Processes:
    """So many processes of this machine."""

    workers: int

    def results(self, campaign: Campaign, trials: Sequence[Trial]) -> Iterator[Result]:
        """See the port."""
        waiting = deque(trials)
        workers = [_Worker(campaign) for _ in range(min(self.workers, len(trials)))]
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


class _Worker:
    """A process, seen from the parent."""

    def __init__(self, campaign: Campaign) -> None:
        context = get_context("spawn")
        self.pipe, far = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_work, args=(campaign, far, os.getpid()), name="campaign"
        )
        self.process.start()
        far.close()

    def begin(self, trial: Trial) -> None:
        """Send a trial; one that is gone is found out when its result is asked for."""
        with suppress(OSError):
            self.pipe.send(trial)

    def result(self) -> Result:
        """What came of it, once the pipe has something."""
        try:
            found: Result | CampaignError = self.pipe.recv()
        except (EOFError, OSError) as error:
            self.process.join(END_SECONDS)
            reason = f"a worker ended with exit code {self.process.exitcode}"
            raise CampaignError(reason) from error
        if isinstance(found, CampaignError):
            raise found
        return found

    def end(self) -> None:
        """Wait for its end; kill it if it does not come."""
        self.process.join(END_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.pipe.close()


def _work(campaign: Campaign, pipe: Connection, parent: int) -> None:
    """A worker process, from its start to its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _end)
    with Seat(campaign) as seat:
        threading.Thread(target=_follow, args=(parent, seat), daemon=True).start()
        with suppress(EOFError, OSError):  # the parent has closed its end
            while True:
                pipe.send(_answer(seat, pipe.recv()))


def _answer(seat: Seat, trial: Trial) -> Result | CampaignError:
    try:
        return seat.run(trial)
    except CampaignError as error:
        return error


def _end(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a handler
    raise SystemExit(0)


def _follow(parent: int, seat: Seat) -> None:
    """End with the parent, however it ended."""
    while os.getppid() == parent:
        time.sleep(WATCH_SECONDS)
    seat.close()
    os._exit(1)
