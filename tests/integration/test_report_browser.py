"""Reports in a real browser, in wide and narrow windows, in light and dark colours."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio

from heddle_emulator.cli import run_command_line
from heddle_emulator.report.folder import Entry, index
from heddle_emulator.report.heat import BANDS, DARK, LIGHT, Theme, band
from heddle_emulator.report.page import page
from heddle_emulator.topology.clos import clos
from tests.support.chromium import Page, browsing
from tests.support.looking import Evaluation, Pixels, look
from tests.support.report_evidences import held, lost, story, unplayed

pytestmark = pytest.mark.asyncio(loop_scope="module")
DRILL = Path(__file__).parents[1] / "drills" / "fluid" / "link-cut.yaml"
WIDE, NARROW = (1280, 4600), (500, 1400)
PHONE = 360
"""Width of the page in pixels; browsers open no windows of their own this narrow."""
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
"""How far a colour's channel, of 256 steps, may differ where a browser blends."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shown(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Page]:
    """One browser for all tests of the module."""
    async with browsing(tmp_path_factory.mktemp("browser")) as made:
        yield made


def _rgb(colour: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(colour[1:]))


def _share(pixels: Pixels, colour: str) -> float:
    """Return the share of pixels that have a colour."""
    close = np.abs(pixels.astype(np.int64) - _rgb(colour)).max(axis=2) <= NEAR
    return float(close.mean())


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
async def test_a_report_looks_as_it_should(shown: Page, theme: Theme, tmp_path: Path) -> None:
    """The verdict is on top, no drawing is empty, and links are coloured by utilisation."""
    seen = await look(shown, page(held()), tmp_path, PARTS, size=WIDE, dark=theme is DARK)
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
    """Assert that no drawing is empty, cut off by the page, or drawn over another."""
    drawings = seen.found["figure svg.wide"]
    assert len(drawings) == 5
    for box in drawings:
        assert box[2] > 600
        assert 0.005 < 1 - _share(seen.part(box), theme.page) < 0.5
    tops = [box[1] for box in drawings]
    assert tops == sorted(tops)
    assert all(a[1] + a[3] <= b[1] for a, b in pairwise(drawings))


def _assert_links(seen: Evaluation, theme: Theme) -> None:
    """Assert 87.5 % on links before and after the fault, 125 % during it but for a dead cable."""
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


async def test_a_failed_drill_is_seen_at_once(shown: Page, tmp_path: Path) -> None:
    """The verdict's panel and its row in the table have the colour of failure."""
    seen = await look(shown, page(lost()), tmp_path, [*PARTS, "tr.lost"], size=(1280, 1200))
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
async def test_nothing_is_wider_than_a_narrow_window(
    shown: Page, text: str, tmp_path: Path
) -> None:
    """Wide content scrolls in its own box, and the page is no wider than the window."""
    narrow = text.replace("<body>", f'<body style="width: {PHONE}px">')
    seen = await look(shown, narrow, tmp_path, PARTS, size=NARROW)
    assert seen.console == []
    assert seen.found["wide"] <= seen.found["shown"] == PHONE


async def test_scripts_in_names_do_not_run(shown: Page, tmp_path: Path) -> None:
    """Scripts in names are shown as text wherever a name appears."""
    evil = "</title></script><script>document.title='ran'</script><img src=x onerror=alert(1)>"
    broken = replace(
        held(),
        drill=evil,
        proves=evil,
        scenario=evil,
        stories=tuple(replace(one, title=evil) for one in held().stories),
    )
    seen = await look(shown, page(broken), tmp_path, ["img", "h1"], size=NARROW)
    assert seen.console == []
    assert seen.found["img"] == []
    assert "<title>ran</title>" not in seen.dom


async def test_a_script_that_is_not_ours_would_not_run(shown: Page, tmp_path: Path) -> None:
    """Even if markup came through unescaped, the page's policy would block its scripts."""
    text = page(held()).replace("<h1>", "<h1><script>document.title='ran'</script>")
    seen = await look(shown, text, tmp_path, ["h1"], size=NARROW)
    assert "<title>ran</title>" not in seen.dom
    assert any("Content Security Policy" in line for line in seen.console)


async def test_a_large_fabric_is_drawn(shown: Page, tmp_path: Path) -> None:
    """A zone of 192 leaves by 16 spines is drawn in full width, in the colours of its links."""
    fabric = clos(leaves=192, spines=16, nics_per_leaf=1)
    chance = np.random.default_rng(3).poisson(16, 2 * fabric.link_count) / 16
    seen = await look(
        shown,
        page(replace(held(), stories=(story(fabric, chance),))),
        tmp_path,
        PARTS,
        size=(1280, 3000),
    )
    assert seen.console == []
    during = seen.found["svg.cells > rect"][1]
    assert during[2] == 5 * 192
    colours = {one.light for one in BANDS if _share(seen.part(during), one.light) > 0.005}
    assert len(colours) >= 5


@pytest.fixture
def played(tmp_path: Path) -> Path:
    """The folder with the report of a drill that was run."""
    assert run_command_line(["drill", str(DRILL), "--report", str(tmp_path)]) == 0
    return tmp_path


async def test_a_drill_as_it_was_played_can_be_looked_at(shown: Page, played: Path) -> None:
    """The report of a real drill shows the cables of a cut link as dead."""
    text = (played / "link-cut.html").read_text()
    seen = await look(shown, text, played, [*PARTS, "svg.cells .dead"], size=(1280, 4000))
    assert seen.console == []
    assert _share(seen.part(seen.found[".verdict"][0]), LIGHT.good_panel) > 0.5
    assert len(seen.found["svg.cells > rect"]) == 6
    assert len(seen.found["svg.cells .dead"]) == 4
    drawn = [box for box in seen.found["figure svg.wide"] if box[1] + box[3] < len(seen.pixels)]
    assert len(drawn) >= 3
    for box in drawn:
        assert 0.005 < 1 - _share(seen.part(box), LIGHT.page) < 0.5
    index = await look(shown, (played / "index.html").read_text(), played, ["h1"], size=(900, 700))
    assert "The one drill held" in index.dom


async def test_a_picture_is_read_as_it_was_drawn(shown: Page, tmp_path: Path) -> None:
    """The PNG reader of these tests reads a page of one colour correctly."""
    text = "<body style='background:#c00'></body>"
    seen = await look(shown, text, tmp_path, [], size=(64, 48))
    assert seen.pixels.shape == (48, 64, 3)
    assert (seen.pixels == (204, 0, 0)).all()
