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

How long the last packet of a message is still on its way when it has been sent.

A packet passes every link of its path. Where switches send on only what is there whole, it takes
its own length again on each of them; the slowest of them is left out, as the pace of the whole
message is counted there.

Some of that goes by before a message comes to the link that holds it up. Meanwhile those who have
less far to go have that link for themselves, so a message takes its place there as late as its
first packet does, and is complete that much sooner after it has been sent. Of a message's paths
the one counts that holds it up longest, by its fullest link: all that meet there have to reckon
their time alike, or some would use the link before they can have come to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, starts
from heddle_controller.model.plan import Paths


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


EQUAL = 1e-9
"""Relative; arcs that are as full as each other."""


def crossed(paths: Paths, parts: Floats) -> Floats:
    """Links that packets of each path cross; where they are sprayed, the mean."""
    return _summed(paths, parts, np.ones(len(parts)))


def repeated(paths: Paths, parts: Floats, capacity: Floats) -> Floats:
    """Seconds that each Gbit of a packet takes again on each path; ``capacity`` is of arcs."""
    each = 1 / capacity[paths.arcs]
    slowest = np.zeros(len(paths))
    np.maximum.at(slowest, paths.owner(), each)
    found: Floats = np.maximum(_summed(paths, parts, each) - slowest, 0.0)
    return found


def ahead(
    paths: Paths, parts: Floats, loads: Floats, capacity: Floats
) -> tuple[Floats, Floats, Floats]:
    """Links before the fullest of each path, and seconds that each Gbit of a packet takes there.

    Third, how full that one is. ``loads`` says so of each arc, in any unit. Sprayed packets have
    no links before.
    """
    owner, load = paths.owner(), loads[paths.arcs]
    fullest = np.zeros(len(paths))
    np.maximum.at(fullest, owner, load)
    place = np.arange(len(owner))
    first = np.full(len(paths), len(owner))
    full = load >= fullest[owner] * (1 - EQUAL)
    np.minimum.at(first, owner[full], place[full])
    sprayed = np.bincount(owner, weights=parts != 1, minlength=len(paths)) > 0
    before = (place < first[owner]) & ~sprayed[owner]
    links = np.bincount(owner, weights=before, minlength=len(paths)).astype(np.float64)
    each = np.where(before, 1 / capacity[paths.arcs], 0.0)
    seconds = np.bincount(owner, weights=each, minlength=len(paths)).astype(np.float64)
    return links, seconds, fullest


def where_held_up(of_path: Floats, fullest: Floats, flow: Ints, flows: int) -> Floats:
    """The least of those paths of each flow that hold it up; 0 for flows without any.

    Of each path ``flow`` says whose it is, and ``fullest`` how full its fullest arc is.
    """
    most = np.zeros(flows)
    np.maximum.at(most, flow, fullest)
    held = np.flatnonzero(fullest >= most[flow] * (1 - EQUAL))
    least = np.full(flows, np.inf)
    np.minimum.at(least, flow[held], of_path[held])
    return np.where(np.isfinite(least), least, 0.0)


def _summed(paths: Paths, parts: Floats, each: Floats) -> Floats:
    total = np.bincount(paths.owner(), weights=each * parts, minlength=len(paths))
    return total.astype(np.float64)
