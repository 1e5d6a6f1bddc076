"""Marks for when each part of an event's processing in the controller began and ended.

The parts are the controller's own methods. Timers are wrapped around them from outside.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Any

from heddle_controller.planner.port import Planner
from heddle_controller.reconcile.observations import Observations
from heddle_controller.reconcile.ports import AgentGateway
from heddle_controller.state.records import Programmed
from heddle_controller.store.store import Store

PARTS = (
    "notify",
    "debounce",
    "read intent",
    "plan",
    "commit",
    "ledger",
    "push and ack",
    "record",
)
"""The parts in the order in which they run.

"plan" is a call to the planning process with all that it does, there and back. "ledger" runs from
the commit to the first push.
"""


@dataclass(slots=True)
class Marks:
    """What happened since the last event began, on the monotonic clock."""

    spans: list[tuple[str, float, float]] = field(default_factory=list)
    pushes: list[tuple[float, float]] = field(default_factory=list)
    whole: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the store knows that all switches hold the newest plan."""
    committed: Any = None
    before: int = 0
    """Generation of the newest plan when the event began."""

    def clear(self) -> None:
        """Start a new event."""
        self.spans, self.pushes = [], []
        self.before = 0 if self.committed is None else self.committed.generation
        self.whole.clear()

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function with a timer around it."""

        def timed(*given: Any, **named: Any) -> Any:
            begin = time.monotonic()
            try:
                return function(*given, **named)
            finally:
                self.spans.append((name, begin, time.monotonic()))

        return timed

    def awaiting(
        self, name: str, function: Callable[..., Awaitable[Any]], after: Callable[..., None]
    ) -> Callable[..., Awaitable[Any]]:
        """Return the coroutine function with a timer around it.

        ``after`` is called with its answer and keyword arguments.
        """

        async def timed(*given: Any, **named: Any) -> Any:
            begin = time.monotonic()
            answer = await function(*given, **named)
            self.spans.append((name, begin, time.monotonic()))
            after(answer, **named)
            return answer

        return timed

    def first(self, name: str) -> tuple[float, float]:
        """Return when a part first began, and when that call ended."""
        return next((begin, end) for what, begin, end in self.spans if what == name)

    def total(self, name: str) -> float:
        """Return the seconds of all calls of a part together."""
        return sum(end - begin for what, begin, end in self.spans if what == name)

    def parts(self, heard: float) -> dict[str, float]:
        """Return the seconds of each part of an event that agents heard of at ``heard``."""
        reported = self.first("notify")[1]
        read, know = self.first("read intent")
        begin, done = self.first("commit")
        sent = min((begin for begin, _ in self.pushes), default=done)
        acked = max((end for _, end in self.pushes), default=sent)
        return {
            "notify": reported - heard,
            "debounce": read - reported,
            "read intent": know - read,
            "plan": self.total("plan"),
            "commit": done - begin,
            "ledger": sent - done,
            "push and ack": acked - sent,
            "record": max(end for name, _, end in self.spans if name == "record") - acked,
        }

    def end(self) -> float:
        """Return when the store knew that all switches hold the plan."""
        return max(end for name, _, end in self.spans if name == "record")


def time_store(store: Store, marks: Marks) -> None:
    """Time the store's calls that are part of an event, and note when all switches hold a plan."""

    def nothing(_: object, **__: object) -> None:
        return

    def committed(answer: Any, **_: object) -> None:
        marks.committed = answer

    def recorded(_: object, *, programmed: Programmed, **__: object) -> None:
        done = marks.committed
        if done is None or done.generation <= marks.before:
            return
        if not replace(done, programmed=programmed).lacking():
            marks.whole.set()

    for method, name, after in (
        ("intent", "read intent", nothing),
        ("commit", "commit", committed),
        ("record_programmed", "record", recorded),
    ):
        setattr(store, method, marks.awaiting(name, getattr(store, method), after))


def time_reports(observations: Observations, marks: Marks) -> None:
    """Time how long the controller takes to note what agents report of links."""
    observations.report = marks.around("notify", observations.report)  # type: ignore[method-assign]


def time_planner(planner: Planner, marks: Marks) -> None:
    """Time the calls for plans."""

    def nothing(_: object, **__: object) -> None:
        return

    setattr(planner, "plan", marks.awaiting("plan", planner.plan, nothing))  # noqa: B010 - likewise


def time_pushes(gateway: AgentGateway, marks: Marks) -> None:
    """Time the gateway's pushes."""
    push = gateway.push

    async def timed(session: Any, batch: Any) -> Any:
        begin = time.monotonic()
        answer = await push(session, batch)
        marks.pushes.append((begin, time.monotonic()))
        return answer

    setattr(gateway, "push", timed)  # noqa: B010 - a method of that one instance
