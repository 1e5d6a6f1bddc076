"""Values over time, drawn as steps, with the run's events marked above them.

Also: the length of each stage of a convergence as stacked bars, and runs as strips of marks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from heddle_emulator.report import words
from heddle_emulator.report.evidence import (
    Chart,
    Convergence,
    Event,
    Mark,
    Measured,
    Number,
    Story,
    TimeSeries,
)
from heddle_emulator.report.timeline import WORDS, Axis, Tick, episodes

_WIDTH, _HEIGHT = 1000.0, 260.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 64.0, 20.0, 24.0, 26.0
_MOST_LINES = 8
"""The number of lines that eyes can tell apart; all further lines look alike."""
HEADROOM = 1.06
REACTIONS = frozenset({Mark.DETECTED, Mark.REPAIR, Mark.RECOVERED, Mark.PLAN, Mark.ACK})
MARKED = (Mark.FAULT, Mark.REPAIR, Mark.RECOVERED, Mark.ACK, Mark.MEND)
_NEAR = 12.0
_CLOSE = 0.25
"""An episode shorter than this fraction of the run is also drawn in a chart of its own."""
AROUND = 0.35
"""How much to show before and after the episode, as a multiple of its length."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line."""

    name: str
    path: str
    hue: int
    """Number of the theme's line colour; lines beyond ``_MOST_LINES`` all use the last."""
    first: str
    least: str
    most: str
    last: str


@dataclass(frozen=True, slots=True)
class Flag:
    """An event marked above the chart."""

    x: float
    mark: Mark
    title: str


@dataclass(frozen=True, slots=True)
class Plot:
    """A chart, ready to be drawn."""

    title: str
    unit: str
    note: str
    about: str
    curves: tuple[Curve, ...]
    flags: tuple[Flag, ...]
    marks: tuple[tuple[Mark, str], ...]
    """The kinds of events in it, for the legend."""
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    ceiling: float | None
    """Pixel of the most that could be reached."""
    ceiling_text: str
    told: bool = True
    """Whether a table gives its numbers; false for a part of another chart."""
    left: float = _LEFT
    top: float = _TOP
    right: float = _WIDTH - _RIGHT
    bottom: float = _HEIGHT - _BOTTOM
    width: float = _WIDTH
    height: float = _HEIGHT


def plots(story: Story, stories: Sequence[Story]) -> tuple[Plot, ...]:
    """Return all charts of a run that have a value to show.

    Charts with the same title among ``stories`` have one scale, so that variants can be compared.
    """
    shown = [chart for chart in story.charts if _values(chart)]
    window = _first_episode(story)
    found = list[Plot]()
    for chart in shown:
        scale = _range(chart, stories)
        found.append(_plot(chart, story, scale))
        closer = window and _within(chart, *window)
        if closer:
            part = _plot(closer, replace(story, seconds=None), scale)
            found.append(replace(part, told=False))
    return tuple(found)


def _first_episode(story: Story) -> tuple[float, float] | None:
    """Return begin and end around the first episode, if that is much shorter than the run.

    A dip of milliseconds is invisible in a chart of a run of seconds.
    """
    told = next(iter(episodes(story)), ())
    faults = [event.at for event in told if event.mark is Mark.FAULT]
    ends = [event.at for event in told if event.mark in REACTIONS]
    if not faults or not ends or max(ends) <= min(faults):
        return None
    begin, length = min(faults), max(ends) - min(faults)
    whole = max((time for one in story.charts for line in one.lines for time in line.times),
                default=0.0)  # fmt: skip
    if length * (1 + 2 * AROUND) > _CLOSE * whole:
        return None
    return max(0.0, begin - AROUND * length), min(whole, max(ends) + AROUND * length)


def _within(chart: Chart, begin: float, end: float) -> Chart | None:
    """Return a part of a chart; None if nothing changes in it."""
    parts = [_part(line, begin, end) for line in chart.lines]
    if all(len(set(part.values)) <= 1 for part in parts):
        return None
    return replace(chart, title=f"{chart.title}, around the first fault", lines=tuple(parts))


def _part(line: TimeSeries, begin: float, end: float) -> TimeSeries:
    points = list(zip(line.times, line.values, strict=True))
    before = [value for time, value in points if time <= begin]
    inside = [(time, value) for time, value in points if begin < time < end]
    first = before[-1] if before else None
    told = [(begin, first), *inside]
    times, values = zip(*told, (end, told[-1][1]), strict=True)
    return TimeSeries(line.name, times, values)


def _range(chart: Chart, stories: Sequence[Story]) -> tuple[float, float]:
    alike = [
        other
        for story in stories
        for other in story.charts
        if (other.title, other.unit) == (chart.title, chart.unit)
    ]
    values = [value for other in alike for value in (*_values(other), other.ceiling or 0.0)]
    return min(0.0, *values), max(values) * HEADROOM


def _values(chart: Chart) -> list[float]:
    return [value for line in chart.lines for value in line.values if value is not None]


def _plot(chart: Chart, story: Story, scale: tuple[float, float]) -> Plot:
    times = [time for line in chart.lines for time in line.times]
    across = Axis(min(times), max(*times, story.seconds or 0.0), _LEFT, _WIDTH - _RIGHT)
    up = Axis(*scale, _HEIGHT - _BOTTOM, _TOP)
    flags = tuple(_flags(story.events, across))
    curves = tuple(_curve(n, line, chart.unit, (across, up)) for n, line in enumerate(chart.lines))
    return Plot(
        title=chart.title,
        unit="" if chart.unit == "share" else chart.unit,
        note=chart.note,
        about="; ".join(f"{one.name}: {one.first}, least {one.least}" for one in curves[:12]),
        curves=curves,
        flags=flags,
        marks=tuple(
            (mark, WORDS[mark]) for mark in MARKED if any(flag.mark is mark for flag in flags)
        ),
        x_ticks=across.ticks(8, words.tick),
        y_ticks=up.ticks(5, lambda value: words.quantity(value, chart.unit)),
        ceiling=None if chart.ceiling is None else up.at(chart.ceiling),
        ceiling_text=words.with_unit(chart.ceiling, chart.unit),
    )


def _flags(events: Sequence[Event], axis: Axis) -> Iterator[Flag]:
    """Yield the marks of events, faults first, because events close to them would hide them."""
    taken: list[tuple[float, Mark]] = []
    for event in sorted(events, key=lambda event: (MARKED.index(event.mark), event.at)
                        if event.mark in MARKED else (len(MARKED), event.at)):  # fmt: skip
        x = axis.at(event.at)
        if event.mark not in MARKED or not axis.begin <= x <= axis.end:
            continue
        if all(abs(x - other) >= _NEAR for other, _ in taken):
            taken.append((x, event.mark))
            yield Flag(x, event.mark, f"{words.seconds(event.at)}: {event.text}")


def _curve(number: int, line: TimeSeries, unit: str, axes: tuple[Axis, Axis]) -> Curve:
    known = [value for value in line.values if value is not None]
    ends = (known[0], min(known), max(known), known[-1]) if known else ()
    told = [words.with_unit(value, unit) for value in ends] or [words.NONE] * 4
    return Curve(line.name, _steps(line, axes), min(number, _MOST_LINES - 1), *told)


def _steps(line: TimeSeries, axes: tuple[Axis, Axis]) -> str:
    """Return an SVG path; if many points fall on one pixel, only some are drawn (``_thinned``)."""
    across, up = axes
    parts, drawn = list[str](), False
    for x, values in _by_pixel(line, across):
        if values[0] is None:
            drawn = False
            continue
        parts.append(f"H{x:g}" if drawn else f"M{x:g} {up.at(values[0]):g}")
        parts.extend(f"V{up.at(value):g}" for value in values if value is not None)
        drawn = True
    return "".join(parts)


def _by_pixel(line: TimeSeries, across: Axis) -> Iterator[tuple[float, list[Number]]]:
    at, group = None, list[Number]()
    for time, value in zip(line.times, line.values, strict=True):
        x = across.at(time)
        if x != at and group:
            assert at is not None
            yield at, _thinned(group)
            group = []
        at = x
        group.append(value)
    if at is not None:
        yield at, _thinned(group)


def _thinned(values: list[Number]) -> list[Number]:
    """Return the first, least, greatest and last value; a gap only if the last value is one."""
    known = [value for value in values if value is not None]
    if values[-1] is None or not known:
        return [None]
    if len(known) <= 2:  # noqa: PLR2004 - nothing to leave out
        return list(known)
    return [known[0], min(known), max(known), known[-1]]


_BARS_WIDTH, _BARS_LEFT, _BARS_RIGHT, _BARS_TOP, ROW, _BARS_BOTTOM = (
    1000.0,
    130.0,
    90.0,
    4.0,
    22.0,
    26.0,
)
MOST_BARS = 30
STRIP, STRIP_EDGE = 150.0, 4.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A stage of one run."""

    x: float
    width: float
    stage: int
    title: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One run."""

    label: str
    y: float
    pieces: tuple[Piece, ...]
    end: float
    total: str


@dataclass(frozen=True, slots=True)
class StageBar:
    """A stage over all runs."""

    stage: str
    median: str
    p99: str
    most: str


@dataclass(frozen=True, slots=True)
class Bars:
    """All runs, the slowest first."""

    stages: tuple[str, ...]
    bars: tuple[Bar, ...]
    rows: tuple[StageBar, ...]
    ticks: tuple[Tick, ...]
    runs: int
    height: float
    width: float = _BARS_WIDTH
    left: float = _BARS_LEFT
    top: float = _BARS_TOP
    bar: float = ROW - 6


def bars(convergence: Convergence | None) -> Bars | None:
    """Return the stages as bars; None if no run has stages."""
    if convergence is None or not convergence.runs:
        return None
    ranked = sorted(convergence.runs, key=lambda run: -sum(run.seconds))
    axis = Axis(0.0, max(sum(ranked[0].seconds), 1e-6), _BARS_LEFT, _BARS_WIDTH - _BARS_RIGHT)
    drawn = []
    for place, run in enumerate(ranked[:MOST_BARS]):
        pieces, at = list[Piece](), 0.0
        for stage, length in enumerate(run.seconds):
            title = f"{run.run}, {convergence.stages[stage]}: {words.seconds(length)}"
            x = axis.at(at)
            pieces.append(Piece(x, round(axis.at(at + length) - x, 1), stage, title))
            at += length
        end, total = axis.at(at), words.seconds(at)
        drawn.append(Bar(run.run, _BARS_TOP + ROW * place, tuple(pieces), end, total))
    ticks = axis.ticks(7, words.tick)
    height = _BARS_TOP + ROW * len(drawn) + _BARS_BOTTOM
    return Bars(convergence.stages, tuple(drawn), _rows(convergence), ticks, len(ranked), height)


def _rows(convergence: Convergence) -> tuple[StageBar, ...]:
    columns = [
        *zip(convergence.stages, zip(*(run.seconds for run in convergence.runs), strict=True),
             strict=True),
        ("in all", tuple(sum(run.seconds) for run in convergence.runs)),
    ]  # fmt: skip
    return tuple(_row(stage, sorted(values)) for stage, values in columns)


def _row(stage: str, ordered: list[float]) -> StageBar:
    middle = (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2
    p99 = ordered[math.ceil(0.99 * len(ordered)) - 1]
    return StageBar(stage, *(words.seconds(value) for value in (middle, p99, ordered[-1])))


def strip(measured: Measured) -> tuple[float, ...]:
    """Return the place of each run between the least and the greatest, in pixels of ``STRIP``."""
    known = [value for value in measured.runs if value is not None]
    if not known:
        return ()
    if min(known) == max(known):
        return (STRIP / 2,)
    axis = Axis(min(known), max(known), STRIP_EDGE, STRIP - STRIP_EDGE)
    return tuple(sorted({axis.at(value) for value in known}))
