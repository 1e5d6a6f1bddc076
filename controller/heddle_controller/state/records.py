"""Records that the store keeps and returns: intent, facts about it, and plans.

Intent is what clients ask for (fabric, states, jobs, demands). Facts are what the leader finds out
(how far a job has come, what a plan costs, what switches hold). They are kept apart: writing a fact
never increases the version of the intent, so the loop does not wake itself.

Times are Unix seconds. Names are the last part of the names in the API: fabric "f1", job "j1".
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
from heddle_controller.plan.diff import Cause


@dataclass(frozen=True, slots=True)
class Request:
    """The caller, and the id of its request."""

    id: str = ""
    """At most 64 bytes; may be empty. The same request with the same id gets the first answer."""
    actor: str = ""
    """Role and identity for the audit trail. Empty if callers are not distinguished."""
    call: str = ""
    """Id of the call in the logs. The audit trail has it if the request has no id."""


@dataclass(frozen=True, slots=True)
class LinkName:
    """A link, named by the ids of its ends in either order and its key ("1" equals 1)."""

    source: str
    target: str
    key: LinkKey = 0
    """An empty one names the only link between the ends."""

    def __str__(self) -> str:
        if self.key == "":
            return f"{self.source},{self.target}"
        return link_name(self.source, self.target, self.key)


@dataclass(frozen=True, slots=True)
class LinkRecord:
    """A link and its administrative state."""

    link: LinkName
    gbps: float
    admin_state: State
    state_time: float
    """When ``admin_state`` last changed; 0 for never."""


@dataclass(frozen=True, slots=True)
class SwitchRecord:
    """A switch and its administrative state."""

    node: str
    admin_state: State


@dataclass(frozen=True, slots=True)
class Overlay:
    """Whether the switches of a fabric use their entries, or only the underlay."""

    withdrawn: bool = False
    """If set, no packet is matched against the entries. They stay in the tables, up to date."""
    time: float = 0.0
    """When ``withdrawn`` last changed; 0 for never."""


@dataclass(frozen=True, slots=True)
class FabricSummary:
    """A fabric without its nodes and links."""

    name: str
    title: str
    etag: str
    """Changes with every change of the fabric, including states."""
    update_time: float
    node_count: int
    link_count: int
    digest: str
    """See ``FabricRecord.digest``."""
    overlay: Overlay = Overlay()


@dataclass(frozen=True, eq=False)
class FabricRecord:
    """A fabric as stored."""

    name: str
    title: str
    etag: str
    update_time: float
    revision: int
    """Grows when the fabric is replaced by one with other nodes or links, not when a state
    changes. A job that was checked against one revision fits it in all its states."""
    fabric: Fabric
    """The fabric with administrative states only."""
    state_time: Floats
    """When the administrative state of each link last changed, 0 for never, shape (links,)."""
    overlay: Overlay = Overlay()
    """Whether the operator has withdrawn the entries of this fabric."""
    digest: str = ""
    """Digest of the structure."""

    def link(self, row: int) -> LinkRecord:
        """Return the record of one link, given by row."""
        links, ids = self.fabric.structure.links, self.fabric.structure.nodes.ids
        return LinkRecord(
            link=LinkName(ids[int(links.a[row])], ids[int(links.b[row])], links.key[row]),
            gbps=float(links.gbps[row]),
            admin_state=State(int(self.fabric.link_state[row])),
            state_time=float(self.state_time[row]),
        )

    def summary(self) -> FabricSummary:
        """Return the same without nodes and links."""
        return FabricSummary(
            self.name,
            self.title,
            self.etag,
            self.update_time,
            self.fabric.node_count,
            self.fabric.link_count,
            self.digest,
            self.overlay,
        )


@dataclass(frozen=True, slots=True)
class Reservation:
    """Hosts that are kept for a future job."""

    name: str
    hosts: tuple[str, ...]
    create_time: float
    end_time: float
    gpus: tuple[Gpus, ...] = ()
    """GPUs of each host. Empty if whole hosts are kept."""

    @property
    def held(self) -> dict[str, Gpus]:
        """GPUs that are kept of each host; empty for a whole host."""
        return held_of(self.hosts, self.gpus)

    def over(self, now: float) -> bool:
        """Whether its time is up."""
        return now >= self.end_time


class JobState(IntEnum):
    """How far a job has come. The numbers are those of the API."""

    ACCEPTED = 1
    PLANNED = 2
    PROGRAMMED = 3
    DEGRADED = 4
    SUSPENDED = 5


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the leader knows of a job. It is only about the specification with ``etag``."""

    etag: str
    state: JobState
    reason: str = ""
    """Why it is DEGRADED."""
    flow_count: int = 0
    unrouted_count: int = 0
    generation: int = 0
    """Generation of the first plan with this specification; 0 if there is none yet."""
    state_time: float = 0.0
    """When ``state`` was reached."""
    resumed: bool = False
    """Whether it was suspended before, and no plan holds it since. So whichever controller leads
    tells it from a job that came."""


@dataclass(frozen=True, slots=True)
class JobRecord:
    """A job as stored: its specification, and facts about it."""

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
    """Version numbers of a fabric. They are cheap to read and show whether anything changed."""

    intent: int = 0
    """Grows with every write of intent."""
    facts: int = 0
    """Grows with every write of facts, commits included."""
    generation: int = 0
    """Generation of the newest committed plan; 0 for none. While a fabric that was put again after
    a deletion has no plan, it is above those of the deleted one."""


@dataclass(frozen=True, slots=True)
class Rollback:
    """An earlier plan to return to for some time, as far as links and flows allow."""

    generation: int
    """Generation of the earlier plan."""
    version: int
    """Version of the intent that asked for it. Plans made for this or a later version follow it."""
    end_time: float

    def over(self, now: float) -> bool:
        """Whether its time is up."""
        return now >= self.end_time


@dataclass(frozen=True, eq=False)
class Intent:
    """Everything that clients want of one fabric, as a consistent snapshot."""

    name: str
    version: int
    change_time: float
    """When this version was written."""
    revision: int
    """See ``FabricRecord.revision``."""
    fabric: Fabric
    """The fabric with administrative states only. Planning adds the states that agents observe."""
    jobs: tuple[JobRecord, ...]
    """In order of names."""
    demands: tuple[DemandRecord, ...]
    """In order of names."""
    overlay: Overlay = Overlay()
    rollback: Rollback | None = None


@dataclass(frozen=True, slots=True)
class PlanFacts:
    """Facts about a plan besides its content."""

    changed_count: int = 0
    """Number of flows whose path differs from that in the plan before."""
    solve_seconds: float = 0.0
    commit_time: float = 0.0
    """Set by the store."""
    causes: tuple[Cause, ...] = ()
    """What changed since the plan before, so that a new plan was needed."""


@dataclass(frozen=True, slots=True)
class PlanSummary:
    """Key figures of a plan, which are kept longer than its paths."""

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
    """The newest generation that each switch of a fabric holds completely, by FIB acks.

    Usually all switches hold the same one. So that one is stored, with the switches that differ.
    """

    generation: int = 0
    """Generation of every switch that is not in ``others``; 0 for none."""
    others: Mapping[str, int] = field(default_factory=dict)
    """Generations of the switches that hold another one, by id."""
    time: float = 0.0
    """When the last switch with entries came to hold the newest of these generations."""

    def of(self, switch: str) -> int:
        """Return the generation of one switch; 0 if it never acknowledged one."""
        return self.others.get(switch, self.generation)

    @property
    def newest(self) -> int:
        """The newest generation that any switch holds."""
        return max(self.generation, *self.others.values(), 0)

    def joined(self, told: Programmed) -> Programmed:
        """Return this merged with ``told``. The newer generation of each switch counts."""
        generation = max(self.generation, told.generation)
        reached = {s: max(self.of(s), told.of(s)) for s in {**self.others, **told.others}}
        others = {switch: at for switch, at in reached.items() if at != generation}
        if (generation, others) == (self.generation, self.others):
            return self
        time = max((self.newest, self.time), (told.newest, told.time))[1]
        return Programmed(generation, others, time)

    def on_others(self, come: Iterable[str], gone: Iterable[str]) -> Programmed:
        """Return the same after some switches were added to the fabric and others removed."""
        others = {**self.others, **dict.fromkeys(come, 0)}
        for switch in gone:
            others.pop(switch, None)
        return replace(self, others={s: at for s, at in others.items() if at != self.generation})


@dataclass(frozen=True, eq=False)
class Committed:
    """A committed plan and its program. Rows in the program are rows of ``plan.fabric``."""

    plan: Plan
    program: Program
    facts: PlanFacts
    programmed: Programmed
    """What switches hold: this plan, or earlier ones."""
    kept_for: int = 0
    """Newest version of the intent for which this plan, or an earlier one, was kept unchanged."""

    @property
    def answered_version(self) -> int:
        """Newest version of the intent that the plan serves, if it is the newest plan."""
        return max(self.program.intent_version, self.kept_for)

    @property
    def generation(self) -> int:
        """The generation of the plan and its program."""
        return self.program.generation

    def switches(self) -> tuple[str, ...]:
        """Return the ids of the switches that have entries in this plan, in order of rows."""
        ids = self.plan.fabric.structure.nodes.ids
        switch = self.program.entries.switch  # ascending
        first = np.flatnonzero(np.diff(switch, prepend=-1))
        return tuple(ids[row] for row in switch[first].tolist())

    def settled(self) -> tuple[int, tuple[str, ...]]:
        """Return the newest generation that all programmed switches have reached.

        Also return the ids of the switches that have not gone further, in order of rows. There are
        none if all hold this plan.
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
        """Number of ``switches``."""
        return int(np.count_nonzero(np.diff(self.program.entries.switch, prepend=-1)))

    def lacking(self) -> tuple[str, ...]:
        """Return those of ``switches`` that do not hold all of this plan yet, in order of rows."""
        if self.programmed.generation < self.generation:
            return tuple(s for s in self.switches() if self.programmed.of(s) < self.generation)
        structure, switch = self.plan.fabric.structure, self.program.entries.switch
        behind = [s for s, at in self.programmed.others.items() if at < self.generation]
        known = sorted(structure.index[s] for s in behind if s in structure.index)
        rows = np.array(known, dtype=np.int64)
        wanted = np.searchsorted(switch, rows, "right") > np.searchsorted(switch, rows)
        return tuple(structure.nodes.ids[row] for row in rows[wanted].tolist())

    def programmed_time(self) -> float:
        """Return when the last of ``switches`` acknowledged this plan; 0.0 while any is missing.

        For a plan without entries, it is the time of the commit.
        """
        if self.lacking():
            return 0.0
        return self.programmed.time if len(self.program.entries) else self.facts.commit_time
