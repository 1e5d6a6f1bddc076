"""Whether expectations held, from what every run measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heddle_emulator.drill.measures import MEASURES
from heddle_emulator.drill.scenario import Bound, Expectation, Scenario, Statistic
from heddle_emulator.report.evidence import Story

TURNS = 4
"""Programs that wait for their turn one after the other before a fault is repaired: the agent that
sees it, the agent that is told, the kernel's work for either, and the probe."""

ONCE = frozenset({"up", "entries"})
"""Measures of a whole drill or variant, not of each run."""

MeasureKey = tuple[str, str, str]
"""Variant, measure and probe ("" for measures of the whole).

Of one part of a run the measure is "slowest after" and its like.
"""
Values = Mapping[MeasureKey, Sequence[float]]
"""A value for each run, in their order."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One expectation in one variant, and what was found."""

    expectation: Expectation
    variant: str
    found: float | None
    """None where nothing was measured."""
    held: bool
    allowed: float | None = None
    """The bound at the pace of the machine, where that is not the one of the file."""

    @property
    def what(self) -> str:
        """Measure, probe and variant."""
        told = self.expectation
        parts = (
            told.measure,
            told.when.value if told.when else "",
            f"of {told.of}" if told.of else "",
            f"under {self.variant}" if self.variant else "",
            f"over {told.over}" if told.over else "",
        )
        return " ".join(part for part in parts if part)

    @property
    def wanted(self) -> str:
        """Statistic and bound."""
        told = self.expectation
        wanted = f"{told.statistic.value} at {told.bound.value} {self._show(told.value)}"
        if self.allowed is None:
            return wanted
        return f"{wanted}, {self._show(self.allowed)} at the pace of this machine in the same runs"

    @property
    def got(self) -> str:
        """What was found, as people write it."""
        return "not measured" if self.found is None else self._show(self.found)

    def _show(self, value: float) -> str:
        told = self.expectation
        return f"{value:.2f}" if told.over else MEASURES[told.measure].show(value)

    def __str__(self) -> str:
        return f"{self.what}: {self.wanted}, found {self.got}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one drill."""

    scenario: Scenario
    world: str
    values: Values
    findings: tuple[Finding, ...]
    seconds: float = 0.0
    fault: str = ""
    """Why it could not be run to its end; then nothing holds."""
    notes: tuple[str, ...] = ()
    stories: tuple[Story, ...] = ()
    """Runs that are told in full, as far as the world can."""
    assumptions: tuple[str, ...] = ()
    """What the world takes for granted."""

    @property
    def held(self) -> bool:
        """Whether every expectation held."""
        return not self.fault and all(finding.held for finding in self.findings)


def judge(scenario: Scenario, values: Values) -> tuple[Finding, ...]:
    """Every expectation, in every variant that it speaks of."""
    return tuple(
        _finding(told, variant.name, values)
        for told in scenario.expectations
        for variant in scenario.variants
        if told.variant in {"", variant.name}
    )


def _finding(told: Expectation, variant: str, values: Values) -> Finding:
    found = _found(told, variant, values)
    if found is not None and told.over:
        below = _found(told, told.over, values)
        found = None if below is None else _ratio(found, below)
    allowed = None if told.over else _at_pace(told, variant, values)
    bound = told.value if allowed is None else allowed
    held = found is not None and (found <= bound if told.bound is Bound.MOST else found >= bound)
    return Finding(told, variant, found, held, allowed)


def _at_pace(told: Expectation, variant: str, values: Values) -> float | None:
    """An upper limit on time as the machine could keep it while the runs were made.

    None where the limit is not on time, or nothing was measured of the machine. What is limited
    is the work of a few programs that tell each other: each waits for its turn, and its work
    lasts longer than on a machine of its own.
    """
    if told.bound is not Bound.MOST or MEASURES[told.measure].unit != "s" or told.measure == "up":
        return None
    late, stretch = (values.get((variant, word, ""), ()) for word in ("late", "stretch"))
    if not late or not stretch:
        return None
    waits = TURNS * statistic(late, told.statistic)
    return told.value * statistic(stretch, told.statistic) + waits


def _ratio(above: float, below: float) -> float:
    if below == 0:
        return 1.0 if above == 0 else float("inf")
    return above / below


def _found(told: Expectation, variant: str, values: Values) -> float | None:
    measure = f"{told.measure} {told.when.value}" if told.when else told.measure
    series = values.get((variant, measure, told.of), ())
    if len(series) < _runs(variant, values) and told.measure not in ONCE:
        return None  # what some runs have shown says nothing of the others
    return statistic(series, told.statistic) if series else None


def _runs(variant: str, values: Values) -> int:
    """How many runs of a variant were made."""
    return max((len(series) for (own, _, _), series in values.items() if own == variant), default=0)


def statistic(series: Sequence[float], which: Statistic) -> float:
    """A statistic of many runs; p99 is the value that 99 of 100 do not exceed."""
    ordered = np.sort(np.asarray(series, dtype=np.float64))
    if which is Statistic.MEDIAN:
        low, high = float(ordered[(len(ordered) - 1) // 2]), float(ordered[len(ordered) // 2])
        return low if low == high else (low + high) / 2
    if which is Statistic.P99:
        return float(ordered[int(np.ceil(0.99 * len(ordered))) - 1])
    return float(ordered[-1] if which is Statistic.MAX else ordered[0])
