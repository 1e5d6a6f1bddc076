"""The ports of reconcile: Protocols of agents, time and metrics, and the values they exchange.

Agents and metrics are implemented elsewhere (serve, telemetry). app.py hands all of them in, and
tests hand in small real implementations.

``AgentGateway`` knows only the sessions of this controller. An agent has a session with every
controller and obeys the leader. An agent that only other controllers reach is missing here.

The values describe what is sent to agents and what they answer. serve turns them into messages.
A push is one batch for one switch. Its operations are numbered as on the wire: first the
entries of ``sets``, then those of ``deletes``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Protocol, Self

from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.program import Entries
from heddle_controller.state.records import LinkName

UNKNOWN_DIGEST = bytes(32)
"""The digest of a table of which nothing is known; no real table has it."""


class Capability(IntEnum):
    """What an agent's FIB can do; the numbers are those of agent.proto."""

    MATCH_PORTS = 1
    MATCH_PAIR = 2
    BACKUP = 3
    COUNTERS = 4
    ATOMIC_BATCH = 5
    UNMATCHED = 6


@dataclass(frozen=True, slots=True)
class AgentSession:
    """One open session of an agent, as it introduced itself.

    The values describe the moment when the session began. Pushes do not update them.
    """

    id: int
    """Unique among all sessions; later sessions of a switch have greater ids."""
    fabric: str
    switch: str
    """Node id."""
    instance: str
    software_version: str
    capabilities: frozenset[Capability]
    table_size: int
    """Entries that the switch can hold; 0 means unlimited."""
    highest_epoch: int
    """Highest epoch that the agent has ever accepted."""
    generation: int
    """Generation that the switch holds completely; 0 for none."""
    table_digest: bytes
    """SHA-256 of the entries that it holds, by the rule in agent.proto; empty if it holds none."""
    peer_address: str = ""
    """IP address and UDP port where other agents reach it; empty if they cannot."""
    certificate: bytes = b""
    """The certificate that it showed, as PEM; empty if it showed none."""
    pushed: bool = False
    """Whether anything was pushed since it began; generations and digest are then outdated."""
    highest_generation: int = 0
    """Generation of the newest push that the agent has accepted for this fabric; 0 for none."""

    def holds_entries_before(self, newest: int) -> bool:
        """Return whether it began with entries of a fabric that has had no newer generation.

        An agent that has accepted anything newer has entries of another fabric, although the store
        does not know it: it may have lost its newest writes. An agent that has accepted nothing
        may have been started with the wrong name.
        """
        return bool(self.table_digest) and 0 < self.highest_generation <= newest


@dataclass(frozen=True, slots=True)
class LinkObservation:
    """What an agent saw of one link of its switch."""

    link: LinkName
    state: State
    """UP or DOWN."""
    time: float
    """When it was seen, by the agent's clock."""
    sequence: int
    """Grows with every change that this instance of the agent sees."""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LinkReport:
    """Link observations of one agent; ``full`` says that they cover all its links."""

    links: tuple[LinkObservation, ...]
    full: bool = False


class SessionChange(IntEnum):
    """What happened to a session."""

    CONNECTED = 1
    DISCONNECTED = 2


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """A session began or ended. This is a hint; ``AgentGateway.sessions`` is authoritative."""

    change: SessionChange
    session: AgentSession


class PushMode(IntEnum):
    """How a push is merged with what the switch holds; the numbers are those of agent.proto."""

    FULL_SYNC = 1
    INCREMENTAL = 2


@dataclass(frozen=True, slots=True, eq=False)
class Push:
    """One batch for one switch."""

    mode: PushMode
    epoch: int
    generation: int
    fabric: Fabric
    """The fabric whose rows the entries refer to."""
    sets: Entries
    """Entries to add or replace, all of one switch."""
    deletes: Entries
    """Entries to remove, all of one switch. Only their match columns count."""
    sweep_stale: bool = False
    completes_generation: bool = False
    tell_table: bool = False
    """Whether the answer should tell the table's generation and digest after the push."""
    tell_entries: bool = False
    """Whether the answer should also list every entry."""

    @property
    def operation_count(self) -> int:
        """Number of entries that are set or deleted."""
        return len(self.sets) + len(self.deletes)

    def match(self, operation: int) -> tuple[str, str, int, int]:
        """Return an operation's source and destination NIC, and its ports (0 for any)."""
        row = operation - len(self.sets)
        entries = self.sets if row < 0 else self.deletes
        ids = self.fabric.structure.nodes.ids
        return (
            ids[entries.source[row]],
            ids[entries.destination[row]],
            int(entries.source_port[row]),
            int(entries.destination_port[row]),
        )


class PushStatus(IntEnum):
    """How an agent took a push; the numbers are those of agent.proto."""

    APPLIED = 1
    STALE_EPOCH = 2
    INVALID = 3


class FailureReason(IntEnum):
    """Why one operation failed; the numbers are those of agent.proto."""

    UNSPECIFIED = 0
    TABLE_FULL = 1
    UNKNOWN_NEXT_HOP = 2
    UNSUPPORTED_MATCH = 3
    BACKEND = 4


@dataclass(frozen=True, slots=True)
class OperationFailure:
    """One operation that failed. Operations without one of these succeeded."""

    operation: int
    """Index into ``sets`` followed by ``deletes``."""
    reason: FailureReason
    message: str = ""


@dataclass(frozen=True, slots=True)
class StageResult:
    """The outcome of one stage of a push, RIB or FIB."""

    status: PushStatus
    failures: tuple[OperationFailure, ...] = ()
    message: str = ""
    time: float = 0.0
    """When the controller heard of it, Unix seconds."""


@dataclass(frozen=True, slots=True)
class TableState:
    """What a switch holds after a push that asked for it."""

    generation: int
    """The generation that it holds completely; 0 for none."""
    digest: bytes
    """As ``AgentSession.table_digest``."""
    entries: Entries | None = None
    """The entries of the digest, in rows of the push's fabric. None if they were not asked for,
    the agent did not list them, or they cannot be expressed in these rows."""


@dataclass(frozen=True, slots=True)
class PushReport:
    """The answers to one push. A push that was refused as a whole has no FIB stage."""

    rib: StageResult
    fib: StageResult | None
    highest_epoch: int
    """Highest epoch the agent has seen."""
    table: TableState | None = None
    """What the table holds; None unless the push asked for it and the agent answered."""

    @property
    def status(self) -> PushStatus:
        """The status of the last stage reached."""
        return (self.fib or self.rib).status

    @property
    def failures(self) -> tuple[OperationFailure, ...]:
        """Failures of both stages, in order: each operation once, with the first reason given."""
        stages = (self.rib, self.fib) if self.fib else (self.rib,)
        found: dict[int, OperationFailure] = {}
        for stage in stages:
            for failure in stage.failures:
                found.setdefault(failure.operation, failure)
        return tuple(found[operation] for operation in sorted(found))


class AgentGateway(Protocol):
    """The connected agents, and how to push to them."""

    def sessions(self, fabric: str) -> Mapping[str, AgentSession]:
        """The current session of each connected switch, by switch id, without those set aside."""
        ...

    def push(self, session: AgentSession, push: Push) -> Awaitable[PushReport]:
        """Send a batch and wait until it is in the FIB or refused.

        Pushes of one session are sent in the order of the calls. Cancelling stops
        the waiting, not the push.

        Raises:
            SessionLost: the session ended first, and it is unknown what was applied.
        """
        ...

    def set_aside(self, fabric: str, switch: str, why: str) -> object:
        """Refuse sessions of a switch for a while, because its agent holds up others.

        ``why`` says in words what the agent did.
        """
        ...

    def held_aside(self, fabric: str) -> Mapping[str, str]:
        """The switches that are set aside now, each with the reason and the end, in words."""
        ...

    def lead(self, epoch: int) -> None:
        """Note that we lead with this epoch. Nothing older is let through."""
        ...

    def follow(self, epoch: int) -> None:
        """Note that another controller leads this epoch. Nothing older is let through."""
        ...

    def events(self) -> AsyncIterator[SessionEvent]:
        """Sessions of all fabrics that begin and end from now on, bounded and coalesced.

        Link reports of agents do not come this way; see ``Observations``.
        """
        ...


class Clock(Protocol):
    """Time as an argument, so that tests can use their own."""

    def now(self) -> float:
        """Unix seconds."""
        ...

    def monotonic(self) -> float:
        """Seconds of a clock that never goes back. Only differences are meaningful."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait for that many seconds."""
        ...


class SystemClock:
    """Implements ``Clock`` with the time of this machine."""

    def now(self) -> float:
        """Return the time in Unix seconds."""
        return time.time()

    def monotonic(self) -> float:
        """Return seconds that never go back; only differences mean anything."""
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds."""
        await asyncio.sleep(seconds)


class Metric(StrEnum):
    """What reconcile measures. Each metric has the label ``fabric`` and no other.

    Names that end in ``_total`` are counters, those in ``_seconds`` histograms, all others gauges.
    """

    about: str
    """A description for people."""

    def __new__(cls, name: str, about: str) -> Self:
        """Make a member whose value is ``name`` and whose description is ``about``."""
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
        "Switches that do not hold the newest plan yet, as the leader knows; others show 0",
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
