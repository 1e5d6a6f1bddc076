"""The streams of the fluid world, each over some arcs at one rate, and their schedule.

A stream is whatever moves in step: the QPs that a flow has on one path, a whole ring of a
collective, whose hops wait for one another, or a sprayed flow. A stream puts a *part* of its rate
on each arc that it uses: 1 if all of it passes, more if a ring crosses an arc several times.

Streams that meet share an arc per QP, as congestion control does. A stream's weight is the number
of its QPs; its level is its rate over its weight.

An activity waits for the activities before it, then for its ``delay`` (computing, starting a
message). Then it sends its streams, and it is complete its ``lag`` after the last of them has left
(what is still on the wire). An activity without streams is computing, or a point where others meet.
Nothing here knows of jobs or collectives, which consist of many activities.

The last functions compute how long the last packet of a message is still on its way after it was
sent. A packet passes every link of its path. Where switches forward a packet only when all of it
has arrived, each of them adds the time of its own length. The slowest link is left out, because the
pace of the whole message already counts it.

Part of that time passes before a message reaches the link that holds it up. Meanwhile messages with
a shorter way have that link for themselves. So a message takes its place there only when its first
packet arrives, and is complete that much sooner after it was sent. If a message has several paths,
the path with the fullest link counts, since it holds the message up longest. All messages that meet
there must count their time alike, or some would use the link before they can have reached it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, ranges, starts
from heddle_controller.model.plan import Paths


def places(first: Ints, rows: Ints) -> Ints:
    """Return the places of all elements of some rows, in the order of ``rows``."""
    return ranges(first[rows], first[rows + 1])


@dataclass(frozen=True, slots=True, eq=False)
class Streams:
    """Streams, one per row; their uses of arcs are in compressed rows."""

    weight: Floats
    """QPs of each stream, above 0, shape (streams,)."""
    limit: Floats
    """Most Gbit/s of each stream; infinite if only arcs limit it."""
    first: Ints
    """Where the uses of each stream begin, shape (streams + 1,)."""
    arcs: Ints
    """Arc of each use."""
    part: Floats
    """Gbit/s on that arc for each Gbit/s of the stream, above 0."""

    def __len__(self) -> int:
        return len(self.weight)

    def owner(self) -> Ints:
        """Return the stream of each use."""
        return np.repeat(np.arange(len(self), dtype=np.int64), np.diff(self.first))

    def uses_of(self, rows: Ints) -> Ints:
        """Return the places of the uses of some streams, in the order of ``rows``."""
        return places(self.first, rows)

    def take(self, rows: Ints) -> Streams:
        """Return some of the streams, in the order of ``rows``."""
        uses = self.uses_of(rows)
        first = starts(np.diff(self.first)[rows])
        return Streams(self.weight[rows], self.limit[rows], first, self.arcs[uses], self.part[uses])

    def loads(self, rate: Floats, arc_count: int) -> Floats:
        """Return Gbit/s of each arc at these rates, shape (arc_count,)."""
        weights = self.part * rate[self.owner()]
        return np.bincount(self.arcs, weights=weights, minlength=arc_count).astype(np.float64)


def join_streams(parts: Sequence[Streams]) -> Streams:
    """Return all streams of several sets, one set after another."""
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
    """Activities, one per row, and their streams."""

    delay: Floats
    """Seconds before each activity sends, shape (activities,)."""
    lag: Floats
    """Seconds after sending until each activity is complete, shape (activities,)."""
    before: Ints
    """With ``after``, a row for each pair of activities of which the second waits for the first."""
    after: Ints
    streams: Streams
    activity: Ints
    """The activity of each stream, shape (streams,)."""
    gbit: Floats
    """What each stream has to send, shape (streams,)."""

    def __len__(self) -> int:
        return len(self.delay)


def join_schedules(parts: Sequence[Schedule]) -> Schedule:
    """Put several schedules side by side; activities are numbered consecutively."""
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
"""Relative tolerance within which two arcs count as equally full."""


def crossed(paths: Paths, parts: Floats) -> Floats:
    """Return the links that packets of each path cross; the mean if they are sprayed."""
    return _summed(paths, parts, np.ones(len(parts)))


def repeated(paths: Paths, parts: Floats, capacity: Floats) -> Floats:
    """Return the seconds that forwarding adds on each path, for each Gbit of a packet.

    ``capacity`` is in Gbit/s of each arc. The slowest link of a path is left out.
    """
    each = 1 / capacity[paths.arcs]
    slowest = np.zeros(len(paths))
    np.maximum.at(slowest, paths.owner(), each)
    found: Floats = np.maximum(_summed(paths, parts, each) - slowest, 0.0)
    return found


def ahead(
    paths: Paths, parts: Floats, loads: Floats, capacity: Floats
) -> tuple[Floats, Floats, Floats]:
    """Return what lies before the fullest link of each path, and how full that link is.

    The three arrays are by path: the number of links before it, the seconds that each Gbit of a
    packet takes on these, and the load of the fullest link. ``loads`` is the load of each arc, in
    any unit. Sprayed packets have no links before it.
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
    """Return the least value among the paths of each flow that hold it up; 0 without paths.

    ``flow`` is the flow of each path, and ``fullest`` says how full its fullest arc is.
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
