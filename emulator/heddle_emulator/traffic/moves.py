"""What a collective moves between ranks, and in which order.

Moves belong to activities. The moves of one activity go in step, as the hops of a pipelined ring
do: chunk follows chunk, and the slowest hop sets the pace of all. The activities of a collective
are independent, unless one is listed as waiting for another.

Sizes are those of nccl-tests: the whole buffer of an all-reduce or a broadcast, what all ranks of a
group hold after an all-gather, what one rank puts into a reduce-scatter or an all-to-all. Bytes
between GPUs of one host, over NVLink, are moves too. Whether NVLink is a bottleneck is decided when
moves are played.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints, ranges
from heddle_controller.traffic.patterns import channels


def _nothing() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """Moves, one per row, and their activities."""

    steps: Ints
    """Messages that follow one another in each activity, shape (activities,)."""
    activity: Ints
    """The activity of each move."""
    source: Ints
    """Rank."""
    destination: Ints
    """Rank."""
    bytes: Floats
    before: Ints
    """With ``after``, pairs of activities of which the second waits for the first."""
    after: Ints
    times: float = 1.0
    """How often all of it is repeated in sequence."""
    brings: Ints = field(default_factory=_nothing)
    """With ``goes``, pairs of moves of one activity: the second forwards what the first brought.

    On trees and chains this happens piece by piece, on rings in the next step.
    """
    goes: Ints = field(default_factory=_nothing)

    def __len__(self) -> int:
        return len(self.steps)

    def repeated(self, times: float) -> Moves:
        """Return so many repetitions in sequence, taken as one longer collective."""
        steps = np.ceil(self.steps * times).astype(np.int64)
        return Moves(
            steps,
            self.activity,
            self.source,
            self.destination,
            self.bytes * times,
            self.before,
            self.after,
            self.times * times,
            self.brings,
            self.goes,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Ranks:
    """The host of each rank, and the rail of its NIC."""

    hosts: Ints
    """Host of each rank, numbered from 0, ascending."""
    rail: Ints | None = None
    """Rail of each rank's NIC, to send with PXN; None: each rank sends from its own NIC."""

    def host(self, rank: Ints) -> Ints:
        """Return the host of each rank."""
        return self.hosts[rank]


def join_moves(parts: Sequence[Moves]) -> Moves:
    """Return all moves of several sets; activities are numbered consecutively."""
    activities = np.cumsum([0, *(len(part) for part in parts)]).tolist()
    rows = np.cumsum([0, *(len(part.activity) for part in parts)]).tolist()
    none = np.empty(0, dtype=np.int64)

    def ints(name: str) -> Ints:
        return np.concatenate([none, *(getattr(part, name) for part in parts)])

    def moved(name: str, offset: list[int]) -> Ints:
        columns = [getattr(part, name) + by for part, by in zip(parts, offset, strict=False)]
        return np.concatenate([none, *columns])

    return Moves(
        ints("steps"),
        moved("activity", activities),
        ints("source"),
        ints("destination"),
        np.concatenate([np.empty(0), *(part.bytes for part in parts)]),
        moved("before", activities),
        moved("after", activities),
        brings=moved("brings", rows),
        goes=moved("goes", rows),
    )


def alone(source: Ints, destination: Ints, size: Floats) -> Moves:
    """Make each move an activity of its own, of one message, that waits for nothing."""
    count, none = len(source), np.empty(0, dtype=np.int64)
    own = np.arange(count, dtype=np.int64)
    return Moves(np.ones(count, dtype=np.int64), own, source, destination, size, none, none)


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """The channels of groups: rows with one rank per host, in host order, all of one length."""

    ranks: Ints
    """Shape (lines, hosts)."""
    share: Floats
    """The part of its group's data that each line carries."""
    within: tuple[Ints, Ints, Ints]
    """Where lines pass through hosts: the line, and the ranks at both ends of each NVLink hop."""


def lines_of(groups: Ints, ranks: Ranks) -> list[Lines]:
    """Return the channels on which groups on several hosts run their rings and trees."""
    row_of = np.full(int(groups.max(initial=-1)) + 1, -1, dtype=np.int64)
    row_of[groups] = np.arange(len(groups))[:, None]
    row, near, far = _inside(groups, ranks)
    found = []
    for lines in channels(groups, ranks.hosts):
        group = row_of[lines[:, 0]]
        count = np.bincount(group, minlength=len(groups))[group]
        line, hop = _matched(group, row)
        found.append(Lines(lines, 1.0 / count, (line, near[hop], far[hop])))
    return found


def _inside(groups: Ints, ranks: Ranks) -> tuple[Ints, Ints, Ints]:
    """Return the group, ascending, and both ranks of all neighbours in a group on one host."""
    source, destination = groups[:, :-1], groups[:, 1:]
    same: Bools = ranks.host(source) == ranks.host(destination)
    row, _ = np.nonzero(same)
    return row.astype(np.int64), source[same], destination[same]


def _matched(one: Ints, other: Ints) -> tuple[Ints, Ints]:
    """Return the places of all pairs of equal values; ``other`` ascends."""
    first, last = np.searchsorted(other, one), np.searchsorted(other, one, side="right")
    return np.repeat(np.arange(len(one), dtype=np.int64), last - first), ranges(first, last)
