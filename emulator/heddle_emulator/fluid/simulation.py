"""Virtual time: jump from one event to the next, with fair rates in between.

An event is the end of a stream, the end of an activity's delay or lag, or whatever the caller does
between two calls of ``advance``: change an arc's capacity, or move streams to other paths. Rates do
not change between events, so time can jump. The remaining amount of a stream is computed only when
its rate changes, and rates are computed only near an event (``shares``).

If no two streams end at the same moment, each end is an event of its own, and 50,000 of them take a
while. ``coarse`` lets streams end together that are due within that fraction of the time so far, at
the moment of the latest, so that no amount is sent early.

``Timeline`` records how full arcs are over time, as mean load in steps of equal length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, starts
from heddle_emulator.fluid.shares import Shares
from heddle_emulator.fluid.streams import Schedule, Streams, places


class Timeline:
    """Records how long each load lasted, as Gbit by step and arc."""

    def __init__(self, step_seconds: float) -> None:
        if not step_seconds > 0:
            raise ValueError(f"a step of {step_seconds:g} s; give more than 0")
        self.step_seconds = step_seconds
        self._gbit: list[Floats] = []
        self._end = 0.0

    def stood(self, begin: float, end: float, load: Floats) -> None:
        """Record that from ``begin`` to ``end``, in seconds, arcs had this load in Gbit/s."""
        step = int(begin / self.step_seconds)
        while begin < end:
            until = min((step + 1) * self.step_seconds, end)
            while len(self._gbit) <= step:
                self._gbit.append(np.zeros(len(load)))
            if until > begin:
                self._gbit[step] += load * (until - begin)
            begin, step = max(begin, until), step + 1
        self._end = max(self._end, end)

    @property
    def begins(self) -> Floats:
        """When each step begins, in seconds, shape (steps,)."""
        return np.arange(len(self._gbit), dtype=np.float64) * self.step_seconds

    def loads(self) -> Floats:
        """Return mean Gbit/s in each step, shape (steps, arcs); the last step ends with the run."""
        if not self._gbit:
            return np.zeros((0, 0))
        length = np.minimum(self.begins + self.step_seconds, self._end) - self.begins
        return np.stack(self._gbit) / np.maximum(length, np.finfo(float).tiny)[:, None]


_SAME = 1e-9
"""Fraction of the time so far; ends this close together are one event."""
_TOLD_EVENTS = 16
"""Events from one report of progress to the next."""
FASTEST = 1e300
"""Gbit/s of a stream that nothing limits."""
NO_MARKS: Ints = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleResult:
    """The outcome of a schedule; infinite means "never"."""

    ready: Floats
    """When all that each activity waited for was complete, in seconds, shape (activities,)."""
    begin: Floats
    """When each activity began to send."""
    end: Floats
    """When each activity was complete."""
    events: int

    def of(self, count: int) -> ScheduleResult:
        """Return the outcome of the first ``count`` activities."""
        return ScheduleResult(self.ready[:count], self.begin[:count], self.end[:count], self.events)

    @property
    def makespan(self) -> float:
        """Seconds until all is complete; infinite if an activity never is."""
        return float(self.end.max(initial=0.0))

    @property
    def stuck(self) -> Ints:
        """Activities that were ready but never complete."""
        return np.flatnonzero(np.isfinite(self.ready) & ~np.isfinite(self.end))


class FluidSimulation:
    """Plays a schedule."""

    def __init__(
        self,
        capacity: Floats,
        schedule: Schedule,
        *,
        coarse: float = 0.0,
        timeline: Timeline | None = None,
        tell: Callable[[float], None] | None = None,
    ) -> None:
        """Begin at time 0.

        Args:
            capacity: Gbit/s of each arc.
            schedule: What is sent.
            coarse: See above.
            timeline: Takes the loads.
            tell: Is called now and then with the part of the activities that is complete, 0 to 1.
        """
        self.now = 0.0
        self.shares = Shares(capacity, schedule.streams)
        self._schedule, self._timeline, self._tell = schedule, timeline, tell
        self._coarse = max(coarse, _SAME)
        self._events = 0
        count = len(schedule)
        self._ready, self._begin, self._end = (np.full(count, np.inf) for _ in range(3))
        self._timer = np.full(count, np.inf)
        self._pending = np.bincount(schedule.after, minlength=count)
        self._open = np.bincount(schedule.activity, minlength=count)
        order = np.argsort(schedule.before, kind="stable")
        self._next = schedule.after[order]
        self._first_next = starts(np.bincount(schedule.before, minlength=count))
        order = np.argsort(schedule.activity, kind="stable")
        self._own = order.astype(np.int64)
        self._first_own = starts(self._open)
        self._left = schedule.gbit.copy()
        self._rate, self._since = np.zeros(len(schedule.streams)), np.zeros(len(schedule.streams))
        self._due = np.full(len(schedule.streams), np.inf)
        self._release(np.flatnonzero(self._pending == 0))

    def run(self) -> ScheduleResult:
        """Play to the end, or until nothing can make progress."""
        self.advance(np.inf)
        return self.told()

    def told(self) -> ScheduleResult:
        """Return the outcome so far."""
        return ScheduleResult(
            self._ready.copy(), self._begin.copy(), self._end.copy(), self._events
        )

    @property
    def done(self) -> bool:
        """Whether everything is complete."""
        return bool(np.isfinite(self._end).all())

    def advance(self, until: float, marks: Ints = NO_MARKS) -> None:
        """Play up to a point in time, in seconds, or to the end if that comes first.

        If any of the activities ``marks`` is complete before, play up to then.
        """
        while (event := self._next_event()) <= until and np.isfinite(event):
            self._pass(event)
            self._events += 1
            self._happen()
            if self._tell is not None and self._events % _TOLD_EVENTS == 0:
                self._tell(float(np.isfinite(self._end).mean()))
            if len(marks) and np.isfinite(self._end[marks]).any():
                return
        if np.isfinite(until):
            self._pass(until)

    def resize(self, arcs: Ints, gbps: Floats) -> None:
        """Give arcs another capacity, in Gbit/s, from now on; 0 lets nothing through."""
        self._follow(self.shares.resize(arcs, gbps))

    def redirect(self, streams: Streams) -> None:
        """Move streams to other paths from now on; a row for each stream of the schedule.

        A stream without a path has no uses and a limit of 0.
        """
        active = np.flatnonzero(self.shares.active)
        self.shares = Shares(self.shares.capacity, streams)
        self.shares.change(active, np.empty(0, dtype=np.int64))
        self._follow(active)

    def left(self) -> Floats:
        """Return the Gbit that each stream still has to send, shape (streams,)."""
        return np.maximum(self._left - self._rate * (self.now - self._since), 0.0)

    def _next_event(self) -> float:
        due = float(self._due.min(initial=np.inf))
        timer = float(self._timer.min(initial=np.inf))
        if timer <= due or not np.isfinite(due):
            return timer
        together = self._due[self._due <= due + self._coarse * due]
        return min(float(together.max()), timer)

    def _pass(self, time: float) -> None:
        if self._timeline is not None and time > self.now:
            self._timeline.stood(self.now, time, self.shares.load)
        self.now = max(self.now, time)

    def _happen(self) -> None:
        """Process everything that is due: streams end, and activities begin or are complete."""
        ended = np.flatnonzero(self._due <= self.now)
        self._due[ended], self._left[ended] = np.inf, 0.0
        touched, count = np.unique(self._schedule.activity[ended], return_counts=True)
        self._open[touched] -= count
        self._sent(touched[self._open[touched] == 0])
        joined: list[Ints] = []
        while len(expired := np.flatnonzero(self._timer <= self.now)):
            self._timer[expired] = np.inf
            sending = np.isfinite(self._begin[expired])
            self._complete(expired[sending])
            joined.append(self._start(expired[~sending]))
        new = np.concatenate([np.empty(0, dtype=np.int64), *joined])
        if len(new) or len(ended):
            self._exchange(new, ended)

    def _exchange(self, joined: Ints, ended: Ints) -> None:
        changed = self.shares.change(joined, ended)
        self._rate[ended] = 0.0
        self._follow(np.union1d(changed, joined))

    def _follow(self, rows: Ints) -> None:
        """Account for what streams sent at their old rates, and continue at their new ones."""
        self._left[rows] -= self._rate[rows] * (self.now - self._since[rows])
        self._since[rows] = self.now
        left = np.maximum(self._left[rows], 0.0)
        rate = np.minimum(self.shares.rate[rows], FASTEST)
        need = np.divide(left, rate, out=np.full(len(rows), np.inf), where=rate > 0)
        self._left[rows], self._rate[rows] = left, rate
        self._due[rows] = self.now + np.where(left > 0, need, 0.0)

    def _release(self, rows: Ints) -> None:
        """Mark activities as ready, as nothing keeps them waiting any more."""
        self._ready[rows] = self.now
        self._timer[rows] = self.now + self._schedule.delay[rows]

    def _start(self, rows: Ints) -> Ints:
        """Begin to send; return the activities' streams.

        Activities without streams are sent at once.
        """
        self._begin[rows] = self.now
        self._sent(rows[self._open[rows] == 0])
        return self._own[places(self._first_own, rows)]

    def _sent(self, rows: Ints) -> None:
        self._timer[rows] = self.now + self._schedule.lag[rows]

    def _complete(self, rows: Ints) -> None:
        self._end[rows] = self.now
        waited = self._next[places(self._first_next, rows)]
        following, count = np.unique(waited, return_counts=True)
        self._pending[following] -= count
        self._release(following[self._pending[following] == 0])
