"""The ports of reconcile: agents, time, and what it measures.

Each is implemented elsewhere (serve, telemetry, app) and handed in by app.py; tests hand in
small real implementations.

``AgentGateway`` speaks of this controller's sessions alone. Agents have one with every
controller, and obey the one that leads: an agent that only others reach is missing here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping
from enum import StrEnum
from typing import Protocol

from heddle_controller.reconcile.southbound import AgentSession, Push, PushReport, SessionEvent


class AgentGateway(Protocol):
    """The agents that are connected, and a way to push to each."""

    def sessions(self, fabric: str) -> Mapping[str, AgentSession]:
        """The present session of each connected switch, by switch id."""
        ...

    def push(self, session: AgentSession, push: Push) -> Awaitable[PushReport]:
        """Send a batch; done when it is in the FIB, or refused.

        Pushes of one session are sent in the order of the calls. Cancelling stops
        the waiting, not the push.

        Raises:
            SessionLost: the session ended first; what was applied is unknown.
        """
        ...

    def set_aside(self, fabric: str, switch: str, why: str) -> object:
        """Have no more of a switch for a while: its agent ``why``, and that holds up others."""
        ...

    def held_aside(self, fabric: str) -> Mapping[str, str]:
        """The switches that are set aside now, each with why and until when, in words."""
        ...

    def lead(self, epoch: int) -> None:
        """We lead: let nothing older through."""
        ...

    def follow(self, epoch: int) -> None:
        """Another leads: let nothing older through."""
        ...

    def events(self) -> AsyncIterator[SessionEvent]:
        """Sessions that begin and end from now on, for all fabrics, bounded and coalesced.

        What agents say of links does not come this way: see ``Observations``.
        """
        ...


class Clock(Protocol):
    """Time as an argument, so that tests can run in their own."""

    def now(self) -> float:
        """Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back; only differences mean anything."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        ...


class Metric(StrEnum):
    """What reconcile measures; each carries the label ``fabric`` and no other."""

    RECONCILE_RUNS = "heddle_reconcile_runs_total"
    """Counter: times the loop looked at a fabric."""
    RECONCILE_FAILURES = "heddle_reconcile_failures_total"
    """Counter: times it could not bring a new plan about."""
    SOLVE_SECONDS = "heddle_solve_seconds"
    """Histogram: from intent read to verified plan."""
    MAX_UTILIZATION = "heddle_plan_max_utilization_ratio"
    """Gauge: worst link of the newest plan."""
    LOWER_BOUND = "heddle_plan_lower_bound_ratio"
    """Gauge: what no plan can beat."""
    UNROUTED_FLOWS = "heddle_plan_unrouted_flows"
    """Gauge."""
    GENERATION = "heddle_plan_generation"
    """Gauge."""
    ENTRIES = "heddle_plan_entries"
    """Gauge: exact-match entries over all switches."""
    CHANGED_FLOWS = "heddle_plan_changed_flows_total"
    """Counter: flows whose path moved."""
    PUSHES = "heddle_rollout_pushes_total"
    """Counter: batches sent to agents."""
    OPERATIONS = "heddle_rollout_operations_total"
    """Counter: entries set or deleted."""
    OPERATION_FAILURES = "heddle_rollout_operation_failures_total"
    """Counter: operations that an agent could not do."""
    PUSH_SECONDS = "heddle_rollout_push_seconds"
    """Histogram: from a batch sent to its FIB ack."""
    PROGRAM_SECONDS = "heddle_intent_to_programmed_seconds"
    """Histogram: from a change of intent to the last FIB ack it needed."""
    PENDING_SWITCHES = "heddle_rollout_pending_switches"
    """Gauge: switches that do not hold the newest plan yet."""


class Metrics(Protocol):
    """Takes measurements."""

    def count(self, metric: Metric, fabric: str, amount: float = 1.0) -> None:
        """Add to a counter."""
        ...

    def observe(self, metric: Metric, fabric: str, value: float) -> None:
        """Add a value to a histogram."""
        ...

    def set(self, metric: Metric, fabric: str, value: float) -> None:
        """Set a gauge."""
        ...
