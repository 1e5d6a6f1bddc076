"""How long each stage of a convergence took, as stacked bars, and runs as strips of marks."""

from __future__ import annotations

import math
from dataclasses import dataclass

from heddle_emulator.report import words
from heddle_emulator.report.axis import Axis, Tick
from heddle_emulator.report.evidence import Convergence, Measured

_WIDTH, _LEFT, _RIGHT, _TOP, ROW, _BOTTOM = 1000.0, 130.0, 90.0, 4.0, 22.0, 26.0
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
    width: float = _WIDTH
    left: float = _LEFT
    top: float = _TOP
    bar: float = ROW - 6


def bars(convergence: Convergence | None) -> Bars | None:
    """None where no run has a stage."""
    if convergence is None or not convergence.runs:
        return None
    ranked = sorted(convergence.runs, key=lambda run: -sum(run.seconds))
    axis = Axis(0.0, max(sum(ranked[0].seconds), 1e-6), _LEFT, _WIDTH - _RIGHT)
    drawn = []
    for place, run in enumerate(ranked[:MOST_BARS]):
        pieces, at = list[Piece](), 0.0
        for stage, length in enumerate(run.seconds):
            title = f"{run.run}, {convergence.stages[stage]}: {words.seconds(length)}"
            x = axis.at(at)
            pieces.append(Piece(x, round(axis.at(at + length) - x, 1), stage, title))
            at += length
        end, total = axis.at(at), words.seconds(at)
        drawn.append(Bar(run.run, _TOP + ROW * place, tuple(pieces), end, total))
    ticks = axis.ticks(7, words.tick)
    height = _TOP + ROW * len(drawn) + _BOTTOM
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
    """Where each run stands between the least and the greatest, in pixels of ``STRIP``."""
    known = [value for value in measured.runs if value is not None]
    if not known:
        return ()
    if min(known) == max(known):
        return (STRIP / 2,)
    axis = Axis(min(known), max(known), STRIP_EDGE, STRIP - STRIP_EDGE)
    return tuple(sorted({axis.at(value) for value in known}))
