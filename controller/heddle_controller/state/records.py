"""What the store keeps and hands out: intent, facts about it, and plans with theirs.

Intent is what clients say (fabric, states, jobs, demands); facts are
what the leader finds out of it (how far a job has come, what a plan costs, what
switches hold). They are kept apart: writing a fact never moves the version of the
intent, so that the loop does not wake itself.

Times are Unix seconds. Names are the last part of the API's: fabric "f1", job "j1".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from heddle_controller.model.demand import Demands
from heddle_controller.model.fabric import Fabric, Floats, LinkKey, NodeKind, State
from heddle_controller.model.job import Job
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Program


@dataclass(frozen=True, slots=True)
class Request:
    """Who asks and under which id; an empty id is never replayed."""

    id: str = ""
    """At most 64 bytes. The same id with the same request answers as the first did."""
    actor: str = ""
    """Who, for the audit trail: role and identity; empty where callers are not told apart."""
    call: str = ""
    """Id of the call in the logs, for the audit trail where there is no id of the request."""


@dataclass(frozen=True, slots=True)
class LinkName:
    """A link by the ids of its ends, in either order, and its key ("1" equals 1)."""

    source: str
    target: str
    key: LinkKey = 0

    def __str__(self) -> str:
        return f"{self.source}-{self.target}#{self.key}"


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """One link and what is wanted of it."""

    link: LinkName
    gbps: float
    admin_state: State
    state_time: float
    """When that last changed; 0 for never."""


@dataclass(frozen=True, slots=True)
class SwitchRecord:
    """One switch's administrative state."""

    node: str
    admin_state: State


@dataclass(frozen=True, slots=True)
class Overlay:
    """Whether a fabric's switches follow their entries, or the underlay alone."""

    withdrawn: bool = False
    """Entries stay in the tables, up to date, but no packet is matched against them."""
    time: float = 0.0
    """When that last changed; 0 for never."""


@dataclass(frozen=True, slots=True)
class FabricSummary:
    """A fabric without its nodes and links."""

    name: str
    title: str
    etag: str
    """Changes with every change of the fabric, states included."""
    update_time: float
    node_count: int
    link_count: int
    overlay: Overlay = Overlay()


@dataclass(frozen=True, eq=False)
class FabricRecord:
    """A fabric as stored."""

    name: str
    title: str
    etag: str
    update_time: float
    revision: int
    """Grows when the fabric is put, not when a state changes: a job that was
    checked against one revision is good for all its states."""
    fabric: Fabric
    """With administrative states only."""
    state_time: Floats
    """When the state of each link last changed, 0 for never, shape (links,)."""
    overlay: Overlay = Overlay()
    """What the operator wants of the whole fabric."""

    def link(self, row: int) -> LinkRecord:
        """One link by row."""
        links, ids = self.fabric.structure.links, self.fabric.structure.nodes.ids
        return LinkRecord(
            link=LinkName(ids[int(links.a[row])], ids[int(links.b[row])], links.key[row]),
            gbps=float(links.gbps[row]),
            admin_state=State(int(self.fabric.link_state[row])),
            state_time=float(self.state_time[row]),
        )

    def summary(self) -> FabricSummary:
        """The same without nodes and links."""
        return FabricSummary(
            self.name,
            self.title,
            self.etag,
            self.update_time,
            self.fabric.node_count,
            self.fabric.link_count,
            self.overlay,
        )


class JobState(IntEnum):
    """How far a job has come; numbers are those of the API."""

    ACCEPTED = 1
    PLANNED = 2
    PROGRAMMED = 3
    DEGRADED = 4


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the leader knows of a job; true of the specification with ``etag`` only."""

    etag: str
    state: JobState
    reason: str = ""
    """Why it is DEGRADED."""
    flow_count: int = 0
    unrouted_count: int = 0
    generation: int = 0
    """Plan that first held this specification; 0 before."""
    state_time: float = 0.0
    """When ``state`` was reached."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as stored: what was asked for, and apart from it the facts."""

    job: Job
    etag: str
    """Changes with every update of the specification."""
    create_time: float
    facts: JobFacts


@dataclass(frozen=True, slots=True, eq=False)
class DemandRecord:
    """A stored set of demands."""

    name: str
    demands: Demands
    etag: str
    update_time: float


@dataclass(frozen=True, slots=True)
class Versions:
    """Cheap to read; a reader compares them with those it saw last."""

    intent: int = 0
    """Grows with every write of intent."""
    facts: int = 0
    """Grows with every write of facts, commits included."""
    generation: int = 0
    """Of the newest committed plan; 0 for none."""


@dataclass(frozen=True, eq=False)
class Intent:
    """All that is wanted of one fabric: one consistent snapshot."""

    name: str
    version: int
    change_time: float
    """When the version was written."""
    revision: int
    """Of the fabric; see ``FabricRecord.revision``."""
    fabric: Fabric
    """With administrative states only; what agents see is added by who plans."""
    jobs: tuple[JobRecord, ...]
    """By name."""
    demands: tuple[DemandRecord, ...]
    """By name."""
    overlay: Overlay = Overlay()


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What is known of a plan besides its content."""

    changed_count: int = 0
    """Flows whose path differs from that in the plan before."""
    solve_seconds: float = 0.0
    commit_time: float = 0.0
    """Given by the store."""


@dataclass(frozen=True, slots=True)
class Programmed:
    """The newest generation a switch holds whole, from its FIB ack."""

    epoch: int
    generation: int
    time: float


@dataclass(frozen=True, eq=False)
class Committed:
    """A plan that was committed. Rows of the program are rows of ``plan.fabric``."""

    plan: Plan
    program: Program
    facts: PlanFacts
    programmed: Mapping[str, Programmed]
    """By switch; switches that never acknowledged anything are absent."""
    kept_for: int = 0
    """Newest version of the intent for which this plan, or one before it, was kept as it was."""

    @property
    def answered_version(self) -> int:
        """Newest version of the intent that the plan is known to answer to, if it is the newest."""
        return max(self.program.intent_version, self.kept_for)

    @property
    def generation(self) -> int:
        """Of the plan and its program."""
        return self.program.generation

    def switches(self) -> tuple[str, ...]:
        """Ids of the switches that this plan wants entries in."""
        ids = self.plan.fabric.structure.nodes.ids
        switch = self.program.entries.switch  # ascending
        first = np.flatnonzero(np.diff(switch, prepend=-1))
        return tuple(ids[row] for row in switch[first].tolist())

    def settled(self) -> tuple[int, tuple[str, ...]]:
        """The newest generation that all switches of the fabric have come to.

        And those that have come no further, in order of their rows; none where all hold this plan.
        """
        nodes = self.plan.fabric.structure.nodes
        known = {
            nodes.ids[row]: self._reached(nodes.ids[row])
            for row in np.flatnonzero(nodes.kind != NodeKind.NIC).tolist()
        }
        least = min(known.values(), default=self.generation)
        if least >= self.generation:
            return self.generation, ()
        return least, tuple(switch for switch, reached in known.items() if reached == least)

    def programmed_switches(self) -> tuple[str, ...]:
        """Those of ``switches`` that hold all of this plan."""
        return tuple(s for s in self.switches() if self._holds(s))

    def programmed_time(self) -> float:
        """When the last of ``switches`` acknowledged; 0 while any is missing."""
        wanted = self.switches()
        if not all(self._holds(s) for s in wanted):
            return 0.0
        return max((self.programmed[s].time for s in wanted), default=self.facts.commit_time)

    def _holds(self, switch: str) -> bool:
        return self._reached(switch) >= self.generation

    def _reached(self, switch: str) -> int:
        fact = self.programmed.get(switch)
        return fact.generation if fact is not None else 0
