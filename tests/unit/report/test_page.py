from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from heddle_emulator.report.evidence import Event, Evidence, Found, HeatMap, Mark, Story
from heddle_emulator.report.folder import Entry, index
from heddle_emulator.report.page import page, verdict
from heddle_emulator.topology.published import published
from tests.support.report_evidences import Reader, held, lost, story, unplayed

EVIL = "<script>alert('x')</script>\"' onload=x &amp; ]]> {{ 7 * 7 }} {% raw %}"
MOST_BYTES = 2_000_000


@pytest.mark.parametrize("evidence", [held(), lost(), unplayed()], ids=lambda one: one.drill)
def test_a_page_is_sound_html_that_needs_nothing_beside_it(evidence: Evidence) -> None:
    """Every tag is closed, ids are unique, links have targets, and nothing is fetched."""
    reader = Reader(page(evidence))
    assert (reader.wrong, reader.open) == ([], [])
    ids = [str(attrs["id"]) for _, attrs in reader.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    for tag, attrs in reader.tags:
        assert "src" not in attrs, tag
        if tag == "a":
            assert str(attrs["href"])[1:] in ids
        for name in attrs:
            assert not name.startswith("on"), name
        if attrs.get("role") == "img":
            assert attrs["aria-label"]


def test_the_verdict_comes_first_and_says_what_it_rests_on() -> None:
    """The page has a word, the claim, and the numbers of what failed."""
    assert verdict(held()).word == "Held"
    assert verdict(held()).sentence == "The one expectation held, over 3 runs."
    told = verdict(lost())
    assert told.word == "Failed"
    assert "Slowest of train was to be median at least 0.97, and was 0.91" in told.sentence
    text = Reader(page(lost())).text
    assert text.index("Failed") < text.index("No flow stays") < text.index("Expected and found")
    assert "run as root" in verdict(unplayed()).sentence


def test_a_page_tells_all_that_is_known() -> None:
    """Every section has the evidence in words as well as in drawings."""
    text = Reader(page(held())).text
    for word in (
        "6.1 ms", "p99 at most 10.0 ms", "l3 flips 9 entries to backups", "l1 → s0", "87.5 %",
        "125 %", "1,600 Gbit/s", "train", "never", "1.20 ms", "41.0 ms",
        "Detection takes 0.4 ms.", "heddle-emulator drill", "drill: remote-link", "4 leaves",
    ):  # fmt: skip
        assert word in text, word


def test_what_is_not_known_has_no_section() -> None:
    """A drill that could not be played leaves no empty tables or drawings."""
    reader = Reader(page(unplayed()))
    assert reader.count("table") == 0
    assert [attrs.get("id") for tag, attrs in reader.tags if tag == "h2"] == []


def test_names_from_users_files_are_only_ever_text() -> None:
    """In tables, drawings, attributes and titles, a user's text stays that text."""
    evil_story = replace(
        held().stories[0],
        title=EVIL,
        variant=EVIL,
        events=(Event(0.1, Mark.FAULT, EVIL, EVIL), Event(0.2, Mark.REPAIR, EVIL)),
        charts=tuple(
            replace(
                chart,
                title=EVIL,
                unit=EVIL,
                note=EVIL,
                lines=tuple(replace(line, name=EVIL) for line in chart.lines),
            )
            for chart in held().stories[0].charts
        ),
        maps=tuple(_evil(one) for one in held().stories[0].maps),
    )
    evil = replace(
        held(),
        drill=EVIL,
        proves=EVIL,
        file=EVIL,
        command=EVIL,
        scenario=EVIL,
        notes=(EVIL,),
        assumptions=(EVIL,),
        expectations=(Found(EVIL, held=False, what=EVIL, wanted=EVIL, got=EVIL),),
        stories=(evil_story,),
    )
    for text in (page(evil), index([Entry("x.html", evil)])):
        reader = Reader(text)
        assert (reader.wrong, reader.open) == ([], [])
        assert reader.count("script") == 1
        assert " ".join(EVIL.split()) in reader.text
        assert all(not name.startswith("on") for _, attrs in reader.tags for name in attrs)


def _evil(one: HeatMap) -> HeatMap:
    return replace(
        one,
        title=EVIL,
        rows=tuple(EVIL + name for name in one.rows),
        columns=tuple(EVIL + name for name in one.columns),
    )


def test_the_largest_fabric_makes_a_page_that_can_be_sent() -> None:
    """A page of 24,576 NICs with every link as full as hashing makes it is below 2 MB.

    Of its 18 maps 4 are open. The first is the one with the cut cable.
    """
    fabric = published("meta-24k")
    chance = np.random.default_rng(5).poisson(16, 2 * fabric.link_count) / 16
    text = page(replace(held(), stories=(story(fabric, chance),)))
    assert len(text.encode()) < MOST_BYTES
    assert text.count("data-cells=") == 3 * 18
    maps = [attrs for tag, attrs in Reader(text).tags if attrs.get("class") == "map"]
    shown = ["open" in attrs for attrs in maps if "width" not in attrs]
    assert (len(shown), sum(shown), shown[0]) == (18, 4, True)


def test_text_is_escaped_once() -> None:
    """An ampersand is not taken for an entity."""
    text = page(replace(held(), proves="A & B"))
    assert "A &amp; B" in text
    assert not re.search(r"&amp;(amp|lt|quot|#)", text)


def test_a_story_with_nothing_in_it_is_passed_over() -> None:
    """A run of which nothing is known has no heading."""
    text = Reader(page(replace(held(), stories=(Story("run 1"),)))).text
    assert "What happened" not in text
    assert "Rates over time" not in text
