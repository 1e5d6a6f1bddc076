"""Colours that can be read: contrast by WCAG 2, and eyes that distinguish fewer colours."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from heddle_controller.model.arrays import Floats
from heddle_emulator.report.heat import BANDS, DARK, LIGHT, OVERLOAD, Theme, band

TEXT, SHAPE = 4.5, 3.0
"""Least contrast of text and of drawings, by WCAG 2 level AA."""
THEMES = pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
# Machado, Oliveira, Fernandes 2009: what eyes without one kind of cone see, in linear RGB.
NO_RED = np.array([[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]])  # fmt: skip
NO_GREEN = np.array([[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]])  # fmt: skip
NO_BLUE = np.array([[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                    [0.004733, 0.691367, 0.303900]])  # fmt: skip
APART = 0.1
"""Least distance in linear RGB at which two colours can be told apart."""


def _linear(colour: str) -> Floats:
    parts = np.frombuffer(bytes.fromhex(colour[1:]), dtype=np.uint8) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def _luminance(colour: str) -> float:
    return float(_linear(colour) @ [0.2126, 0.7152, 0.0722])


def _contrast(a: str, b: str) -> float:
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


def _bands(theme: Theme) -> list[str]:
    return [one.dark if theme is DARK else one.light for one in BANDS]


@THEMES
def test_text_can_be_read_wherever_it_stands(theme: Theme) -> None:
    """Text has enough contrast on the page, in panels and in the verdict."""
    for under in (theme.page, theme.panel, theme.good_panel, theme.bad_panel):
        for over in (theme.text, theme.quiet):
            assert _contrast(over, under) >= TEXT, (over, under)
    for over in (theme.link, theme.good, theme.bad):
        assert _contrast(over, theme.page) >= TEXT, over
    assert _contrast(theme.good, theme.good_panel) >= TEXT
    assert _contrast(theme.bad, theme.bad_panel) >= TEXT
    assert _contrast(theme.link, theme.bad_panel) >= TEXT


@THEMES
def test_what_is_drawn_can_be_seen(theme: Theme) -> None:
    """Lines, marks and bars have enough contrast with the page."""
    for over in (*theme.lines, theme.good, theme.bad):
        assert _contrast(over, theme.page) >= SHAPE, over


@THEMES
def test_fuller_links_are_only_ever_further_from_the_page(theme: Theme) -> None:
    """Lightness changes in one direction up to 100 %, and again above, so grey shows the order."""
    light = [_luminance(colour) for colour in _bands(theme)]
    full = band(1.0)
    sign = 1 if theme is DARK else -1
    for part in (light[: full + 1], light[full + 1 :]):
        assert all(sign * (b - a) > 0 for a, b in pairwise(part))


@THEMES
@pytest.mark.parametrize(
    "eyes", [np.eye(3), NO_RED, NO_GREEN, NO_BLUE], ids=["all", "no-red", "no-green", "no-blue"]
)
def test_an_overload_is_never_taken_for_a_load(theme: Theme, eyes: Floats) -> None:
    """Every band above 100 % differs from every band below, for all kinds of eyes."""
    seen = [np.clip(eyes @ _linear(colour), 0, 1) for colour in _bands(theme)]
    full = band(1.0)
    for below in seen[: full + 1]:
        for above in seen[full + 1 :]:
            assert np.linalg.norm(below - above) > APART


def test_bands_begin_where_their_names_say() -> None:
    """Exactly full is not overloaded, and rounding does not change that."""
    assert BANDS[band(0.0)].label == "idle"
    assert BANDS[band(1.0)].label == BANDS[band(OVERLOAD)].label == "95 to 100 %"
    assert BANDS[band(1.001)].label == "100 to 125 %"
    assert BANDS[band(7.0)].label == "above 200 %"
