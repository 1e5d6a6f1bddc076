"""Options of the planner. Time and randomness reach it only from here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from heddle_controller.model.plan import Objective


@dataclass(frozen=True, slots=True)
class Options:
    """What a caller may ask of the planner.

    Equal input and equal options give an equal plan, unless a time limit cuts planning short.
    """

    seed: int = 0
    objective: Objective = "headroom"
    """"headroom" also splits flows and evens out links below line rate, where tables have room."""
    time_limit_seconds: float | None = None
    """Seconds from the start of solving until the plan is ready; None for no limit. Improvement
    stops early enough to leave time for the rest."""
    clock: Callable[[], float] = time.monotonic
    """Returns seconds. Only differences count."""
    candidate_limit: int = 128
    """Most paths that are considered between two switches."""
    relaxation_limit: int = 20000
    """Number of flows above which only quick methods are tried: no coloured plan is compared with a
    rounded relaxation, and no guided search starts from a standing plan."""

    def deadline(self) -> Deadline:
        """Return a deadline that starts now."""
        limit = self.time_limit_seconds
        return Deadline(self.clock, None if limit is None else self.clock() + limit)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on a clock, or no limit."""

    clock: Callable[[], float]
    at: float | None

    def part(self, share: float) -> Deadline:
        """Return the deadline after ``share`` of the time that is left from now."""
        left = self.remaining()
        return self if left is None else Deadline(self.clock, self.clock() + share * left)

    def passed(self) -> bool:
        """Return whether the moment has passed."""
        return self.at is not None and self.clock() >= self.at

    def remaining(self) -> float | None:
        """Return the seconds that are left, at least 0; None for no limit."""
        return None if self.at is None else max(0.0, self.at - self.clock())
