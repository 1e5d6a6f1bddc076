"""Reports as people see them: in a browser, wide and narrow, in the light and in the dark."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from heddle_emulator.cli import run
from heddle_emulator.report.index import Entry, index
from heddle_emulator.report.page import page
from heddle_emulator.report.palette import BANDS, DARK, LIGHT, Theme, band
from heddle_emulator.topology.clos import clos
from tests.integration.browsing import Evaluation, Pixels, browser, look, read_png
from tests.support.report_evidences import held, lost, story, unplayed

DRILL = Path(__file__).parents[1] / "drills" / "fluid" / "link-cut.yaml"
WIDE, NARROW = (1280, 4600), (500, 1400)
PHONE = 360
"""Pixels; browsers make no window of their own as narrow."""
PARTS = [
    "body",
    ".verdict",
    "h1",
    ".word",
    "svg.cells > rect",
    "figure svg.wide",
    "table",
    "section",
]
NEAR = 6
"""Steps of 256 by which a colour may differ where a browser blends."""


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def _share(pixels: Pixels, colour: str) -> float:
    """Share of pixels that have a colour."""
    close = np.abs(pixels.astype(np.int64) - _rgb(colour)).max(axis=2) <= NEAR
    return float(close.mean())


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_a_report_looks_as_it_should(theme: Theme, tmp_path: Path) -> None:
    """Verdict on top, every drawing with something drawn, links as full as they were."""
    seen = look(page(held()), tmp_path, PARTS, size=WIDE, dark=theme is DARK)
    assert seen.console == []
    assert seen.found["scheme"] == ("dark" if theme is DARK else "light")
    (verdict,), (heading,) = seen.found[".verdict"], seen.found["h1"]
    assert heading[3] < verdict[3] < 400
    assert verdict[1] < 200
    assert _share(seen.part(verdict), theme.good_panel) > 0.5
    assert _share(seen.part(seen.found[".word"][0]), theme.good) > 0.02
    _assert_drawn(seen, theme)
    _assert_links(seen, theme)


def _assert_drawn(seen: Evaluation, theme: Theme) -> None:
    """No drawing is empty, cut off by the page, or drawn over another."""
    drawings = seen.found["figure svg.wide"]
    assert len(drawings) == 5
    for box in drawings:
        assert box[2] > 600
        assert 0.005 < 1 - _share(seen.part(box), theme.page) < 0.5
    tops = [box[1] for box in drawings]
    assert tops == sorted(tops)
    assert all(a[1] + a[3] <= b[1] for a, b in pairwise(drawings))


def _assert_links(seen: Evaluation, theme: Theme) -> None:
    """Before: 87.5 % everywhere; during: 125 % but for a dead cable; after: as before, repaired."""
    maps = seen.found["svg.cells > rect"]
    assert len(maps) == 6
    even, fuller = (getattr(BANDS[band(used)], _name(theme)) for used in (0.875, 1.25))
    shares = [(_share(seen.part(box), even), _share(seen.part(box), fuller)) for box in maps]
    for before, during, after in (shares[:3], shares[3:]):
        assert before[0] > 0.8
        assert before[1] == 0
        assert during[1] > 0.8
        assert during[0] == 0
        assert after[0] > 0.8
    assert seen.found["tips"][0] == "l0 → s0: 88 %"
    assert seen.found["tips"][1] == "l0 → s0: down"
    assert seen.found["tips"][4] == "s0 → l0: down"


def _name(theme: Theme) -> str:
    return "dark" if theme is DARK else "light"


def test_a_failed_drill_is_seen_at_once(tmp_path: Path) -> None:
    """The verdict's panel is of another colour, and its row in the table as well."""
    seen = look(page(lost()), tmp_path, [*PARTS, "tr.lost"], size=(1280, 1200))
    assert seen.console == []
    assert _share(seen.part(seen.found[".verdict"][0]), LIGHT.bad_panel) > 0.5
    assert _share(seen.part(seen.found["tr.lost"][0]), LIGHT.bad_panel) > 0.5


@pytest.mark.parametrize(
    "text",
    [
        page(held()),
        index([Entry("a.html", held()), Entry("b.html", unplayed())]),
    ],
    ids=["drill", "index"],
)
def test_nothing_is_wider_than_a_narrow_window(text: str, tmp_path: Path) -> None:
    """What is wide scrolls in its own place, not the page."""
    narrow = text.replace("<body>", f'<body style="width: {PHONE}px">')
    seen = look(narrow, tmp_path, PARTS, size=NARROW)
    assert seen.console == []
    assert seen.found["wide"] <= seen.found["shown"] == PHONE


def test_scripts_in_names_do_not_run(tmp_path: Path) -> None:
    """The browser shows them, in every place where a name stands."""
    evil = "</title></script><script>document.title='ran'</script><img src=x onerror=alert(1)>"
    broken = replace(
        held(),
        drill=evil,
        proves=evil,
        scenario=evil,
        stories=tuple(replace(one, title=evil) for one in held().stories),
    )
    seen = look(page(broken), tmp_path, ["img", "h1"], size=NARROW)
    assert seen.console == []
    assert seen.found["img"] == []
    assert "<title>ran</title>" not in seen.dom


def test_a_script_that_is_not_ours_would_not_run(tmp_path: Path) -> None:
    """Even if a text ever came through unescaped, the page forbids what it does not know."""
    text = page(held()).replace("<h1>", "<h1><script>document.title='ran'</script>")
    seen = look(text, tmp_path, ["h1"], size=NARROW)
    assert "<title>ran</title>" not in seen.dom
    assert any("Content Security Policy" in line for line in seen.console)


def test_a_large_fabric_is_drawn(tmp_path: Path) -> None:
    """A zone of 192 leaves by 16 spines: every cell is there, and has its name."""
    fabric = clos(leaves=192, spines=16, nics_per_leaf=1)
    chance = np.random.default_rng(3).poisson(16, 2 * fabric.link_count) / 16
    seen = look(
        page(replace(held(), stories=(story(fabric, chance),))), tmp_path, PARTS, size=(1280, 3000)
    )
    assert seen.console == []
    during = seen.found["svg.cells > rect"][1]
    assert during[2] == 5 * 192
    colours = {one.light for one in BANDS if _share(seen.part(during), one.light) > 0.005}
    assert len(colours) >= 5


def test_a_drill_as_it_was_played_can_be_looked_at(tmp_path: Path) -> None:
    """From the command to the browser: a link is cut, and its cells say so until the end."""
    assert run(["drill", str(DRILL), "--report", str(tmp_path)]) == 0
    text = (tmp_path / "link-cut.html").read_text()
    seen = look(text, tmp_path, [*PARTS, "svg.cells .dead"], size=(1280, 4000))
    assert seen.console == []
    assert _share(seen.part(seen.found[".verdict"][0]), LIGHT.good_panel) > 0.5
    assert len(seen.found["svg.cells > rect"]) == 6
    assert len(seen.found["svg.cells .dead"]) == 4
    shown = [box for box in seen.found["figure svg.wide"] if box[1] + box[3] < len(seen.pixels)]
    assert len(shown) >= 3
    for box in shown:
        assert 0.005 < 1 - _share(seen.part(box), LIGHT.page) < 0.5
    index = look((tmp_path / "index.html").read_text(), tmp_path, ["h1"], size=(900, 700))
    assert "The one drill held" in index.dom


def test_a_picture_is_read_as_it_was_drawn(tmp_path: Path) -> None:
    """The reader of PNG that these tests use knows a page of one colour."""
    path = tmp_path / "red.html"
    path.write_text("<body style='background:#c00'>")
    picture = tmp_path / "red.png"
    subprocess.run(
        [browser(), "--headless=new", "--no-sandbox", f"--screenshot={picture}",
         "--window-size=64,48", f"--user-data-dir={tmp_path / 'p'}", path.as_uri()],
        capture_output=True, timeout=300, check=True,
    )  # fmt: skip
    pixels = read_png(picture.read_bytes())
    assert pixels.shape[1] == 64
    assert (pixels == (204, 0, 0)).all()
