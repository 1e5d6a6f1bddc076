"""The connected agents; implements ``AgentGateway`` for the reconcile loop.

A switch has one session with this controller. A second session of the same switch replaces the
first, because an agent that lost its connection comes back before the old stream is known to be
dead. Agents have a session with every controller, and only the leader pushes.

A switch is set aside if its agent would hold up others: it reports more than its switch can have,
repeatedly sends malformed messages, begins session after session, or (as the leader notices)
reports ever higher epochs. Then nothing is sent to the switch, nothing is accepted from it, and
nobody waits for it. Its entries stay, because agents are fail-static. After some time its next
session is admitted. This time doubles with each repetition. Operators see in the log, at the node
of the fabric, and in the reason of each job that waits for it that a switch is set aside.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import grpc
import structlog

from heddle_controller.reconcile.ports import (
    AgentSession,
    Push,
    PushReport,
    SessionChange,
    SessionEvent,
)
from heddle_controller.serve.agents.stream import AgentStream, Encoder, EpochGuard, lost
from heddle_controller.serve.bucket import TokenBucket
from heddle_controller.serve.errors import Refusal, aborted
from heddle_controller.serve.watch import shutting_down
from heddle_controller.store.applier import Feed

FIRST, LONGEST_ASIDE = 60.0, 3600.0
"""Seconds for which a switch is set aside the first time, and at most."""
FAULTS = 5.0
"""Malformed messages that a switch may send in a burst; it may send one more every ``FIRST``
seconds. Each of them ends a session."""
_SESSIONS, SESSIONS_A_SECOND = 200.0, 2.0
"""Sessions that a switch may begin in a burst, and per second in the long run."""

_Switch = tuple[str, str]
"""Fabric and switch."""


@dataclass(frozen=True, slots=True)
class Case:
    """One switch that was set aside."""

    why: str
    end: float
    """When it is admitted again, by the monotonic clock."""
    seconds: float
    """For how long it was set aside."""


class SetAside:
    """The switches of all fabrics that this replica has set aside."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._now = monotonic
        self._cases: dict[_Switch, Case] = {}
        self._faults: dict[_Switch, TokenBucket] = {}
        self._begun: dict[_Switch, TokenBucket] = {}

    def put(self, fabric: str, switch: str, why: str) -> float:
        """Set a switch aside, unless it is already; return for how many seconds from now."""
        now, before = self._now(), self._cases.get((fabric, switch))
        if before is not None and now < before.end:
            return before.end - now
        again = before is not None and now < before.end + LONGEST_ASIDE
        seconds = min(2 * before.seconds, LONGEST_ASIDE) if before and again else FIRST
        self._cases[fabric, switch] = Case(why, now + seconds, seconds)
        log.warning("switch set aside", fabric=fabric, switch=switch, why=why, seconds=seconds)
        return seconds

    def faulty(self, fabric: str, switch: str) -> bool:
        """Count a session that a malformed message ended; return whether there were too many."""
        now = self._now()
        fresh = TokenBucket(FAULTS, 1.0 / FIRST, now)
        return self._faults.setdefault((fabric, switch), fresh).take(now) > 0

    def begins(self, fabric: str, switch: str) -> bool:
        """Count a session that is about to begin; return whether there are too many."""
        now = self._now()
        fresh = TokenBucket(_SESSIONS, SESSIONS_A_SECOND, now)
        return self._begun.setdefault((fabric, switch), fresh).take(now) > 0

    def left(self, fabric: str, switch: str) -> float:
        """Return the seconds until a switch is admitted again; 0 if it is not set aside."""
        case = self._cases.get((fabric, switch))
        return max(0.0, case.end - self._now()) if case else 0.0

    def of(self, fabric: str) -> Mapping[str, str]:
        """Return the switches of a fabric that are set aside, with why and how long, as text."""
        now = self._now()
        return {
            switch: f"set aside for {case.end - now:.0f} s more, as its agent {case.why}"
            for (of, switch), case in self._cases.items()
            if of == fabric and now < case.end
        }


log = structlog.stdlib.get_logger(__name__)


class AgentMeter(Protocol):
    """Measures sessions, and what agents count."""

    def agents_connected(self, fabric: str, count: int) -> None:
        """Set how many agents of a fabric have a session with this controller."""

    def session_coalesced(self, fabric: str) -> None:
        """Count an agent that was so far behind that a FULL_SYNC replaces its queue."""

    def traffic_counted(self, fabric: str, packets: int, size: int) -> None:
        """Add packets and bytes that agents counted since their previous reports."""


class Gateway:
    """Keeps the sessions of all connected agents; implements ``AgentGateway``."""

    def __init__(
        self, meter: AgentMeter, queue_limit: int, guard: EpochGuard | None = None
    ) -> None:
        self.guard = guard or EpochGuard()
        self.aside = SetAside()
        self.on_lead: list[Callable[[], None]] = []
        """Functions to call when this controller begins to lead."""
        self._meter = meter
        self._limit = queue_limit
        self._encoder = Encoder()
        self._ids = itertools.count(1)
        self._sessions: dict[str, dict[str, AgentStream]] = {}
        self._events = Feed[SessionEvent]()
        self._closed = False

    def next_id(self) -> int:
        """Return an id for a session that is about to begin."""
        return next(self._ids)

    def sessions(self, fabric: str) -> Mapping[str, AgentSession]:
        """Return the session of each connected switch by switch id, without those set aside."""
        of_fabric, out = self._sessions.get(fabric, {}), self.aside.of(fabric)
        return {switch: session.about for switch, session in of_fabric.items() if switch not in out}

    def set_aside(self, fabric: str, switch: str, why: str) -> Refusal:
        """Implement ``AgentGateway.set_aside``; return the error with which its session ends."""
        self.aside.put(fabric, switch, why)
        refusal = self._refusal(fabric, switch)
        live = self._sessions.get(fabric, {}).get(switch)
        if live is not None:
            self._tell(SessionChange.DISCONNECTED, live.about)
            live.end(refusal)
        return refusal

    def held_aside(self, fabric: str) -> Mapping[str, str]:
        """Implement ``AgentGateway.held_aside``."""
        return self.aside.of(fabric)

    def admit(self, fabric: str, switch: str) -> None:
        """Check that a switch may begin a session now.

        Raises:
            Refusal: it is set aside, or this call sets it aside because it began too many.
        """
        if self.aside.left(fabric, switch) > 0:
            raise self._refusal(fabric, switch)
        if self.aside.begins(fabric, switch):
            raise self.set_aside(fabric, switch, "begins one session after another")

    def _refusal(self, fabric: str, switch: str) -> Refusal:
        message = f"switch {switch} is {self.aside.of(fabric).get(switch, 'set aside')}"
        left = self.aside.left(fabric, switch)
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        return Refusal(code, "SET_ASIDE", message, {"switch": switch}, max(left, 1.0))

    def lead(self, epoch: int) -> None:
        """Implement ``AgentGateway.lead``."""
        self.guard.lead(epoch)
        for call in self.on_lead:
            call()

    def follow(self, epoch: int) -> None:
        """Implement ``AgentGateway.follow``."""
        self.guard.heard(epoch)

    def push(self, session: AgentSession, push: Push) -> asyncio.Future[PushReport]:
        """Implement ``AgentGateway.push``.

        If the session has too many unanswered pushes, it starts again under a new id, and this
        push fails with ``SessionLost``.

        This is not a coroutine, because a task for each of thousands of pushes took a twentieth of
        their time.
        """
        live = self._sessions.get(session.fabric, {}).get(session.switch)
        if live is not None and live.about.id == session.id and live.full:
            self._begin_anew(live)
        if live is None or live.about.id != session.id or self._is_aside(live):
            return lost(session.switch)
        return live.submit(push)

    def _is_aside(self, stream: AgentStream) -> bool:
        return self.aside.left(stream.about.fabric, stream.about.switch) > 0

    def _begin_anew(self, session: AgentStream) -> None:
        log.warning("agent fell behind", switch=session.about.switch, pending=session.pending_count)
        self._meter.session_coalesced(session.about.fabric)
        self._tell(SessionChange.DISCONNECTED, session.about)
        session.begin_anew(self.next_id())
        self._tell(SessionChange.CONNECTED, session.about)

    def events(self) -> AsyncIterator[SessionEvent]:
        """Implement ``AgentGateway.events``; only the newest event of each switch waits."""
        return self._events.follow()

    def open(self, about: AgentSession) -> AgentStream:
        """Begin a session; an older session of the same switch ends with ABORTED."""
        stream = AgentStream(about, self._limit, self.guard, self._encoder)
        self._begin(stream)
        return stream

    def _begin(self, session: AgentStream) -> None:
        if self._closed:
            raise shutting_down()
        about = session.about
        of_fabric = self._sessions.setdefault(about.fabric, {})
        older = of_fabric.get(about.switch)
        of_fabric[about.switch] = session
        if older is not None:
            message = f"another session of switch {about.switch} has taken its place"
            older.end(aborted("SESSION_REPLACED", message, instance=about.instance))
        self._count(about.fabric)
        self._tell(SessionChange.CONNECTED, about)

    def close_session(self, session: AgentStream) -> bool:
        """Forget a session whose stream is over; return False if another has replaced it."""
        session.end()
        about = session.about
        of_fabric = self._sessions.get(about.fabric, {})
        if of_fabric.get(about.switch) is not session:
            return False
        del of_fabric[about.switch]
        self._count(about.fabric)
        self._tell(SessionChange.DISCONNECTED, about)
        return True

    def _count(self, fabric: str) -> None:
        self._meter.agents_connected(fabric, len(self._sessions[fabric]))

    def close(self) -> None:
        """End every session with UNAVAILABLE and accept no new ones."""
        self._closed = True
        for of_fabric in self._sessions.values():
            for session in of_fabric.values():
                session.end(shutting_down())
        self._events.close()

    def _tell(self, change: SessionChange, about: AgentSession) -> None:
        self._events.tell((about.fabric, about.switch), SessionEvent(change, about))
