"""What a caller may ask of the planner. Time and randomness come in from here."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from heddle_controller.model.plan import Objective


@dataclass(frozen=True, slots=True)
class Options:
    """Equal input, equal options: equal plan, unless a time limit cuts it short."""

    seed: int = 0
    objective: Objective = "headroom"
    """Headroom parts flows and evens out links below line rate where tables have room."""
    time_limit_seconds: float | None = None
    """The plan is there by then, from the start of solving: improvement stops early enough."""
    clock: Callable[[], float] = time.monotonic
    """Seconds; only differences count."""
    candidate_limit: int = 128
    """Paths considered between two switches at most."""
    relaxation_limit: int = 20000
    """Flows beyond which a coloured plan is not compared with a rounded relaxation."""

    def deadline(self) -> Deadline:
        """A deadline that starts now."""
        limit = self.time_limit_seconds
        return Deadline(self.clock, None if limit is None else self.clock() + limit)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment, or none."""

    clock: Callable[[], float]
    at: float | None

    def part(self, share: float) -> Deadline:
        """The moment at which so much of what is left from now on is over."""
        left = self.remaining()
        return self if left is None else Deadline(self.clock, self.clock() + share * left)

    def passed(self) -> bool:
        """Whether it is over."""
        return self.at is not None and self.clock() >= self.at

    def remaining(self) -> float | None:
        """Seconds that are left, at least 0; None for no limit."""
        return None if self.at is None else max(0.0, self.at - self.clock())
