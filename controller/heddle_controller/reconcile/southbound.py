"""What goes to agents and comes back, as values; serve turns them into messages.

A push is one batch for one switch. Its operations are numbered as on the wire:
first the entries of ``sets``, then those of ``deletes``.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

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
