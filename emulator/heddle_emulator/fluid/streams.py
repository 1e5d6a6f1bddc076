"""What flows in the fluid world: streams, each over some arcs at one rate.

A stream is whatever moves in step. The QPs that a flow has on one path are a stream;
so is a whole ring of a collective, whose hops wait for one another, and a sprayed
flow. A stream puts a *part* of its rate on each arc that it uses: 1 where all of it
passes, more where a ring crosses an arc several times.

Streams that meet share per QP, as congestion control does: a stream's weight is the
number of its QPs, its level its rate over its weight.

An activity waits for those before it, then for its ``delay`` (computing, starting a
message), then sends its streams, and is complete its ``lag`` after the last of them has
left (what is still on the wire). One without streams is computing, or a place where
others meet. Nothing here knows of jobs or collectives: those are many activities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, starts


def places(first: Ints, rows: Ints) -> Ints:
    """Places of all elements of some rows, in the order of ``rows``."""
    lengths = first[rows + 1] - first[rows]  # not of all rows: few are asked for, often
    begin = starts(lengths)
    within = np.arange(begin[-1], dtype=np.int64) - np.repeat(begin[:-1], lengths)
    found: Ints = np.repeat(first[rows], lengths) + within
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Streams:
    """Streams, a row each; what they use in compressed rows."""

    weight: Floats
    """QPs of each, above 0, shape (streams,)."""
    limit: Floats
    """Gbit/s that each has at most, infinite where nothing but arcs holds it."""
    first: Ints
    """Where the uses of each begin, shape (streams + 1,)."""
    arcs: Ints
    """Arc of each use."""
    part: Floats
    """Gbit/s on that arc for each Gbit/s of the stream, above 0."""

    def __len__(self) -> int:
        return len(self.weight)

    def owner(self) -> Ints:
        """The stream of each use."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.first))

    def uses_of(self, rows: Ints) -> Ints:
        """Places of the uses of some streams, in the order of ``rows``."""
        return places(self.first, rows)

    def take(self, rows: Ints) -> Streams:
        """Some of the streams, in the order of ``rows``."""
        uses = self.uses_of(rows)
        first = starts(np.diff(self.first)[rows])
        return Streams(self.weight[rows], self.limit[rows], first, self.arcs[uses], self.part[uses])

    def loads(self, rate: Floats, arc_count: int) -> Floats:
        """Gbit/s of each arc at these rates, shape (arc_count,)."""
        weights = self.part * rate[self.owner()]
        return np.bincount(self.arcs, weights=weights, minlength=arc_count).astype(np.float64)


def join_streams(parts: Sequence[Streams]) -> Streams:
    """All streams of several sets, one set after another."""
    empty = np.empty(0)
    lengths = [np.diff(part.first) for part in parts]
    return Streams(
        np.concatenate([empty, *(part.weight for part in parts)]),
        np.concatenate([empty, *(part.limit for part in parts)]),
        starts(np.concatenate([np.empty(0, dtype=np.int64), *lengths])),
        np.concatenate([np.empty(0, dtype=np.int64), *(part.arcs for part in parts)]),
        np.concatenate([empty, *(part.part for part in parts)]),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Activities, a row each, and their streams."""

    delay: Floats
    """Seconds, shape (activities,)."""
    lag: Floats
    """Seconds, shape (activities,)."""
    before: Ints
    """With ``after``, a row for each pair of activities where one waits for the other."""
    after: Ints
    streams: Streams
    activity: Ints
    """Of each stream, shape (streams,)."""
    gbit: Floats
    """What each stream has to send, shape (streams,)."""

    def __len__(self) -> int:
        return len(self.delay)


def join_schedules(parts: Sequence[Schedule]) -> Schedule:
    """Several schedules side by side; their activities are numbered on."""
    offset = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    empty, none = np.empty(0), np.empty(0, dtype=np.int64)

    def moved(name: str) -> Ints:
        columns = [getattr(part, name) + by for part, by in zip(parts, offset, strict=False)]
        return np.concatenate([none, *columns])

    return Schedule(
        np.concatenate([empty, *(part.delay for part in parts)]),
        np.concatenate([empty, *(part.lag for part in parts)]),
        moved("before"),
        moved("after"),
        join_streams([part.streams for part in parts]),
        moved("activity"),
        np.concatenate([empty, *(part.gbit for part in parts)]),
    )
