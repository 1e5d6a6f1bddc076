"""Judge whether expectations held, from the values that every run measured.

``MEASURES`` lists what a drill can measure, with units. All functions here are pure.
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
    """"s", "packets", "share", "flows", "Gbit" or "changes"; decides how values are written."""
    per_probe: bool = True
    """Whether it is measured for something named: a probe, a job, "demands" or "all"."""
    timed: bool = False
    """Whether an expectation may limit it to a part of the run with ``when``."""
    worlds: frozenset[str] = BOTH

    def show(self, value: float) -> str:
        """Return a value as text, with its unit if it is a time."""
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
"""All measures by the word that files use."""


def measure_of(key: str) -> Measure:
    """Return the measure of a key, which may name a part of the run, such as "slowest after"."""
    return MEASURES[key.partition(" ")[0]]


TURNS = 4
"""How many programs wait for the processor, one after the other, before a fault is repaired: the
agent that sees it, the agent that is told, the kernel working for either, and the probe."""

ONCE = frozenset({"up", "entries"})
"""Measures that have one value per drill or variant, not one per run."""

MeasureKey = tuple[str, str, str]
"""Variant, measure and probe ("" for measures of the whole).

The measure of one part of a run also names that part, such as "slowest after".
"""
Values = Mapping[MeasureKey, Sequence[float]]
"""One value per run, in order of the runs."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one expectation in one variant."""

    expectation: Expectation
    variant: str
    found: float | None
    """The measured statistic, or ratio with ``over``; None if it was not measured in every run."""
    held: bool
    allowed: float | None = None
    """The bound adjusted to the pace of the machine; None if the file's own bound was used."""

    @property
    def what(self) -> str:
        """The measure, part of the run, probe and variant, in words."""
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
        """The statistic and its bound, in words."""
        told = self.expectation
        wanted = f"{told.statistic.value} at {told.bound.value} {self._show(told.value)}"
        if self.allowed is None:
            return wanted
        return f"{wanted}, {self._show(self.allowed)} at the pace of this machine in the same runs"

    @property
    def got(self) -> str:
        """The measured value as text."""
        return "not measured" if self.found is None else self._show(self.found)

    def _show(self, value: float) -> str:
        told = self.expectation
        return f"{value:.2f}" if told.over else MEASURES[told.measure].show(value)

    def __str__(self) -> str:
        return f"{self.what}: {self.wanted}, found {self.got}"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of one drill."""

    scenario: Scenario
    world: str
    values: Values
    findings: tuple[Finding, ...]
    seconds: float = 0.0
    fault: str = ""
    """Why the drill could not be played to its end; "" if it was. With a fault it does not hold."""
    notes: tuple[str, ...] = ()
    stories: tuple[Story, ...] = ()
    """Full stories of the worst run of each variant."""
    assumptions: tuple[str, ...] = ()
    """What a reader must know about the world, in sentences."""

    @property
    def held(self) -> bool:
        """Whether the drill was played to its end and every expectation held."""
        return not self.fault and all(finding.held for finding in self.findings)


def judge(scenario: Scenario, values: Values) -> tuple[Finding, ...]:
    """Judge every expectation in every variant that it applies to."""
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
    """Return an upper limit on a time, extended to the pace that the machine had during the runs.

    On a busy machine every program involved waits for its turn, and its work takes longer. None if
    the expectation sets no upper limit on a time, or if the pace was not measured. ``up`` is never
    adjusted.
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
        return None  # some runs tell nothing about the others
    return statistic(series, told.statistic) if series else None


def _runs(variant: str, values: Values) -> int:
    """Return how many runs of a variant were made."""
    return max((len(series) for (own, _, _), series in values.items() if own == variant), default=0)


def statistic(series: Sequence[float], which: Statistic) -> float:
    """Return a statistic of a non-empty series; p99 is the value that 99 of 100 do not exceed."""
    ordered = np.sort(np.asarray(series, dtype=np.float64))
    if which is Statistic.MEDIAN:
        low, high = float(ordered[(len(ordered) - 1) // 2]), float(ordered[len(ordered) // 2])
        return low if low == high else (low + high) / 2
    if which is Statistic.P99:
        return float(ordered[int(np.ceil(0.99 * len(ordered))) - 1])
    return float(ordered[-1] if which is Statistic.MAX else ordered[0])
