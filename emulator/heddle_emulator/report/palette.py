"""Colours of the page, light and dark, and the bands of utilisation.

One place for all of them, so that a test can hold every pair that meets on a page against the
contrast that WCAG 2 asks for, and the bands against eyes that do not tell red from green.

Up to 100 % the scale is one hue whose lightness only ever goes one way; above 100 % it jumps to
another hue. Blue and orange stay apart in every common kind of colour blindness.
"""

from __future__ import annotations

from dataclasses import dataclass

OVERLOAD = 1.0005
"""Utilisation above which a cable is over-subscribed; what rounding adds is no overload."""
IDLE = 0.0005


@dataclass(frozen=True, slots=True)
class Band:
    """A range of utilisation and its colours."""

    label: str
    most: float
    """Utilisation up to which a value is in this band."""
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
    """Which of ``BANDS`` a utilisation is in."""
    return next(place for place, one in enumerate(BANDS) if utilization <= one.most)


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of text and surfaces."""

    page: str
    panel: str
    text: str
    quiet: str
    """Text that matters less."""
    rule: str
    """Lines between rows; says nothing by itself."""
    grid: str
    link: str
    good: str
    good_panel: str
    bad: str
    bad_panel: str
    lines: tuple[str, ...]
    """Of charts, of stages and of kinds of events."""


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
