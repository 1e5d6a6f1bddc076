"""Turns in time for training loops: an iteration begins when the controller advises it to.

Turns follow the machine's clock, counted from the year 1970, so jobs need not know of each other.
Clocks that NTP or PTP keeps are good enough. In a job of synchronous ranks only one rank has to
keep the turn, since the others wait for it in their next collective.

Turns never fail a job and never delay it by more than the time from one turn to the next. Without a
controller, without a turn, or when late, an iteration begins at once.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self

from heddle.client.errors import HeddleError
from heddle.client.faces import Client
from heddle.v1 import common_pb2, plan_pb2

SLACK = 0.02
"""Two limits, both as a fraction.

How much an iteration may differ from its known length, and how much of its time a late job may
spend waiting for its next turn.
"""
WINDOW = 16
"""Iterations whose mean is compared with the known length."""
_PAUSE = 1.0
"""Seconds between attempts to reach a controller that is away."""


class TurnClock:
    """Decides when iterations begin; the caller supplies the time and the job's turn."""

    def __init__(self) -> None:
        self._turn: common_pb2.Turn | None = None
        self._next: int | None = None
        """Number of the turn, counted from 1970, in which the next iteration begins."""
        self._joined = -math.inf
        self._taken: list[float] = []
        self._usual = 0.0
        """Length of an iteration as the controller knows it, in seconds; 0: not measured yet."""

    def hear(self, turn: common_pb2.Turn | None) -> None:
        """Use this turn of the job from now on; None if it has none."""
        if turn is not None and not (0 < turn.pace_seconds < math.inf):
            turn = None
        if turn != self._turn:
            self._turn, self._next = turn, None
            self._taken.clear()

    def wait_seconds(self, now: float) -> float:
        """Return how many seconds the next iteration has to wait, at most one turn's length.

        An iteration that is late begins at once. It waits for the next turn only if that costs at
        most ``SLACK`` of the time since it last did so.
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
        """Record the length of an iteration and return by how many seconds the mean has drifted.

        Returns 0 while there is no drift to report. Iterations without a turn do not count, because
        other jobs delay them. Later means are compared with the first one, and after a drift with
        the new one.
        """
        if self._turn is None:
            return 0.0
        self._taken.append(seconds)
        if len(self._taken) < WINDOW:
            return 0.0
        mean = sum(self._taken) / WINDOW
        self._taken.clear()
        drift = mean - self._usual if self._usual else 0.0
        if self._usual and abs(drift) <= SLACK * self._usual:
            return 0.0
        self._usual = mean
        return drift


def turn_of(plan: plan_pb2.Plan, job: str) -> common_pb2.Turn | None:
    """Return the turn of a job in a plan; None if it has none."""
    return next((turn for turn in plan.certificate.turns.jobs if turn.job == job), None)


class Turn:
    """A job's turn, for a loop that blocks: ``with turn:`` around each iteration, or ``wait``.

    A thread follows the newest plan. The length of iterations is measured. When it drifts, the
    controller is told by an update of the job's ``compute_seconds``.
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
        """Start following the job's turn.

        Args:
            client: The client to use. Its owner closes it after closing this.
            job: The job's short name.
            tell_drift: Whether to report drift, which needs the right to update the job.
            clock: Returns seconds since 1970.
            sleep: Waits so many seconds.
        """
        self._client, self._job, self._tell_drift = client, job, tell_drift
        self._now, self._sleep = clock, sleep
        self._turns, self._lock = TurnClock(), threading.Lock()
        self._closed = threading.Event()
        self._begun = 0.0
        threading.Thread(target=self._follow, name="heddle-turns", daemon=True).start()

    def wait(self) -> float:
        """Wait for the next turn and return the seconds waited."""
        with self._lock:
            seconds = self._turns.wait_seconds(self._now())
        if seconds:
            self._sleep(seconds)
        return seconds

    def close(self) -> None:
        """Stop following; later iterations do not wait."""
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
