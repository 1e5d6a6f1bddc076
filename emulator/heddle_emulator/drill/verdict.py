"""Whether expectations held, from what every run measured. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heddle_emulator.drill.measures import MEASURES
from heddle_emulator.drill.scenario import Bound, Expectation, Scenario, Statistic
from heddle_emulator.report.evidence import Story

Key = tuple[str, str, str]
"""Variant, measure and probe ("" for measures of the whole).

Of one part of a run the measure is "slowest after" and its like.
"""
Values = Mapping[Key, Sequence[float]]
"""A value for each run, in their order."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One expectation in one variant, and what was found."""

    expectation: Expectation
    variant: str
    found: float | None
    """None where nothing was measured."""
    held: bool

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
        return f"{told.statistic.value} at {told.bound.value} {self._show(told.value)}"

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
    held = found is not None and (
        found <= told.value if told.bound is Bound.MOST else found >= told.value
    )
    return Finding(told, variant, found, held)


def _ratio(above: float, below: float) -> float:
    if below == 0:
        return 1.0 if above == 0 else float("inf")
    return above / below


def _found(told: Expectation, variant: str, values: Values) -> float | None:
    measure = f"{told.measure} {told.when.value}" if told.when else told.measure
    series = values.get((variant, measure, told.of), ())
    return statistic(series, told.statistic) if series else None


def statistic(series: Sequence[float], which: Statistic) -> float:
    """Of many runs; p99 is the value that 99 of 100 do not exceed, so a high one of few runs."""
    ordered = np.sort(np.asarray(series, dtype=np.float64))
    if which is Statistic.MEDIAN:
        low, high = float(ordered[(len(ordered) - 1) // 2]), float(ordered[len(ordered) // 2])
        return low if low == high else (low + high) / 2
    if which is Statistic.P99:
        return float(ordered[int(np.ceil(0.99 * len(ordered))) - 1])
    return float(ordered[-1] if which is Statistic.MAX else ordered[0])
