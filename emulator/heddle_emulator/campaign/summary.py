"""What all trials together came to: the spread of each measure, and the trials to look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from heddle_emulator.campaign.result import Result

SHOWN = 8
"""Worst trials that are named."""


@dataclass(frozen=True, slots=True)
class TrialMeasure:
    """A number of every trial."""

    title: str
    of: Callable[[Result], float]
    unit: str = ""
    lowest_is_worst: bool = False

    def show(self, value: float) -> str:
        """For people."""
        if self.unit == "s":
            return f"{value * 1e3:.0f} ms"
        return f"{value:.1%}" if self.unit == "%" else f"{value:g}"


MEASURES: dict[str, TrialMeasure] = {
    "stranded_local": TrialMeasure("QPs stranded after local repair", lambda r: r.stranded_local),
    "stranded_bgp": TrialMeasure("QPs stranded once BGP has converged", lambda r: r.stranded_bgp),
    "slowest_local": TrialMeasure(
        "slowest flow after local repair", lambda r: r.slowest_local, "%", lowest_is_worst=True
    ),
    "stranded": TrialMeasure("QPs stranded under the new plan", lambda r: r.stranded),
    "worst": TrialMeasure("worst link under the new plan", lambda r: r.worst, "%"),
    "slowest": TrialMeasure(
        "slowest flow under the new plan", lambda r: r.slowest, "%", lowest_is_worst=True
    ),
    "gap": TrialMeasure("certificate's gap", lambda r: r.gap, "%"),
    "affected": TrialMeasure("flows affected", lambda r: r.affected),
    "moved": TrialMeasure("flows moved", lambda r: r.moved),
    "cut_off": TrialMeasure("flows cut off", lambda r: r.cut_off),
    "acked_seconds": TrialMeasure("failure to last ack", lambda r: r.acked_seconds, "s"),
    "mended_seconds": TrialMeasure("mended to last ack", lambda r: r.mended_seconds, "s"),
}


@dataclass(frozen=True, slots=True)
class Spread:
    """Of one measure over all trials that were played to their end."""

    least: float
    median: float
    p90: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True)
class Summary:
    """A whole campaign, or as much of it as was played."""

    asked: int
    played: int
    spreads: dict[str, Spread]
    worst: tuple[Result, ...]
    """The trials to look at first."""
    bad: int
    """Trials with stranded QPs, that did not come back to what was, or that failed."""

    @property
    def held(self) -> bool:
        """Whether all was played and nobody has to look at anything."""
        return self.played == self.asked and not self.bad

    def record(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"held": self.held}


def summed_up(results: Sequence[Result], asked: int) -> Summary:
    """Sum up results, in whatever order they came."""
    ordered = sorted(results, key=lambda result: result.number)
    whole = [result for result in ordered if not result.fault]
    spreads = {
        name: _spread([measure.of(result) for result in whole])
        for name, measure in MEASURES.items()
        if whole
    }
    bad = sum(result.bad for result in ordered)
    worst = tuple(sorted(ordered, key=_badness, reverse=True)[:SHOWN])
    return Summary(asked, len(ordered), spreads, worst, bad)


def _spread(values: Sequence[float]) -> Spread:
    parts = np.quantile(np.asarray(values), [0, 0.5, 0.9, 0.99, 1], method="inverted_cdf")
    return Spread(*(float(part) for part in parts))


def _badness(result: Result) -> tuple[float, ...]:
    """What is worse comes later."""
    return (
        bool(result.fault),
        result.stranded,
        result.stranded_bgp,
        result.stranded_local,
        not result.regained,
        result.gap,
        -result.slowest,
        result.acked_seconds,
    )
