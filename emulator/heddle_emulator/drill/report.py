"""Turn verdicts into a table for terminals, and into the evidence for a report."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.drill.scenario import Statistic
from heddle_emulator.drill.verdict import (
    Finding,
    MeasureKey,
    Values,
    Verdict,
    measure_of,
    statistic,
)
from heddle_emulator.drill.worlds import NETNS
from heddle_emulator.report.evidence import (
    Convergence,
    Evidence,
    Fact,
    Found,
    Measured,
    Stages,
)

COLUMNS = (Statistic.MEDIAN, Statistic.P99, Statistic.MIN, Statistic.MAX)
_STAGES = {
    "detected": "detect",
    "notified": "notify",
    "solved": "solve",
    "programmed": "program",
    "acked": "ack",
}
"""Names of the stages of a convergence, in order, by the measure that ends each stage."""
_WHOLE = ("solved", "acked")
"""Measures without which there is no convergence to show."""


def measure_table(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    """Yield a row per measured series: measure, probe, variant, runs, then each of ``COLUMNS``."""
    for (variant, measure, probe), series in verdict.values.items():
        show = measure_of(measure).show
        numbers = tuple(show(statistic(series, which)) for which in COLUMNS)
        yield (measure, probe, variant, str(len(series)), *numbers)
    convergence = _convergence(verdict.values)
    if convergence is not None:
        show = measure_of("acked").show
        for place, stage in enumerate(convergence.stages):
            lasted = [run.seconds[place] for run in convergence.runs]
            numbers = tuple(show(statistic(lasted, which)) for which in COLUMNS)
            yield (f"stage: {stage}", "", "", str(len(lasted)), *numbers)


def drill_evidence(verdict: Verdict) -> Evidence:
    """Return all that is known of one drill, including the text of the scenario's file."""
    scenario = verdict.scenario
    return Evidence(
        drill=scenario.name,
        proves=scenario.proves,
        file=scenario.path,
        world=verdict.world,
        seed=scenario.seed,
        held=verdict.held,
        seconds=round(verdict.seconds, 3),
        fault=verdict.fault,
        expectations=tuple(_found(finding) for finding in verdict.findings),
        measured=tuple(_measured(key, verdict.values) for key in verdict.values),
        stories=verdict.stories,
        convergence=_convergence(verdict.values),
        facts=tuple(_facts(verdict)),
        assumptions=verdict.assumptions,
        command=_command(verdict),
        scenario=_text(scenario.path),
        notes=verdict.notes,
    )


def _found(finding: Finding) -> Found:
    told = finding.expectation
    return Found(
        text=str(finding),
        held=finding.held,
        what=finding.what,
        wanted=finding.wanted,
        got=finding.got,
        measure=told.measure,
        probe=told.of,
        variant=finding.variant,
        over=told.over,
        statistic=told.statistic.value,
        bound=told.bound.value,
        when=told.when.value if told.when else "",
        value=told.value,
        found=finding.found,
        line=told.line,
    )


def _measured(key: MeasureKey, values: Values) -> Measured:
    variant, name, probe = key
    measure, series = measure_of(name), [float(value) for value in values[key]]
    numbers = {which.value: statistic(series, which) for which in COLUMNS}
    return Measured(name, measure.about, measure.unit, probe, variant, tuple(series), **numbers)


def _convergence(values: Values) -> Convergence | None:
    """Return the lengths of the stages of every run, for the stages that all runs measured.

    None if no variant measured all of ``_WHOLE``, or not in the same number of runs.
    """
    variants = sorted({variant for variant, _, _ in values})
    told = {v: {m: values.get((v, m, ""), ()) for m in _STAGES} for v in variants}
    timed = {v: moments for v, moments in told.items() if all(moments[m] for m in _WHOLE)}
    if not timed or not all(_alike(moments, _WHOLE) for moments in timed.values()):
        return None
    known = [m for m in _STAGES if all(_alike(one, (m, "acked")) for one in timed.values())]
    runs = tuple(
        Stages(f"{variant} run {number}".strip(), _differences(ends))
        for variant, moments in timed.items()
        for number, ends in enumerate(zip(*(moments[m] for m in known), strict=True), 1)
    )
    return Convergence(tuple(_stages(known)), runs)


def _alike(moments: Mapping[str, Sequence[float]], names: Iterable[str]) -> bool:
    """Whether these measures have the same number of values."""
    return len({len(moments[name]) for name in names}) == 1


def _stages(known: Sequence[str]) -> Iterator[str]:
    """Yield names of stages. Stages whose end was not measured join the next one's name."""
    names: list[str] = []
    for moment, name in _STAGES.items():
        names.append(name)
        if moment in known:
            yield ", ".join(names)
            names.clear()


def _differences(moments: tuple[float, ...]) -> tuple[float, ...]:
    """Return the lengths of stages, at least 0: clocks of two programs may differ by a tick."""
    before = (0.0, *moments[:-1])
    return tuple(max(0.0, float(b - a)) for a, b in zip(before, moments, strict=True))


def _facts(verdict: Verdict) -> Iterator[Fact]:
    scenario = verdict.scenario
    yield Fact("fabric", fabric_in_words(scenario.fabric))
    flows = [f"{len(one.flows):,} {one.name}".strip() for one in scenario.variants]
    if any(len(one.flows) for one in scenario.variants):
        yield Fact("flows", ", ".join(flows))
    yield Fact("runs", str(_runs(verdict)))
    yield Fact("heddle-emulator", version("heddle-emulator"))
    yield Fact("Python", platform.python_version())
    if verdict.world == NETNS:
        yield Fact("kernel", platform.release())
    yield Fact("played", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))


def fabric_in_words(fabric: Fabric) -> str:
    """Return a fabric's name and its number of nodes of each kind, in words."""
    kinds = fabric.structure.nodes.kind.tolist()
    plural = {NodeKind.LEAF: "leaves", NodeKind.NIC: "NICs", NodeKind.SWITCH: "switches"}
    counts = [
        f"{kinds.count(kind):,} {plural.get(kind, kind.name.lower() + 's')}"
        for kind in (NodeKind.LEAF, NodeKind.SPINE, NodeKind.CORE, NodeKind.SWITCH, NodeKind.NIC)
        if kind in kinds
    ]
    return f"{fabric.name}: {', '.join(counts)}"


def _runs(verdict: Verdict) -> int:
    return max((len(series) for series in verdict.values.values()), default=0)


def _command(verdict: Verdict) -> str:
    scenario = verdict.scenario
    words = ["heddle-emulator", "drill", scenario.path, "--world", verdict.world]
    runs = _runs(verdict)
    if runs and runs != scenario.runs:
        words += ["--runs", str(runs)]
    return shlex.join([*words, "--report", "report"])


def _text(path: str) -> str:
    file = Path(path)
    return file.read_text(errors="replace") if file.is_file() else ""
