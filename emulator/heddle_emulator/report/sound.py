"""Whether evidence fits together: what types cannot say and drawings rely on.

Evidence that a world made always does; a file may have been written by hand, or by somebody who
means ill, and is refused with the place of what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise

from heddle_emulator.report.evidence import Chart, Convergence, Evidence, HeatMap, Moment, Story

Flaw = tuple[str, str]
"""Place, and what is wrong there."""


def flaws(evidence: Evidence) -> Iterator[Flaw]:
    """Everything that does not fit; nothing if all does."""
    if not math.isfinite(evidence.seconds):
        yield "seconds", "is not a time"
    for number, story in enumerate(evidence.stories):
        yield from ((f"stories[{number}].{at}", reason) for at, reason in _story(story))
    if evidence.convergence is not None:
        yield from _convergence(evidence.convergence)


def _story(story: Story) -> Iterator[Flaw]:
    for number, event in enumerate(story.events):
        if not math.isfinite(event.at):
            yield f"events[{number}].at", "is not a time"
    for number, chart in enumerate(story.charts):
        yield from ((f"charts[{number}].{at}", reason) for at, reason in _chart(chart))
    for number, one in enumerate(story.maps):
        yield from ((f"maps[{number}].{at}", reason) for at, reason in _map(one))


def _chart(chart: Chart) -> Iterator[Flaw]:
    for number, line in enumerate(chart.lines):
        at = f"lines[{number}]"
        if len(line.times) != len(line.values):
            yield at, f"has {len(line.times)} times and {len(line.values)} values"
        if not all(map(math.isfinite, line.times)) or any(a > b for a, b in pairwise(line.times)):
            yield f"{at}.times", "are not in order"


def _map(one: HeatMap) -> Iterator[Flaw]:
    shape = len(one.rows), len(one.columns)
    for number, moment in enumerate(one.moments):
        yield from ((f"moments[{number}].{at}", why) for at, why in _moment(moment, shape))


def _moment(moment: Moment, shape: tuple[int, int]) -> Iterator[Flaw]:
    rows, columns = shape
    if len(moment.values) != rows or any(len(line) != columns for line in moment.values):
        yield "values", f"are not {rows} rows of {columns}"
        return
    if any(value is not None and value < 0 for line in moment.values for value in line):
        yield "values", "are below 0"
    for number, cell in enumerate(moment.dead):
        if not (0 <= cell.row < rows and 0 <= cell.column < columns):
            yield f"dead[{number}]", "is not a cell of the map"


def _convergence(convergence: Convergence) -> Iterator[Flaw]:
    for number, run in enumerate(convergence.runs):
        at = f"convergence.runs[{number}]"
        if len(run.seconds) != len(convergence.stages):
            yield at, f"has {len(run.seconds)} stages of {len(convergence.stages)}"
        if not all(math.isfinite(length) and length >= 0 for length in run.seconds):
            yield at, "has a stage that is not a time"
