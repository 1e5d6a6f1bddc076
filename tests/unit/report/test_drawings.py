"""Where things are drawn, and that no event is left out."""

from __future__ import annotations

import base64
import re
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heddle_emulator.report import heat, lines, timeline, words
from heddle_emulator.report.evidence import (
    Chart,
    Convergence,
    Dead,
    Event,
    HeatMap,
    Mark,
    Measured,
    Moment,
    Stages,
    Story,
    TimeSeries,
)
from heddle_emulator.report.heat import BANDS, band
from heddle_emulator.report.timeline import Axis, LogAxis, round_step
from tests.support.report_evidences import EVENTS, held

TIMES = st.floats(0, 100, allow_nan=False)
EVENT = st.builds(Event, at=TIMES, mark=st.sampled_from(Mark), text=st.text(max_size=40))
USED = st.none() | st.floats(0, 3)


@given(st.lists(EVENT, max_size=40))
def test_every_event_is_on_the_timeline(events: list[Event]) -> None:
    """Each event is in the lane of its kind, by itself or counted with others close to it."""
    story = Story("run", seconds=100.0, events=tuple(events))
    track = timeline.overview(story)
    assert (track is None) == (not events)
    if track is None:
        return
    for lane in track.lanes:
        assert sum(dot.count for dot in lane.dots) == sum(e.mark is lane.mark for e in events)
        places = [dot.x for dot in lane.dots]
        assert places == sorted(places)
        assert all(track.left <= x <= track.width for x in places)
    for episode in timeline.reactions(story):
        assert all(dot.x >= episode.left for lane in episode.lanes for dot in lane.dots)


def test_a_reaction_of_milliseconds_is_told_apart() -> None:
    """In its fault's episode, each event has a mark of its own."""
    story = Story("run", seconds=60.0, events=EVENTS)
    (episode,) = timeline.reactions(story)
    assert sum(len(lane.dots) for lane in episode.lanes) == len(EVENTS) - 1
    places = [lane.dots[0].x for lane in episode.lanes]
    assert places == sorted(places)
    assert len({round(x / 20) for x in places}) >= 4
    assert "cable s0 to l1 cut" in episode.title


def test_faults_of_one_moment_are_one_episode() -> None:
    """A second fault before the first was repaired belongs to the same episode."""
    second = Event(0.105, Mark.FAULT, "cable s1 to l1 cut")
    later = [Event(9.0, Mark.FAULT, "again"), Event(9.001, Mark.DETECTED, "seen")]
    story = Story("run", seconds=10.0, events=(*EVENTS, second, *later))
    assert len(timeline.episodes(story)) == 2


@given(st.lists(st.tuples(TIMES, st.none() | st.floats(0, 1e6)), min_size=1, max_size=3000))
def test_extremes_of_a_line_are_drawn_however_many_points_there_are(
    points: list[tuple[float, float | None]],
) -> None:
    """Of many points in one pixel column, the path contains the least and the greatest."""
    points.sort(key=lambda point: point[0])
    times, values = zip(*points, strict=True)
    known = [value for value in values if value is not None]
    chart = Chart("rates", "Gbit/s", (TimeSeries("a", times, values),))
    story = Story("run", charts=(chart,))
    drawn = lines.plots(story, [story])
    assert bool(drawn) == bool(known)
    if not drawn:
        return
    (plot,) = drawn
    ys = [float(y) for y in re.findall(r"(?:V|M[\d.e+-]+ )([\d.e+-]+)", plot.curves[0].path)]
    assert all(plot.top - 1 <= y <= plot.bottom + 1 for y in ys)
    if None not in values:
        up = Axis(min(0.0, *known), max(known) * lines.HEADROOM, plot.bottom, plot.top)
        assert min(ys) == up.at(max(known))
        assert max(ys) == up.at(min(known))


def test_a_dip_of_milliseconds_is_drawn_by_itself() -> None:
    """A dip is a thin line in a run of seconds, and wide around the fault, on the same scale."""
    rates = Chart("rate", "", (TimeSeries("a", (0.0, 0.1, 0.12, 10.0), (8.0, 2.0, 7.0, 7.0)),))
    story = Story("run", seconds=10.0, events=EVENTS, charts=(rates,))
    whole, closer = lines.plots(story, [story])
    assert closer.title == "rate, around the first fault"
    assert closer.y_ticks == whole.y_ticks
    widths = [_width(plot.curves[0].path) for plot in (whole, closer)]
    assert widths[0] < 3
    assert widths[1] > 50
    assert closer.curves[0].least == "2"
    still = replace(rates, lines=(TimeSeries("a", (0.0, 10.0), (8.0, 8.0)),))
    assert len(lines.plots(replace(story, charts=(still,)), [story])) == 1


def _width(path: str) -> float:
    """Return the pixels from the first step of a path to the second."""
    first, second, *_ = (float(x) for x in re.findall(r"H([\d.]+)", path))
    return second - first


def test_charts_of_one_title_have_one_scale() -> None:
    """With one scale, variants can be compared by eye."""
    small = Story("a", charts=(Chart("rate", "", (TimeSeries("x", (0, 1), (10, 10)),)),))
    large = Story("b", charts=(Chart("rate", "", (TimeSeries("x", (0, 1), (40, 40)),)),))
    (first,), (second,) = (lines.plots(one, [small, large]) for one in (small, large))
    assert first.y_ticks == second.y_ticks


@given(
    st.integers(1, 12).flatmap(
        lambda width: st.lists(
            st.lists(USED, min_size=width, max_size=width), min_size=1, max_size=9
        )
    ),
    st.data(),
)
def test_every_cell_of_a_map_is_drawn_once_in_its_band(
    values: list[list[float | None]], data: st.DataObject
) -> None:
    """Strokes and bytes draw exactly the given values."""
    cells = [(r, c) for r, line in enumerate(values) for c, v in enumerate(line) if v is not None]
    dead = set(data.draw(st.lists(st.sampled_from(cells), max_size=3))) if cells else set()
    moment = Moment("now", 0.0, tuple(map(tuple, values)), tuple(Dead(*one) for one in dead))
    names = tuple(f"r{n}" for n in range(len(values))), tuple(f"c{n}" for n in range(12))
    one = HeatMap("m", "spine", "leaf", names[0], names[1][: len(values[0])], (moment,))
    (drawn,) = heat.heats(Story("run", maps=(one,)))
    (panel,) = drawn.panels
    assert _painted(panel.strokes) == {
        (r, c): band(values[r][c] or 0.0) for r, c in cells if (r, c) not in dead
    }
    told = np.frombuffer(base64.b64decode(panel.data), dtype=np.uint8).reshape(len(values), -1)
    for (row, column), byte in np.ndenumerate(told):
        value = values[row][column]
        if value is None:
            assert byte == heat.NO_CABLE
        elif (row, column) in dead:
            assert byte == heat.DEAD
        else:
            assert abs(byte * heat.STEP - value) < 0.51 * heat.STEP or value > 2.5
    assert panel.dead == len(dead)


def _painted(strokes: tuple[tuple[int, str], ...]) -> dict[tuple[int, int], int]:
    found: dict[tuple[int, int], int] = {}
    for which, path in strokes:
        x = y = 0
        for letter, numbers in re.findall(r"([Mmh])([\d. -]+)", path):
            told = [float(number) for number in numbers.split()]
            if letter == "M":
                x, y = int(told[0]), int(told[1])
            elif letter == "m":
                x += int(told[0])
            else:
                for column in range(x, x + int(told[0])):
                    assert (y, column) not in found
                    found[y, column] = which
                x += int(told[0])
    return found


def test_the_fullest_cable_is_named_by_its_ends_in_its_direction() -> None:
    """The table beside every map names the fullest cable."""
    (story,) = held().stories
    up, down = heat.heats(story)
    assert up.panels[1].worst_cable.startswith("l")
    assert down.panels[1].worst_cable.startswith("s")
    assert up.panels[1].over == 31
    assert up.panels[1].dead == 1
    assert (up.told, BANDS[up.panels[1].fullest[0].band].label) == (True, "100 to 125 %")


def test_stages_are_as_long_as_they_took() -> None:
    """Runs are sorted, the slowest first. Each stage begins where the one before ended."""
    quick, slow = Stages("run 1", (0.01, 0.02)), Stages("run 2", (0.05, 0.15))
    drawn = lines.bars(Convergence(("detect", "program"), (quick, slow)))
    assert drawn is not None
    first, second = drawn.bars
    assert (first.label, first.total) == ("run 2", "200 ms")
    assert abs(first.pieces[1].width - 3 * first.pieces[0].width) < 0.3
    assert abs(second.end - drawn.left - 0.15 * (first.end - drawn.left)) < 0.3
    assert [row.stage for row in drawn.rows] == ["detect", "program", "in all"]
    assert lines.bars(Convergence(("detect",), ())) is None


def test_a_strip_has_a_mark_for_each_value() -> None:
    """A run without a value has no mark, and equal runs share one."""
    three = Measured("lost", "", "packets", "", "", (1.0, 2.0, None, 3.0))
    assert lines.strip(three) == (4.0, 75.0, 146.0)
    assert len(lines.strip(replace(three, runs=(5.0, 5.0)))) == 1
    assert lines.strip(replace(three, runs=(None,))) == ()


@given(st.floats(1e-9, 1e12))
def test_ticks_are_round_and_few(high: float) -> None:
    """Steps are 1, 2 or 5 times a power of ten, and there are at most 6 ticks."""
    step = round_step(high / 5)
    digits = f"{step:.0e}"[0]
    assert digits in "125"
    assert 1 <= len(Axis(0, high, 0, 100).ticks(5, str)) <= 6


def test_decades_are_as_long_as_each_other() -> None:
    """Values at or below the start of the axis are at its beginning."""
    axis = LogAxis(1e-3, 1.0, 0, 300)
    assert [axis.at(value) for value in (0, 1e-3, 1e-2, 1e-1, 1.0)] == [0, 0, 100, 200, 300]
    assert [tick.place for tick in axis.ticks(words.tick)] == [0, 100, 200, 300]


def test_numbers_are_written_as_people_write_them() -> None:
    """The unit suits the size, and there are no useless digits."""
    told = [words.seconds(value) for value in (0, 4.2e-5, 0.00123, 0.0456, 1.5, 200, None)]
    assert told == ["0", "42 µs", "1.23 ms", "45.6 ms", "1.50 s", "3 min 20 s", "never"]
    assert [words.percent(value) for value in (1.0, 0.875, None)] == ["100 %", "87.5 %", "–"]
    assert words.tick(0.5) == "500 ms"
    assert words.tick(1.0) == "1 s"
    assert words.quantity(12345.0, "packets") == "12,345"
    assert words.listed(["a", "b", "c"]) == "a, b and c"
