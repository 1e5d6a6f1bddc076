"""What happened when, drawn as lanes: one for each kind of event.

A drill's timeline must show two things: the order of faults in a run of seconds or hours, and a
reaction that takes milliseconds. No single axis shows both. So there is one linear axis for the
whole run, and a logarithmic one for each episode, which begins at its first fault. An episode lasts
from a fault until all that it caused is over.

The module also has the axes for all drawings: the place of a value, and the values to label.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from heddle_emulator.report import words
from heddle_emulator.report.evidence import Event, Mark, Story

_STEPS = (1.0, 2.0, 5.0, 10.0)
PIXEL_DIGITS = 1


@dataclass(frozen=True, slots=True)
class Tick:
    """A value on an axis: its place in pixels, and its text."""

    place: float
    text: str


@dataclass(frozen=True, slots=True)
class Axis:
    """A linear axis from one value to another, in pixels."""

    low: float
    high: float
    begin: float
    """Pixel of ``low``; may be greater than that of ``high``, since y grows downwards."""
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value."""
        share = (value - self.low) / (self.high - self.low) if self.high > self.low else 0.0
        return round(self.begin + share * (self.end - self.begin), PIXEL_DIGITS)

    def ticks(self, count: int, text: Callable[[float], str]) -> tuple[Tick, ...]:
        """Return about ``count`` round values."""
        step = round_step((self.high - self.low) / max(count, 1))
        first, last = math.ceil(self.low / step - 1e-9), math.floor(self.high / step + 1e-9)
        values = (place * step for place in range(first, last + 1))
        return tuple(Tick(self.at(value), text(value)) for value in values)


@dataclass(frozen=True, slots=True)
class LogAxis:
    """A logarithmic axis for times after an event; immediate reactions are at its beginning."""

    low: float
    """The first decade, above 0."""
    high: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        """Return the pixel of a value; values up to ``low`` are at the beginning."""
        if value <= self.low:
            return self.begin
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.begin + min(share, 1.0) * (self.end - self.begin), PIXEL_DIGITS)

    def ticks(self, text: Callable[[float], str]) -> tuple[Tick, ...]:
        """Return the decades."""
        first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high))
        return tuple(Tick(self.at(10.0**n), text(10.0**n)) for n in range(first, last + 1))


def round_step(least: float) -> float:
    """Return the first of 1, 2, 5, 10, ... (in any decade) that is at least ``least``.

    The result is 1 if ``least`` is not above 0 or not finite.
    """
    if least <= 0 or not math.isfinite(least):
        return 1.0
    power = 10.0 ** math.floor(math.log10(least))
    return next(step * power for step in _STEPS if step * power >= least * (1 - 1e-9))


_WIDTH, _LEFT, _RIGHT = 1000.0, 92.0, 20.0
_TOP, LANE, _BOTTOM = 8.0, 30.0, 26.0
_NEAR = 11.0
"""Marks of one lane that are this close, in pixels, are drawn as one."""
LETTER = 6.4
"""Average pixels of a letter in a label."""
_SHORTEST = 7
"""A label with fewer letters is left out, as it says nothing."""
EPISODE_SECONDS = 1.0
"""A fault that comes this soon after the first belongs to the same episode."""
MOST_EPISODES = 4
NAMED = 60
"""Most letters of a fault's text in a title."""
TRIGGERS = frozenset({Mark.FAULT, Mark.MEND})
WORDS = {
    Mark.FAULT: "fault",
    Mark.DETECTED: "detected",
    Mark.NOTICE: "notice",
    Mark.REPAIR: "local repair",
    Mark.RECOVERED: "recovered",
    Mark.PLAN: "new plan",
    Mark.ACK: "in all FIBs",
    Mark.MEND: "mended",
    Mark.OTHER: "other",
}


@dataclass(frozen=True, slots=True)
class Dot:
    """A mark, or several that are too close to be distinguished."""

    x: float
    count: int
    label: str
    """Empty if there is no room."""
    anchor: str
    """"start": the label is to the right; "end": it is to the left."""
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """All marks of one kind."""

    mark: Mark
    word: str
    y: float
    dots: tuple[Dot, ...]


@dataclass(frozen=True, slots=True)
class Track:
    """A drawing of lanes over one axis."""

    title: str
    about: str
    """The drawing in words, for readers who cannot see it."""
    lanes: tuple[Lane, ...]
    ticks: tuple[Tick, ...]
    height: float
    width: float = _WIDTH
    left: float = _LEFT
    top: float = _TOP


Place = Callable[[Event], float]


def overview(story: Story) -> Track | None:
    """Return the drawing of the whole run; None if nothing happened in it."""
    if not story.events:
        return None
    latest = max(event.at for event in story.events)
    end = max(story.seconds or 0.0, latest, 1e-6)
    axis = Axis(min(0.0, *(event.at for event in story.events), 0.0), end, _LEFT, _WIDTH - _RIGHT)
    title = f"The whole run, {words.seconds(end)} of {story.clock} time"
    return _track(title, story.events, lambda event: axis.at(event.at), axis.ticks(8, words.tick))


def episodes(story: Story) -> tuple[tuple[Event, ...], ...]:
    """Return the events of each episode; the first is the fault or mend that caused the rest."""
    return tuple(tuple(one) for one in _episodes(story.events) if _is_told(one))


def reactions(story: Story) -> tuple[Track, ...]:
    """Return the drawings of the first few episodes, each on a logarithmic axis."""
    found = episodes(story)[:MOST_EPISODES]
    return tuple(_zoomed(number, one) for number, one in enumerate(found, 1))


def _is_told(events: Sequence[Event]) -> bool:
    return any(event.mark not in TRIGGERS and event.at > events[0].at for event in events)


def _episodes(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Yield events from a fault or a mend until the next one that is unrelated."""
    under_way: list[Event] = []
    for event in sorted(events, key=lambda event: event.at):
        if event.mark in TRIGGERS and under_way and _is_over(under_way, event):
            yield under_way
            under_way = []
        if under_way or event.mark in TRIGGERS:
            under_way.append(event)
    if under_way:
        yield under_way


def _is_over(events: Sequence[Event], following: Event) -> bool:
    """Return whether the following fault or mend begins another episode.

    It does if it is of the other kind, or comes late enough.
    """
    return following.mark is not events[0].mark or following.at - events[0].at > EPISODE_SECONDS


def _zoomed(number: int, events: Sequence[Event]) -> Track:
    first = events[0].at
    after = [event.at - first for event in events if event.at > first]
    low = 10.0 ** max(-6, min(-3, _decade(0.8 * min(after))))
    axis = LogAxis(low, max(max(after) * 1.3, low * 10), _LEFT, _WIDTH - _RIGHT)
    start = Tick(_LEFT, "0")
    ticks = (start, *(tick for tick in axis.ticks(words.tick) if tick.place > _LEFT + 30))
    what = events[0].text if len(events[0].text) <= NAMED else f"{events[0].text[:NAMED]}…"
    title = f"Episode {number}: after “{what}” at {words.seconds(first)}, by decades of time"
    return _track(title, events, lambda event: axis.at(event.at - first), ticks)


def _decade(value: float) -> int:
    return math.floor(math.log10(value))


def _track(title: str, events: Sequence[Event], place: Place, ticks: tuple[Tick, ...]) -> Track:
    present = [mark for mark in Mark if any(event.mark is mark for event in events)]
    lanes = tuple(
        Lane(mark, WORDS[mark], _TOP + LANE * (row + 0.5), _dots(events, mark, place))
        for row, mark in enumerate(present)
    )
    ordered = sorted(events, key=lambda event: event.at)
    told = "; ".join(f"{words.seconds(event.at)} {event.text}" for event in ordered[:12])
    more = f"; and {len(ordered) - 12} more" if len(ordered) > 12 else ""  # noqa: PLR2004
    return Track(title, f"{told}{more}", lanes, ticks, _TOP + LANE * len(lanes) + _BOTTOM)


def _dots(events: Sequence[Event], mark: Mark, place: Place) -> tuple[Dot, ...]:
    groups: list[tuple[float, list[Event]]] = []
    for event in sorted((one for one in events if one.mark is mark), key=place):
        x = place(event)
        if groups and x - groups[-1][0] < _NEAR:
            groups[-1][1].append(event)
        else:
            groups.append((x, [event]))
    edges = [*(x for x, _ in groups[1:]), _WIDTH]
    before = _LEFT
    found = list[Dot]()
    for (x, same), edge in zip(groups, edges, strict=True):
        label, anchor = _label(same, edge - x, x - before)
        found.append(Dot(x, len(same), label, anchor, _title(same)))
        before = x + (len(label) * LETTER if anchor == "start" else 0) + _NEAR
    return tuple(found)


def _label(same: Sequence[Event], right: float, left: float) -> tuple[str, str]:
    """Return text and side of a label; it is shortened on the side with more room if need be."""
    text = same[0].text if len(same) == 1 else f"{len(same)} × {same[0].text}"
    need = len(text) * LETTER + 2 * _NEAR
    if need <= right:
        return text, "start"
    if need <= left:
        return text, "end"
    room, anchor = max((right, "start"), (left, "end"))
    letters = int((room - 2 * _NEAR) / LETTER)
    return (f"{text[: letters - 1]}…" if letters >= _SHORTEST else ""), anchor


def _title(same: Sequence[Event]) -> str:
    shown = [f"{words.seconds(event.at)}: {event.text}" for event in same[:10]]
    return "\n".join([*shown, f"and {len(same) - 10} more"] if len(same) > 10 else shown)  # noqa: PLR2004
