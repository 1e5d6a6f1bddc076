"""Whether expectations held, from what every run measured. Pure.

What can be measured in a drill, its unit, and how it is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from heddle_emulator.drill.scenario import Bound, Expectation, Scenario, Statistic
from heddle_emulator.report.evidence import Story

_FLUID, _NETNS = frozenset({"fluid"}), frozenset({"netns"})
BOTH = _FLUID | _NETNS


@dataclass(frozen=True, slots=True)
class Measure:
    """One kind of number that a run yields."""

    about: str
    unit: str
    """"s", "packets", "share", "flows", "Gbit"; how a value in a file is read and shown."""
    per_probe: bool = True
    """Whether it is of something: a probe, a job, "demands" or "all"."""
    timed: bool = False
    """Whether ``when`` may say which part of the run it is of."""
    worlds: frozenset[str] = BOTH

    def show(self, value: float) -> str:
        """A value as people write it."""
        if self.unit == "s":
            return "never" if value == float("inf") else f"{value * 1e3:.1f} ms"
        return f"{value:.3f}" if self.unit == "share" else f"{value:g}"


MEASURES = {
    "lost": Measure("packets lost", "packets"),
    "lost_gbit": Measure("Gbit sent into black holes", "Gbit", worlds=_FLUID),
    "recovered": Measure(
        "from the fault to the first packet after the last that was lost; in virtual time the"
        " longest that a flow lost any",
        "s",
    ),
    "stranded": Measure("flows that still lose packets at the end", "flows"),
    "looped": Measure("packets that passed a switch twice", "packets"),
    "delivered": Measure("what came over what was sent", "share"),
    "slowest": Measure("least rate of any of the flows over its offer", "share", timed=True),
    "carried": Measure("rate of all the flows together over their offer", "share", timed=True),
    "utilization": Measure(
        "load over capacity of the fullest link",
        "share",
        per_probe=False,
        timed=True,
        worlds=_FLUID,
    ),
    "gap": Measure(
        "worst utilisation of the plan over its proven bound, less 1",
        "share",
        per_probe=False,
        timed=True,
        worlds=_FLUID,
    ),
    "unrouted": Measure(
        "flows that the plan has no path for", "flows", per_probe=False, timed=True, worlds=_FLUID
    ),
    "iteration": Measure(
        "time of the job's iterations over that of the first ones",
        "share",
        timed=True,
        worlds=_FLUID,
    ),
    "makespan": Measure("from the start of the job until its last iteration", "s", worlds=_FLUID),
    "up": Measure(
        "from nothing to a lab with BGP converged and agents", "s", per_probe=False, worlds=_NETNS
    ),
    "entries": Measure("entries of the plan over all switches", "flows", per_probe=False),
    "moved": Measure("flows that the plan moved", "flows", per_probe=False),
    "detected": Measure("from the fault until an agent saw it", "s", per_probe=False),
    "notified": Measure("until the controller had the report", "s", per_probe=False),
    "solved": Measure("until the new plan was committed", "s", per_probe=False),
    "programmed": Measure(
        "and as long again as any agent was busy programming it",
        "s",
        per_probe=False,
        worlds=_NETNS,
    ),
    "acked": Measure("until every agent had acknowledged it", "s", per_probe=False),
    "forgotten": Measure(
        "changes that a controller had acknowledged and that none wants any more",
        "changes",
        per_probe=False,
        worlds=_NETNS,
    ),
    "late": Measure(
        "longest that a program beside the run waited for its turn on the machine",
        "s",
        per_probe=False,
        worlds=_NETNS,
    ),
    "stretch": Measure(
        "how long work lasted beside the run over the processor's time for it",
        "share",
        per_probe=False,
        worlds=_NETNS,
    ),
    "converged": Measure(
        "from the last step until nothing is left to push", "s", per_probe=False, worlds=_FLUID
    ),
}
"""By the word that files use."""


def measure_of(key: str) -> Measure:
    """The measure of a key such as "slowest after"."""
    return MEASURES[key.partition(" ")[0]]


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
