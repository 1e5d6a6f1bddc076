"""Axes of drawings: where a value stands, and which values are written beside it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

_STEPS = (1.0, 2.0, 5.0, 10.0)
PIXEL_DIGITS = 1


@dataclass(frozen=True, slots=True)
class Tick:
    """A value on an axis, where it stands in pixels, and its text."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class Axis:
    """A straight axis from one value to another, in pixels."""

    low: float
    high: float
    begin: float
    """Pixel of ``low``; may be beyond that of ``high``, as heights grow downwards."""
    end: float

    def at(self, value: float) -> float:
        """Pixel of a value."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        return round(self.begin + share * (self.end - self.begin), PIXEL_DIGITS)

    def ticks(self, count: int, text: Callable[[float], str]) -> tuple[Tick, ...]:
        """About so many round values."""
        step = round_step((self.high - self.low) / max(count, 1))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = (place * step for place in range(first, last + 1))
        return tuple(Tick(self.at(value), text(value)) for value in values)


@dataclass(frozen=True, slots=True)
class LogAxis:
    """Decades, for times after an event: what comes at once stands at the very beginning."""

    low: float
    """First decade, above 0."""
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Pixel of a value; of all up to ``low`` the beginning."""
        if value <= self.low:
            return self.begin
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.begin + min(share, 1.0) * (self.end - self.begin), PIXEL_DIGITS)

    def ticks(self, text: Callable[[float], str]) -> tuple[Tick, ...]:
        """The decades."""
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high))
        return tuple(Tick(self.at(10.0**n), text(10.0**n)) for n in range(first, last + 1))


def round_step(least: float) -> float:
    """The least of 1, 2, 5, 10, ... that is not below; 1 for nothing."""
    if least <= 0 or not math.isfinite(least):
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))
