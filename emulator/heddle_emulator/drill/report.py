"""Verdicts as text, JSON and JUnit XML."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from heddle_emulator.drill.measures import measure_of
from heddle_emulator.drill.scenario import Statistic
from heddle_emulator.drill.verdict import Finding, Verdict, statistic

COLUMNS = (Statistic.MEDIAN, Statistic.P99, Statistic.MIN, Statistic.MAX)


def table(verdict: Verdict) -> Iterator[tuple[str, ...]]:
    """Rows of what was measured: measure, probe, variant, runs, then each of ``COLUMNS``."""
    for (variant, measure, probe), series in verdict.values.items():
        show = measure_of(measure).show
        numbers = tuple(show(statistic(series, which)) for which in COLUMNS)
        yield (measure, probe, variant, str(len(series)), *numbers)


def as_json(verdict: Verdict) -> dict[str, Any]:
    """All that is known of one drill, times in seconds; what is infinite is null."""
    scenario = verdict.scenario
    return {
        "drill": scenario.name,
        "proves": scenario.proves,
        "file": scenario.path,
        "world": verdict.world,
        "seed": scenario.seed,
        "held": verdict.held,
        "fault": verdict.fault,
        "seconds": round(verdict.seconds, 3),
        "expectations": [_finding(finding) for finding in verdict.findings],
        "measured": [
            {
                "measure": measure,
                "unit": measure_of(measure).unit,
                "probe": probe,
                "variant": variant,
                "runs": [_number(value) for value in series],
                **{which.value: _number(statistic(series, which)) for which in COLUMNS},
            }
            for (variant, measure, probe), series in verdict.values.items()
        ],
    }


def _finding(finding: Finding) -> dict[str, Any]:
    told = finding.expectation
    return {
        "line": told.line,
        "measure": told.measure,
        "probe": told.of,
        "variant": finding.variant,
        "over": told.over,
        "statistic": told.statistic.value,
        "bound": told.bound.value,
        "value": told.value,
        "found": None if finding.found is None else _number(finding.found),
        "held": finding.held,
        "text": str(finding),
    }


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def as_junit(verdicts: Sequence[Verdict]) -> str:
    """One test suite a drill, one case an expectation."""
    suites = "\n".join(_suite(verdict) for verdict in verdicts)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n{suites}\n</testsuites>\n'


def _suite(verdict: Verdict) -> str:
    name = quoteattr(verdict.scenario.name)
    failed = sum(not finding.held for finding in verdict.findings)
    errors = 1 if verdict.fault else 0
    head = f'  <testsuite name={name} tests="{len(verdict.findings) + errors}"'
    lines = [f'{head} failures="{failed}" errors="{errors}" time="{verdict.seconds:.3f}">']
    if verdict.fault:
        lines.append(f'    <testcase classname={name} name="runs"><error message=')
        lines[-1] += f"{quoteattr(verdict.fault)}/></testcase>"
    for finding in verdict.findings:
        case = f"    <testcase classname={name} name={quoteattr(str(finding).partition(', ')[0])}"
        if finding.held:
            lines.append(f"{case}/>")
        else:
            lines.append(f"{case}><failure message={quoteattr(str(finding))}/></testcase>")
    return "\n".join([*lines, "  </testsuite>"])


def write(folder: Path, verdicts: Sequence[Verdict]) -> None:
    """One JSON file a drill, and junit.xml for all."""
    folder.mkdir(parents=True, exist_ok=True)
    for verdict in verdicts:
        path = folder / f"{verdict.scenario.name}.json"
        path.write_text(json.dumps(as_json(verdict), indent=1) + "\n")
    (folder / "junit.xml").write_text(as_junit(verdicts))
