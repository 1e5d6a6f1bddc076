"""Heat maps of utilisation, drawn so that a fabric of 24,576 NICs is still a small page.

A map is one SVG path for each band of the scale: strokes of one cell's height, as long as the
cells beside each other are of one band. Colours are the style sheet's, so that the same drawing
serves light, dark and print. What a cell is, to the per cent, comes with it as bytes that only
the pointer asks for, and in words as a table of the fullest cables.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from heddle_emulator.report import words
from heddle_emulator.report.evidence import HeatMap, Moment, Number, Story
from heddle_emulator.report.palette import BANDS, OVERLOAD, band

NO_CABLE = 255
DEAD = 254
_MOST = 253
STEP = 0.01
"""Utilisation of one step of a byte, up to ``_MOST`` of them."""
PANEL, _PAGE = 300, 1000
"""Pixels that a small map may take, where several stand side by side, and a large one."""
_LARGEST, LEAST, TALL = 30, 4, 9
BROAD = 9
"""Pixels of a cell that holds its own cross; in narrower ones crosses reach beyond it."""
FULLEST = 8
"""Cables of each moment that are named."""
LABEL_EVERY = 13
"""Pixels that a label needs."""


@dataclass(frozen=True, slots=True)
class Label:
    """The name of a row or column and where it stands, in pixels."""

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
    """Whether something in it is worth a look at once: a dead cable, or one above 100 %."""

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
    """All maps of a run that have a cell."""
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
    """As many as have room, evenly."""
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
    """Cells of cables that are down stay bare: their cross is drawn by itself."""
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
