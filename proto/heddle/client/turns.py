"""Turns in time for training loops: an iteration begins when the controller advises it to.

Turns go by the clock of the machine, counted from the year 1970, so jobs need not know of each
other; clocks that NTP or PTP keeps are good enough. A job of synchronous ranks needs one of them
to keep its turn: the others wait for it in their next collective. This never fails a job, and
never holds it up for longer than from one turn to the next: without a controller, without a turn
or late, an iteration begins at once.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from statistics import fmean
from typing import Self

from heddle.client.errors import HeddleError
from heddle.client.faces import Client
from heddle.v1 import common_pb2, plan_pb2

SLACK = 0.02
"""Part of an iteration by which it may differ from what is told, and part of the time that a late
job may spend on waiting for its next turn."""
WINDOW = 16
"""Iterations whose mean is compared."""
_PAUSE = 1.0
"""Seconds between looks for a controller that is away."""


class TurnClock:
    """When iterations begin, from what is heard; knows no clock and no network."""

    def __init__(self) -> None:
        self._turn: common_pb2.Turn | None = None
        self._next: int | None = None
        """Number of the turn that the next iteration has, counted from 1970."""
        self._joined = -math.inf
        self._taken: list[float] = []
        self._usual = 0.0
        """Seconds of an iteration that are known to the controller; 0: not measured yet."""

    def hear(self, turn: common_pb2.Turn | None) -> None:
        """The job's turn is this from now on; None: it has none."""
        if turn is not None and not (0 < turn.pace_seconds < math.inf):
            turn = None
        if turn != self._turn:
            self._turn, self._next = turn, None
            self._taken.clear()

    def wait_seconds(self, now: float) -> float:
        """How long the iteration that is next has to wait; at most from one turn to the next.

        One that is late begins at once. It waits for the next turn where that costs less than
        ``SLACK`` of the time since it last did so.
        """
        if self._turn is None:
            return 0.0
        pace = self._turn.pace_seconds
        since, slot = (now - self._turn.shift_seconds) % pace, 0
        slot = round((now - self._turn.shift_seconds - since) / pace)
        joins = self._next is None
        mine = slot + 1 if self._next is None else min(max(self._next, slot), slot + 1)
        wait = (mine - slot) * pace - since
        if joins or wait < -SLACK * pace:
            mine, wait = slot, 0.0
            if pace - since <= SLACK * (now - self._joined):
                mine, wait = slot + 1, pace - since
                self._joined = now + wait
        self._next = mine + 1
        return max(wait, 0.0)

    def measured(self, seconds: float) -> float:
        """An iteration took so long; by how much its mean has drifted, in seconds, else 0.

        Iterations without a turn do not count, as others hold them up. The first mean is what
        later ones are compared with.
        """
        if self._turn is None:
            return 0.0
        self._taken.append(seconds)
        if len(self._taken) < WINDOW:
            return 0.0
        mean = fmean(self._taken)
        self._taken.clear()
        drift = mean - self._usual if self._usual else 0.0
        if self._usual and abs(drift) <= SLACK * self._usual:
            return 0.0
        self._usual = mean
        return drift


def turn_of(plan: plan_pb2.Plan, job: str) -> common_pb2.Turn | None:
    """The turn of a job in a plan."""
    return next((turn for turn in plan.certificate.turns.jobs if turn.job == job), None)


class Turn:
    """A job's turn, for a loop that blocks: ``with turn:`` around each iteration, or ``wait``.

    Follows the newest plan in a thread of its own. What iterations take is measured, and told to
    the controller when it drifts: as the job's ``compute_seconds``, by an update of the job.
    """

    def __init__(
        self,
        client: Client,
        job: str,
        *,
        tell_drift: bool = True,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        """Begin to follow.

        Args:
            client: To be closed by whoever made it, after this.
            job: The job's name, the last part.
            tell_drift: Whether the controller is told; needs the rights to update the job.
            clock: Seconds since 1970.
            sleep: Waits so many seconds.
        """
        self._client, self._job, self._tell_drift = client, job, tell_drift
        self._now, self._sleep = clock, sleep
        self._turns, self._lock = TurnClock(), threading.Lock()
        self._closed = threading.Event()
        self._begun = 0.0
        threading.Thread(target=self._follow, name="heddle-turns", daemon=True).start()

    def wait(self) -> float:
        """Wait for the next turn; the seconds that it took."""
        with self._lock:
            seconds = self._turns.wait_seconds(self._now())
        if seconds:
            self._sleep(seconds)
        return seconds

    def close(self) -> None:
        """Follow no longer, and wait no more."""
        self._closed.set()
        with self._lock:
            self._turns.hear(None)

    def __enter__(self) -> Self:
        self.wait()
        self._begun = self._now()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._lock:
            drift = 0.0 if kind else self._turns.measured(self._now() - self._begun)
        if drift and self._tell_drift:
            threading.Thread(target=self._tell, args=(drift,), daemon=True).start()

    def _follow(self) -> None:
        while not self._closed.is_set():
            with suppress(HeddleError):
                for plan in self._client.watch_plans():
                    if self._closed.is_set():
                        return
                    if plan.certificate.HasField("turns"):
                        with self._lock:
                            self._turns.hear(turn_of(plan, self._job))
            self._closed.wait(_PAUSE)

    def _tell(self, drift: float) -> None:
        with suppress(HeddleError):
            self._client.tell_drift(self._job, drift)
