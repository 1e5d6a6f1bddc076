"""What is to happen, and what waits for what.

An activity waits for those before it, then for its ``delay`` (computing, starting a
message), then sends its streams, and is complete its ``lag`` after the last of them has
left (what is still on the wire). One without streams is computing, or a place where
others meet. Nothing here knows of jobs or collectives: those are many activities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import Floats, Ints
from heddle_emulator.fluid.streams import Streams, join_streams


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Activities, a row each, and their streams."""

    delay: Floats
    """Seconds, shape (activities,)."""
    lag: Floats
    """Seconds, shape (activities,)."""
    before: Ints
    """With ``after``, a row for each pair of activities of which one waits for the other."""
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
