"""What the store keeps and hands out: intent, facts about it, and plans with theirs.

Intent is what clients say (fabric, states, jobs, demands); facts are
what the leader finds out of it (how far a job has come, what a plan costs, what
switches hold). They are kept apart: writing a fact never moves the version of the
intent, so that the loop does not wake itself.

Times are Unix seconds. Names are the last part of the API's: fabric "f1", job "j1".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import IntEnum

import numpy as np

from heddle.names import link_name
from heddle_controller.model.arrays import Floats
from heddle_controller.model.demand import Demands
from heddle_controller.model.fabric import Fabric, LinkKey, State
from heddle_controller.model.job import Gpus, Job, held_of
from heddle_controller.model.plan import Plan
from heddle_controller.model.program import Program
from heddle_controller.plan.causes import Cause


@dataclass(frozen=True, slots=True)
class Request:
    """The caller, and the id of its request; an empty id is never replayed."""

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
        return link_name(self.source, self.target, self.key)


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


@dataclass(frozen=True, slots=True)
class Reservation:
    """Hosts that are kept for a job to come."""

    name: str
    hosts: tuple[str, ...]
    create_time: float
    end_time: float
    gpus: tuple[Gpus, ...] = ()
    """GPUs of each host, where parts of hosts are kept."""

    @property
    def held(self) -> dict[str, Gpus]:
        """What is kept of each host."""
        return held_of(self.hosts, self.gpus)

    def over(self, now: float) -> bool:
        """Whether its time is up."""
        return now >= self.end_time


class JobState(IntEnum):
    """How far a job has come; numbers are those of the API."""

    ACCEPTED = 1
    PLANNED = 2
    PROGRAMMED = 3
    DEGRADED = 4
    SUSPENDED = 5


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


@dataclass(frozen=True, slots=True)
class Rollback:
    """An earlier plan to go back to and keep to for a time, as far as links and flows allow."""

    generation: int
    """Of the earlier plan."""
    version: int
    """Of the intent that first asked for it: plans of it and of later ones follow."""
    end_time: float

    def over(self, now: float) -> bool:
        """Whether its time is up."""
        return now >= self.end_time


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
    rollback: Rollback | None = None


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """What is known of a plan besides its content."""

    changed_count: int = 0
    """Flows whose path differs from that in the plan before."""
    solve_seconds: float = 0.0
    commit_time: float = 0.0
    """Given by the store."""
    causes: tuple[Cause, ...] = ()
    """Why it followed the plan before."""


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """What is remembered of a plan for longer than its paths."""

    generation: int
    epoch: int
    intent_version: int
    flow_count: int
    unrouted_count: int
    max_utilization: float
    lower_bound: float
    facts: PlanFacts


@dataclass(frozen=True, slots=True)
class Programmed:
    """The newest generation that each switch of a fabric holds whole, from FIB acks.

    Most often all hold the same, so that one is told, and who differs.
    """

    generation: int = 0
    """Of every switch that is not among ``others``; 0 for none."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Of switches that hold another one."""
    time: float = 0.0
    """When the last switch with entries came to hold the newest of these."""

    def of(self, switch: str) -> int:
        """Of one switch; 0 where it never acknowledged anything."""
        return self.others.get(switch, self.generation)

    @property
    def newest(self) -> int:
        """The newest that any switch holds."""
        return max(self.generation, *self.others.values(), 0)

    def joined(self, told: Programmed) -> Programmed:
        """The same with what is told as well: the newer generation of each switch counts."""
        generation = max(self.generation, told.generation)
        reached = {s: max(self.of(s), told.of(s)) for s in {**self.others, **told.others}}
        others = {switch: at for switch, at in reached.items() if at != generation}
        if (generation, others) == (self.generation, self.others):
            return self
        time = max((self.newest, self.time), (told.newest, told.time))[1]
        return Programmed(generation, others, time)

    def on_others(self, come: Iterable[str], gone: Iterable[str]) -> Programmed:
        """The same of a fabric to which switches have come, or from which some have gone."""
        others = {**self.others, **dict.fromkeys(come, 0)}
        for switch in gone:
            others.pop(switch, None)
        return replace(self, others={s: at for s, at in others.items() if at != self.generation})


@dataclass(frozen=True, eq=False)
class Committed:
    """A plan that was committed. Rows of the program are rows of ``plan.fabric``."""

    plan: Plan
    program: Program
    facts: PlanFacts
    programmed: Programmed
    """What switches hold: of this plan, or of ones before it."""
    kept_for: int = 0
    """Newest version of the intent for which this plan, or one before it, was kept as it was."""

    @property
    def answered_version(self) -> int:
        """Newest version of the intent that the plan is known to answer to, if it is the newest."""
        return max(self.program.intent_version, self.kept_for)

    @property
    def generation(self) -> int:
        """The generation of the plan and its program."""
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
        structure, held = self.plan.fabric.structure, self.programmed
        others = {structure.index[s]: at for s, at in held.others.items() if s in structure.index}
        alike = len(others) < len(structure.programmed)
        least = min(
            [*others.values(), *([held.generation] if alike else [])], default=self.generation
        )
        if least >= self.generation:
            return self.generation, ()
        if alike and held.generation == least:
            ahead = [row for row, at in others.items() if at != least]
            behind = np.setdiff1d(structure.programmed, ahead).tolist()
        else:
            behind = sorted(row for row, at in others.items() if at == least)
        return least, tuple(structure.nodes.ids[row] for row in behind)

    @property
    def switch_count(self) -> int:
        """How many ``switches`` there are."""
        return int(np.count_nonzero(np.diff(self.program.entries.switch, prepend=-1)))

    def lacking(self) -> tuple[str, ...]:
        """Those of ``switches`` that do not hold all of this plan yet, in order of their rows."""
        if self.programmed.generation < self.generation:
            return tuple(s for s in self.switches() if self.programmed.of(s) < self.generation)
        structure, switch = self.plan.fabric.structure, self.program.entries.switch
        behind = [s for s, at in self.programmed.others.items() if at < self.generation]
        known = sorted(structure.index[s] for s in behind if s in structure.index)
        rows = np.array(known, dtype=np.int64)
        wanted = np.searchsorted(switch, rows, "right") > np.searchsorted(switch, rows)
        return tuple(structure.nodes.ids[row] for row in rows[wanted].tolist())

    def programmed_time(self) -> float:
        """When the last of ``switches`` acknowledged; 0 while any is missing."""
        if self.lacking():
            return 0.0
        return self.programmed.time if len(self.program.entries) else self.facts.commit_time
