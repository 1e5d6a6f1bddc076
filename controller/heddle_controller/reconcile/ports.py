"""The ports of reconcile: agents, time, and what it measures.

Each is implemented elsewhere (serve, telemetry, app) and handed in by app.py; tests hand in
small real implementations.

``AgentGateway`` speaks of this controller's sessions alone. Agents have one with every
controller, and obey the one that leads: an agent that only others reach is missing here.

What goes to agents and comes back, as values; serve turns them into messages.

A push is one batch for one switch. Its operations are numbered as on the wire:
first the entries of ``sets``, then those of ``deletes``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Protocol, Self

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.program import Entries
from heddle_controller.state.records import LinkName

UNKNOWN_DIGEST = bytes(32)
"""Stands for a table that nothing is known of; no table has it."""


class Capability(IntEnum):
    """What an agent's FIB can do; numbers are those of agent.proto."""

    MATCH_PORTS = 1
    MATCH_PAIR = 2
    BACKUP = 3
    COUNTERS = 4
    ATOMIC_BATCH = 5
    UNMATCHED = 6


@dataclass(frozen=True, slots=True)
class AgentSession:
    """One open session of an agent, as it introduced itself.

    Values hold for the moment the session began; they are not updated by pushes.
    """

    id: int
    """Unique among all sessions, and greater for a later one of the same switch."""
    fabric: str
    switch: str
    """Node id."""
    instance: str
    software_version: str
    capabilities: frozenset[Capability]
    table_size: int
    """Entries it can hold; 0 is unlimited."""
    highest_epoch: int
    """Highest epoch it has ever accepted."""
    generation: int
    """Generation it holds whole; 0 for none."""
    table_digest: bytes
    """SHA-256 of what it holds, by the rule in agent.proto; empty for nothing."""
    peer_address: str = ""
    """Where other agents reach it, IP address and UDP port; empty for nowhere."""
    pushed: bool = False
    """Whether anything was pushed since: then generation and digest are over."""


@dataclass(frozen=True, slots=True)
class LinkObservation:
    """What an agent saw of one link of its switch."""

    link: LinkName
    state: State
    """UP or DOWN."""
    time: float
    """By the agent's clock."""
    sequence: int
    """Grows with every change that this instance of the agent sees."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LinkReport:
    """Observations of one agent; of all its links where ``full``."""

    links: tuple[LinkObservation, ...]
    full: bool = False


class SessionChange(IntEnum):
    """What happened to a session."""

    CONNECTED = 1
    DISCONNECTED = 2


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """A session began or ended. Only a hint: ``AgentGateway.sessions`` is the truth."""

    change: SessionChange
    session: AgentSession


class PushMode(IntEnum):
    """How a push is merged with what the switch holds; numbers are those of agent.proto."""

    FULL_SYNC = 1
    INCREMENTAL = 2


@dataclass(frozen=True, slots=True, eq=False)
class Push:
    """One batch for one switch."""

    mode: PushMode
    epoch: int
    generation: int
    fabric: Fabric
    """Its rows are what the entries speak of."""
    sets: Entries
    """To add or replace; all of one switch."""
    deletes: Entries
    """To remove, by their match columns alone; all of one switch."""
    sweep_stale: bool = False
    completes_generation: bool = False
    tell_table: bool = False
    """Whether the answer shall say what the table then holds."""
    tell_entries: bool = False
    """Whether it shall name every entry, too."""

    @property
    def operation_count(self) -> int:
        """Entries set and deleted."""
        return len(self.sets) + len(self.deletes)


class PushStatus(IntEnum):
    """How a push was taken; numbers are those of agent.proto."""

    APPLIED = 1
    STALE_EPOCH = 2
    INVALID = 3


class FailureReason(IntEnum):
    """Why one operation failed; numbers are those of agent.proto."""

    UNSPECIFIED = 0
    TABLE_FULL = 1
    UNKNOWN_NEXT_HOP = 2
    UNSUPPORTED_MATCH = 3
    BACKEND = 4


@dataclass(frozen=True, slots=True)
class OperationFailure:
    """One operation that did not succeed; those not named did."""

    operation: int
    """Index into ``sets``, and on from its end into ``deletes``."""
    reason: FailureReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class StageResult:
    """How one stage of a push, RIB or FIB, went."""

    status: PushStatus
    failures: tuple[OperationFailure, ...] = ()
    message: str = ""
    time: float = 0.0
    """When the controller heard of it, Unix seconds."""


@dataclass(frozen=True, slots=True)
class TableState:
    """What a switch holds."""

    generation: int
    """Held whole; 0 for none."""
    digest: bytes
    """As ``AgentSession.table_digest``."""
    entries: Entries | None = None
    """What the digest is of, in rows of the push's fabric; None where it was not asked
    for, or is not told, or cannot be said in such rows."""


@dataclass(frozen=True, slots=True)
class PushReport:
    """The answers to one push. A push refused whole has no FIB stage."""

    rib: StageResult
    fib: StageResult | None
    highest_epoch: int
    """Highest epoch the agent has seen."""
    table: TableState | None = None
    """What the table holds, where the push asked and the agent told."""

    @property
    def status(self) -> PushStatus:
        """The status of the last stage reached."""
        return (self.fib or self.rib).status

    @property
    def failures(self) -> tuple[OperationFailure, ...]:
        """Failures of both stages, each operation once, the first reason told."""
        stages = (self.rib, self.fib) if self.fib else (self.rib,)
        found: dict[int, OperationFailure] = {}
        for stage in stages:
            for failure in stage.failures:
                found.setdefault(failure.operation, failure)
        return tuple(found[operation] for operation in sorted(found))


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
    """What reconcile measures; each carries the label ``fabric`` and no other.

    A name in ``_total`` is a counter's, one in ``_seconds`` a histogram's, others are gauges'.
    """

    about: str
    """For people."""

    def __new__(cls, name: str, about: str) -> Self:
        """A name and what it says."""
        made = str.__new__(cls, name)
        made._value_ = name
        made.about = about
        return made

    RECONCILE_RUNS = "heddle_reconcile_runs_total", "Times the loop looked at a fabric"
    RECONCILE_FAILURES = (
        "heddle_reconcile_failures_total",
        "Times the loop could not bring a new plan about",
    )
    SOLVE_SECONDS = "heddle_solve_seconds", "From the intent read to a verified plan"
    MAX_UTILIZATION = (
        "heddle_plan_max_utilization_ratio",
        "Load over capacity of the worst link of the newest plan",
    )
    LOWER_BOUND = "heddle_plan_lower_bound_ratio", "What no plan of the same flows can beat"
    UNROUTED_FLOWS = "heddle_plan_unrouted_flows", "Flows of the newest plan without a path"
    GENERATION = "heddle_plan_generation", "Generation of the newest plan"
    ENTRIES = "heddle_plan_entries", "Exact-match entries of the newest plan over all switches"
    CHANGED_FLOWS = "heddle_plan_changed_flows_total", "Flows whose path moved"
    PUSHES = "heddle_rollout_pushes_total", "Batches sent to agents"
    OPERATIONS = "heddle_rollout_operations_total", "Entries set or deleted on switches"
    OPERATION_FAILURES = (
        "heddle_rollout_operation_failures_total",
        "Operations that an agent could not do",
    )
    PUSH_SECONDS = "heddle_rollout_push_seconds", "From a batch sent to its FIB ack"
    PROGRAM_SECONDS = (
        "heddle_intent_to_programmed_seconds",
        "From a change of intent to the last FIB ack it needed",
    )
    PENDING_SWITCHES = (
        "heddle_rollout_pending_switches",
        "Switches that do not hold the newest plan yet",
    )


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
