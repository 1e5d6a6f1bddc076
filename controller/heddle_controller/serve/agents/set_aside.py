"""Switches that are set aside: what their agents say would hold up others.

A switch is set aside once its agent says more than a switch can have to say, has said what is
malformed again and again, begins session after session, or (the leader tells) claims epoch after
epoch. Nothing is then sent to it or heard of it, and nobody waits for it; what it holds stays, as
agents are fail-static. It comes back by itself: its next session after a while is let in, and the
while is twice as long each time. Operators see it in the log, at the node of the fabric, and as the
reason of each job that waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

log = structlog.stdlib.get_logger(__name__)

FIRST, LONGEST_ASIDE = 60.0, 3600.0
"""Seconds for which a switch is set aside the first time, and the most."""
FAULTS = 5.0
"""Malformed messages at once, each of which ends a session; one more is forgiven in ``FIRST``."""
_SESSIONS, SESSIONS_A_SECOND = 200.0, 2.0
"""Sessions that a switch may begin at once, and as time goes by."""

_Switch = tuple[str, str]
"""Fabric and switch."""


@dataclass(frozen=True, slots=True)
class Case:
    """One switch that was set aside."""

    why: str
    end: float
    """When it is let in again, by the monotonic clock."""
    seconds: float
    """For which it was set aside."""


class Tally:
    """How much of something each switch has left, which comes back as time goes by."""

    def __init__(self, most: float, a_second: float) -> None:
        self._most = most
        self._a_second = a_second
        self._used: dict[_Switch, tuple[float, float]] = {}

    def take(self, switch: _Switch, now: float) -> bool:
        """Take one; whether there was one left."""
        used, at = self._used.get(switch, (0.0, now))
        used = max(0.0, used - (now - at) * self._a_second) + 1.0
        self._used[switch] = min(used, self._most + 1.0), now
        return used <= self._most


class SetAside:
    """Those of all fabrics, as this replica knows them."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._now = monotonic
        self._cases: dict[_Switch, Case] = {}
        self._faults = Tally(FAULTS, 1.0 / FIRST)
        self._begun = Tally(_SESSIONS, SESSIONS_A_SECOND)

    def put(self, fabric: str, switch: str, why: str) -> float:
        """Set a switch aside; for how many seconds."""
        now, before = self._now(), self._cases.get((fabric, switch))
        if before is not None and now < before.end:
            return before.end - now
        again = before is not None and now < before.end + LONGEST_ASIDE
        seconds = min(2 * before.seconds, LONGEST_ASIDE) if before and again else FIRST
        self._cases[fabric, switch] = Case(why, now + seconds, seconds)
        log.warning("switch set aside", fabric=fabric, switch=switch, why=why, seconds=seconds)
        return seconds

    def faulty(self, fabric: str, switch: str) -> bool:
        """A session ended for what its agent said; whether that was once too often."""
        return not self._faults.take((fabric, switch), self._now())

    def begins(self, fabric: str, switch: str) -> bool:
        """A session is to begin; whether that is once too often."""
        return not self._begun.take((fabric, switch), self._now())

    def left(self, fabric: str, switch: str) -> float:
        """Seconds until a switch is let in again; 0 for one that is not set aside."""
        case = self._cases.get((fabric, switch))
        return max(0.0, case.end - self._now()) if case else 0.0

    def of(self, fabric: str) -> Mapping[str, str]:
        """The switches of a fabric that are set aside, each with why and until when, in words."""
        now = self._now()
        return {
            switch: f"set aside for {case.end - now:.0f} s more, as its agent {case.why}"
            for (of, switch), case in self._cases.items()
            if of == fabric and now < case.end
        }
