"""Small fluid simulations drawn by hypothesis, and slow reference versions of their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from hypothesis import strategies as st

from heddle_controller.model.arrays import Floats
from heddle_emulator.fluid.streams import Schedule, Streams

ARCS = 5


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream as plain values."""

    weight: float
    limit: float
    uses: tuple[tuple[int, float], ...]
    """Arcs, each with the part of the stream's rate that it carries."""


@st.composite
def streams(draw: st.DrawFn, most: int = 7) -> list[Stream]:
    """Draw up to ``most`` streams, each over up to three of the arcs, some with a limit."""
    use = st.tuples(st.integers(0, ARCS - 1), st.sampled_from([0.25, 0.5, 1.0, 2.0]))
    uses = st.lists(use, min_size=1, max_size=3, unique_by=lambda pair: pair[0])
    stream = st.builds(
        Stream,
        st.integers(1, 3).map(float),
        st.one_of(st.just(inf), st.integers(1, 40).map(float)),
        uses.map(tuple),
    )
    return draw(st.lists(stream, min_size=1, max_size=most))


def capacities() -> st.SearchStrategy[Floats]:
    """Capacities of the arcs, shape (ARCS,). Some may be 0."""
    return st.lists(st.integers(0, 40), min_size=ARCS, max_size=ARCS).map(
        lambda c: np.array(c, float)
    )


def packed(told: Sequence[Stream]) -> Streams:
    """The same streams as arrays."""
    lengths = [len(stream.uses) for stream in told]
    uses = [use for stream in told for use in stream.uses]
    return Streams(
        np.array([stream.weight for stream in told]),
        np.array([stream.limit for stream in told]),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        np.array([arc for arc, _ in uses], dtype=np.int64),
        np.array([part for _, part in uses]),
    )


def slow_rates(capacity: Sequence[float], told: Sequence[Stream], active: set[int]) -> list[float]:
    """Fill by the textbook: all levels rise together until a limit or a full arc stops some."""
    rate = [0.0] * len(told)
    rising = set(active)
    while rising:
        levels = [told[row].limit / told[row].weight for row in rising]
        room, slope = _room(capacity, told, rate, active, rising)
        levels += [room[arc] / slope[arc] for arc in range(ARCS) if slope[arc] > 0]
        level = max(min(levels), 0.0)
        full = {
            arc for arc in range(ARCS) if slope[arc] > 0 and room[arc] <= slope[arc] * level + 1e-12
        }
        stopped = {
            row
            for row in rising
            if told[row].limit / told[row].weight <= level * (1 + 1e-12)
            or any(arc in full for arc, _ in told[row].uses)
        }
        for row in stopped:
            rate[row] = level * told[row].weight
        rising -= stopped
    return rate


def _room(
    capacity: Sequence[float],
    told: Sequence[Stream],
    rate: Sequence[float],
    active: set[int],
    rising: set[int],
) -> tuple[list[float], list[float]]:
    room, slope = list(capacity), [0.0] * ARCS
    for row in active:
        for arc, part in told[row].uses:
            if row in rising:
                slope[arc] += part * told[row].weight
            else:
                room[arc] -= part * rate[row]
    return room, slope


@dataclass(frozen=True, slots=True)
class Story:
    """A schedule as plain lists. An activity waits only for activities with lower numbers."""

    streams: list[Stream]
    gbit: list[float]
    activity: list[int]
    delay: list[float]
    lag: list[float]
    waits: list[set[int]]

    def packed(self) -> Schedule:
        """The same schedule as arrays."""
        pairs = [(b, a) for a, before in enumerate(self.waits) for b in sorted(before)]
        columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return Schedule(
            np.array(self.delay),
            np.array(self.lag),
            columns[:, 0],
            columns[:, 1],
            packed(self.streams),
            np.array(self.activity, dtype=np.int64),
            np.array(self.gbit),
        )


@st.composite
def stories(draw: st.DrawFn) -> Story:
    """Draw up to six activities that wait for earlier ones; some of them have no streams."""
    count = draw(st.integers(1, 6))
    told = draw(streams())
    seconds = st.lists(st.sampled_from([0.0, 0.0, 0.5, 2.0]), min_size=count, max_size=count)
    return Story(
        told,
        [float(draw(st.integers(0, 30))) for _ in told],
        [draw(st.integers(0, count - 1)) for _ in told],
        draw(seconds),
        draw(seconds),
        [
            draw(st.sets(st.integers(0, row - 1), max_size=2)) if row else set()
            for row in range(count)
        ],
    )


def slow_ends(capacity: Sequence[float], story: Story) -> list[float]:
    """The time when each activity ends, found event by event; infinite if it never does."""
    count = len(story.delay)
    begin, sent, end = ([inf] * count for _ in range(3))
    left, now = list(story.gbit), 0.0
    while True:
        for row in range(count):  # in ascending order, so that successors begin at once
            if begin[row] == inf and all(end[b] <= now for b in story.waits[row]):
                begin[row] = (
                    max([now, *(end[b] for b in story.waits[row])][1:] or [0.0]) + story.delay[row]
                )
            own = [s for s, a in enumerate(story.activity) if a == row]
            if begin[row] <= now and sent[row] == inf and all(left[s] <= 1e-9 for s in own):
                sent[row] = now
                end[row] = now + story.lag[row]
        active = {s for s, a in enumerate(story.activity) if begin[a] <= now and left[s] > 1e-9}
        rate = slow_rates(capacity, story.streams, active)
        times = [now + left[s] / rate[s] for s in active if rate[s] > 0]
        times += [time for time in [*begin, *end] if now < time < inf]
        if not times:
            return [time if time <= now else inf for time in end]
        for s in active:
            left[s] -= rate[s] * (min(times) - now)
        now = min(times)
