"""Any evidence that is consistent gives a page, and the page is valid."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from heddle_emulator.report.evidence import (
    Chart,
    Convergence,
    Dead,
    Event,
    Evidence,
    Found,
    HeatMap,
    Mark,
    Measured,
    Moment,
    Stages,
    Story,
    TimeSeries,
)
from heddle_emulator.report.folder import flaws, parse_evidence, to_json
from heddle_emulator.report.page import page
from tests.support.report_evidences import Reader

WORDS = st.text(max_size=12)
TIMES = st.floats(0, 1e7)
NUMBERS = st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32)


@st.composite
def _lines(draw: st.DrawFn) -> TimeSeries:
    times = sorted(draw(st.lists(TIMES, max_size=8)))
    values = draw(st.lists(NUMBERS, min_size=len(times), max_size=len(times)))
    return TimeSeries(draw(WORDS), tuple(times), tuple(values))


@st.composite
def _maps(draw: st.DrawFn) -> HeatMap:
    rows, columns = (tuple(draw(st.lists(WORDS, max_size=4))) for _ in range(2))
    used = st.none() | st.floats(0, 1e6)
    line = st.lists(used, min_size=len(columns), max_size=len(columns)).map(tuple)
    values = st.lists(line, min_size=len(rows), max_size=len(rows)).map(tuple)
    cell = st.builds(
        Dead, st.integers(0, max(len(rows) - 1, 0)), st.integers(0, max(len(columns) - 1, 0))
    )
    dead = st.lists(cell, max_size=3).map(tuple) if rows and columns else st.just(())
    moment = st.builds(Moment, title=WORDS, at=st.none() | TIMES, values=values, dead=dead)
    moments = tuple(draw(st.lists(moment, max_size=3)))
    return HeatMap(draw(WORDS), "spine", "leaf", rows, columns, moments, draw(st.booleans()))


@st.composite
def _convergences(draw: st.DrawFn) -> Convergence:
    stages = tuple(draw(st.lists(WORDS, max_size=4)))
    length = st.lists(TIMES, min_size=len(stages), max_size=len(stages)).map(tuple)
    runs = st.lists(st.builds(Stages, run=WORDS, seconds=length), max_size=40)
    return Convergence(stages, tuple(draw(runs)))


CHARTS = st.builds(
    Chart,
    title=WORDS,
    unit=st.sampled_from(["share", "Gbit/s", ""]),
    lines=st.lists(_lines(), max_size=12).map(tuple),
    ceiling=NUMBERS,
)
STORIES = st.builds(
    Story,
    title=WORDS,
    seconds=st.none() | TIMES,
    events=st.lists(
        st.builds(Event, at=TIMES, mark=st.sampled_from(Mark), text=WORDS), max_size=9
    ).map(tuple),
    charts=st.lists(CHARTS, max_size=3).map(tuple),
    maps=st.lists(_maps(), max_size=3).map(tuple),
)
MEASURED = st.builds(
    Measured,
    unit=st.sampled_from(["s", "share", "packets"]),
    runs=st.lists(NUMBERS, max_size=9).map(tuple),
    median=NUMBERS,
    p99=NUMBERS,
    min=NUMBERS,
    max=NUMBERS,
)
FOUND = st.builds(Found, value=NUMBERS, found=NUMBERS)
EVIDENCE = st.builds(
    Evidence,
    seconds=TIMES,
    expectations=st.lists(FOUND, max_size=3).map(tuple),
    measured=st.lists(MEASURED, max_size=3).map(tuple),
    stories=st.lists(STORIES, max_size=2).map(tuple),
    convergence=st.none() | _convergences(),
)


@settings(max_examples=60)
@given(EVIDENCE)
def test_evidence_comes_back_from_its_json_and_gives_a_page(evidence: Evidence) -> None:
    """No section fails because values are missing or extreme, or because of names."""
    known = parse_evidence(to_json(evidence), "file")
    assert known == evidence
    assert not list(flaws(known))
    reader = Reader(page(known))
    assert (reader.wrong, reader.open) == ([], [])
    for _, attrs in reader.tags:
        assert not any("nan" in str(attrs.get(key)) for key in ("d", "x", "y", "transform"))
