"""Heat maps of utilisation, drawn so that a fabric of 24,576 NICs is still a small page.

A map is one SVG path for each band of the scale. The path has strokes of one cell's height, each as
long as the run of adjacent cells in that band. The style sheet has the colours, so one drawing
serves light, dark and print. The exact value of each cell, to the per cent, is added as bytes that
only the pointer uses, and a table names the fullest cables.

The colours of all pages, light and dark, and the bands of utilisation are here in one place. So a
test can check every pair that meets on a page for the contrast that WCAG 2 requires, and the bands
for eyes that do not distinguish red from green. Up to 100 % the scale is one hue whose lightness
changes in one direction only. Above 100 % it jumps to another hue. Blue and orange are distinct in
every common kind of colour blindness.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from heddle_emulator.report import words
from heddle_emulator.report.evidence import HeatMap, Moment, Number, Story

OVERLOAD = 1.0005
"""Utilisation above which a cable is over-subscribed; the small excess allows for rounding."""
IDLE = 0.0005


@dataclass(frozen=True, slots=True)
class Band:
    """A range of utilisation and its colours."""

    label: str
    most: float
    """The greatest utilisation in this band."""
    light: str
    dark: str


BANDS = (
    Band("idle", IDLE, "#eef1f5", "#262c35"),
    Band("to 20 %", 0.2, "#d3e3f3", "#1d3a57"),
    Band("20 to 40 %", 0.4, "#a9cbe8", "#1f5078"),
    Band("40 to 60 %", 0.6, "#76acd8", "#2a699c"),
    Band("60 to 80 %", 0.8, "#4489c2", "#4087bf"),
    Band("80 to 95 %", 0.95, "#2166a3", "#67a8da"),
    Band("95 to 100 %", OVERLOAD, "#0c3d70", "#a9d3f5"),
    Band("100 to 125 %", 1.25, "#f6a04d", "#c96a12"),
    Band("125 to 200 %", 2.0, "#dd6a0c", "#ee8f2f"),
    Band("above 200 %", float("inf"), "#9a3a00", "#ffbe73"),
)


def band(utilization: float) -> int:
    """Return the index in ``BANDS`` of a utilisation."""
    return next(place for place, one in enumerate(BANDS) if utilization <= one.most)


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of text and surfaces."""

    page: str
    panel: str
    text: str
    quiet: str
    """Text of less importance."""
    rule: str
    """Lines between rows, which are only decoration."""
    grid: str
    link: str
    good: str
    good_panel: str
    bad: str
    bad_panel: str
    lines: tuple[str, ...]
    """Colours of lines in charts, of stages, and of kinds of events."""


LIGHT = Theme(
    page="#ffffff",
    panel="#f6f7f9",
    text="#1b1f24",
    quiet="#57606a",
    rule="#d8dde3",
    grid="#e4e8ec",
    link="#0a58a8",
    good="#116633",
    good_panel="#e9f5ee",
    bad="#a8200d",
    bad_panel="#fdeeeb",
    lines=(
        "#0b62a8",
        "#b8500a",
        "#00735a",
        "#8a3a86",
        "#7a6200",
        "#2c7fa0",
        "#a3304c",
        "#5a6570",
    ),
)
DARK = Theme(
    page="#14181d",
    panel="#1c2128",
    text="#e3e8ee",
    quiet="#9aa6b2",
    rule="#363d47",
    grid="#2a313a",
    link="#7fbaf2",
    good="#6fd09a",
    good_panel="#14291f",
    bad="#ff9a86",
    bad_panel="#331b17",
    lines=(
        "#6cb2f0",
        "#f09a4e",
        "#4fc9a5",
        "#d391cf",
        "#d9b93b",
        "#7fd0e8",
        "#f28aa2",
        "#a9b4bf",
    ),
)


NO_CABLE = 255
DEAD = 254
_MOST = 253
STEP = 0.01
"""Utilisation of one step of a byte, of which there are up to ``_MOST``."""
PANEL, _PAGE = 300, 1000
"""Most pixels of a small map, several of which are side by side, and of a large one."""
_LARGEST, LEAST, TALL = 30, 4, 9
BROAD = 9
"""Pixels of a cell that can hold its own cross; in narrower cells crosses extend beyond it."""
FULLEST = 8
"""Cables of each moment that are named."""
LABEL_EVERY = 13
"""Pixels that a label needs."""


@dataclass(frozen=True, slots=True)
class Label:
    """The name of a row or column and its place, in pixels."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A cell in words."""

    name: str
    used: str
    band: int


@dataclass(frozen=True, slots=True)
class Panel:
    """One map at one moment."""

    title: str
    when: str
    strokes: tuple[tuple[int, str], ...]
    """Band and path, in cells."""
    crosses: str
    """Path of the cables that are down, in cells."""
    data: str
    """A byte for each cell, row by row, base64."""
    worst: float
    worst_text: str
    worst_cable: str
    mean_text: str
    over: int
    dead: int
    fullest: tuple[HeatCell, ...]


@dataclass(frozen=True, slots=True)
class Heat:
    """A map at all its moments, ready to be drawn."""

    title: str
    row_kind: str
    column_kind: str
    from_columns: bool
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    row_labels: tuple[Label, ...]
    column_labels: tuple[Label, ...]
    panels: tuple[Panel, ...]
    cell_width: int
    cell_height: int
    left: int
    """Pixels beside the cells, for labels."""
    below: int
    told: bool
    """Whether something in it stands out: a dead cable, or one above 100 %."""

    @property
    def broken(self) -> bool:
        """Whether a cable was down at any moment."""
        return any(panel.dead for panel in self.panels)

    @property
    def worst(self) -> float:
        """Utilisation of the fullest cable at any moment."""
        return max(panel.worst for panel in self.panels)

    @property
    def width(self) -> int:
        """Pixels of the cells."""
        return self.cell_width * len(self.columns)

    @property
    def height(self) -> int:
        """Pixels of the cells."""
        return self.cell_height * len(self.rows)


def heats(story: Story) -> tuple[Heat, ...]:
    """Return all maps of a run that have a cell."""
    return tuple(_heat(one) for one in story.maps if one.rows and one.columns and one.moments)


def _heat(one: HeatMap) -> Heat:
    across = PANEL if len(one.columns) * 7 <= PANEL else _PAGE
    width = max(LEAST, min(_LARGEST, across // len(one.columns)))
    panels = tuple(_panel(one, moment, 0.25 if width >= BROAD else 1.0) for moment in one.moments)
    height = max(width, min(TALL, 2 * width))
    longest = max(len(name) for name in one.rows)
    rows = _labels(one.rows, height)
    return Heat(
        title=one.title,
        row_kind=one.row_kind,
        column_kind=one.column_kind,
        from_columns=one.from_columns,
        rows=one.rows,
        columns=one.columns,
        row_labels=rows,
        column_labels=_labels(one.columns, width),
        panels=panels,
        cell_width=width,
        cell_height=height,
        left=8 + min(140, round(longest * 6.2)),
        below=12 + min(110, round(max(len(name) for name in one.columns) * 6.2)),
        told=any(panel.dead or panel.over for panel in panels),
    )


def _labels(names: Sequence[str], size: int) -> tuple[Label, ...]:
    """Return evenly spaced labels, as many as there is room for."""
    every = next(n for n in (1, 2, 4, 8, 16, 32, 64) if n * size >= LABEL_EVERY)
    return tuple(
        Label((place + 0.5) * size, name) for place, name in enumerate(names) if place % every == 0
    )


def _cross(row: int, column: int, arm: float) -> str:
    x, y = column + 0.5 - arm, row + 0.5 - arm
    return f"M{x:g} {y:g}l{2 * arm:g} {2 * arm:g}m0-{2 * arm:g}l-{2 * arm:g} {2 * arm:g}"


def _panel(one: HeatMap, moment: Moment, arm: float) -> Panel:
    dead = {(cell.row, cell.column) for cell in moment.dead}
    ranked = sorted(_cells(moment), key=lambda cell: -cell[0])
    alive = [value for value, row, column in ranked if (row, column) not in dead]
    worst = ranked[0] if ranked else None
    return Panel(
        title=moment.title,
        when="" if moment.at is None else words.seconds(moment.at),
        strokes=tuple(_strokes(moment, dead)),
        crosses="".join(_cross(row, column, arm) for row, column in sorted(dead)),
        data=_bytes(moment, dead),
        worst=worst[0] if worst else 0.0,
        worst_text=words.percent(worst[0] if worst else None),
        worst_cable=_cable(one, worst[1], worst[2]) if worst and worst[0] > 0 else "",
        mean_text=words.percent(sum(alive) / len(alive) if alive else None),
        over=sum(value > OVERLOAD for value, _, _ in ranked),
        dead=len(dead),
        fullest=tuple(
            HeatCell(_cable(one, row, column), words.percent(value), band(value))
            for value, row, column in ranked[:FULLEST]
        ),
    )


def _cells(moment: Moment) -> Iterator[tuple[float, int, int]]:
    for row, line in enumerate(moment.values):
        for column, value in enumerate(line):
            if value is not None:
                yield value, row, column


def _cable(one: HeatMap, row: int, column: int) -> str:
    ends = one.rows[row], one.columns[column]
    return f"{ends[1]} → {ends[0]}" if one.from_columns else f"{ends[0]} → {ends[1]}"


def _strokes(moment: Moment, dead: set[tuple[int, int]]) -> Iterator[tuple[int, str]]:
    """Yield band and path; cells of dead cables are left out, since their cross is separate."""
    paths: list[list[str]] = [[] for _ in BANDS]
    for row, line in enumerate(moment.values):
        ends: dict[int, int] = {}
        column = 0
        bands = [
            None if value is None or (row, place) in dead else band(value)
            for place, value in enumerate(line)
        ]
        for which, cells in groupby(bands):
            length = len(list(cells))
            if which is not None:
                ahead = f"m{column - ends[which]} 0" if which in ends else f"M{column} {row}.5"
                paths[which].append(f"{ahead}h{length}")
                ends[which] = column + length
            column += length
    return ((which, "".join(path)) for which, path in enumerate(paths) if path)


def _bytes(moment: Moment, dead: set[tuple[int, int]]) -> str:
    told = bytes(
        _byte(value, (row, column) in dead)
        for row, line in enumerate(moment.values)
        for column, value in enumerate(line)
    )
    return base64.b64encode(told).decode("ascii")


def _byte(value: Number, is_dead: bool) -> int:  # noqa: FBT001 - private, and called once
    if value is None:
        return NO_CABLE
    return DEAD if is_dead else min(_MOST, round(value / STEP))
