"""What happened to a fabric, as far as it shows from one look to the next.

Only differences between two looks are told: who looks seldom sees several changes as one. A new
plan names the events since the plan before: what it may be the answer to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

import numpy as np

from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.state.records import FabricRecord, JobState

_KEPT = 200
"""Events of one fabric that are remembered."""
_NAMED = 5
"""Things that one event names."""


@dataclass(frozen=True, slots=True)
class Event:
    """One change."""

    number: int
    time: float
    """When it was seen, Unix seconds."""
    kind: str
    """"link", "switch", "job", "plan", "tables", "agent", "leader", "store" or "fabric"."""
    text: str
    because: tuple[int, ...] = ()
    """Numbers of the events that came since the plan before; plans only."""


@dataclass(frozen=True, slots=True, eq=False)
class Sight:
    """A fabric at one moment."""

    record: FabricRecord
    down: frozenset[int]
    """Link rows that agents say are down."""
    jobs: Mapping[str, JobState]
    agents: AbstractSet[str]
    plan: tuple[int, int]
    """Epoch and generation."""
    moved: int
    lacking: int
    """Switches that do not hold the plan yet."""
    leader: str
    stale: bool


@dataclass(slots=True)
class EventLog:
    """The newest events of one fabric."""

    events: deque[Event] = field(default_factory=lambda: deque(maxlen=_KEPT))
    number: int = 0
    _planned: int = 0
    """Number of the newest plan's event."""

    def add(self, now: float, kind: str, text: str) -> None:
        """Remember one."""
        self.number += 1
        because: tuple[int, ...] = ()
        if kind == "plan":
            since = [one for one in self.events if one.number > self._planned]
            causes = [one.number for one in since if one.kind in {"link", "switch", "job"}]
            because, self._planned = tuple(causes[-_NAMED:]), self.number
        self.events.append(Event(self.number, now, kind, text, because))

    def compare(self, before: Sight | None, after: Sight, now: float) -> None:
        """Remember what is different."""
        if before is None:
            self.add(now, "fabric", "this controller began to look")
            return
        if before.record.revision != after.record.revision:
            self.add(now, "fabric", "the fabric was put anew")
        else:
            self._states(before, after, now)
        self._jobs(before, after, now)
        self._agents(before, after, now)
        if before.plan != after.plan:
            moved = f"{after.moved} flows moved" if after.moved != 1 else "1 flow moved"
            self.add(now, "plan", f"plan {after.plan[1]} was committed; {moved}")
        if after.plan[1] and not after.lacking and (before.lacking or before.plan != after.plan):
            self.add(now, "tables", f"every switch holds plan {after.plan[1]}")
        if before.leader != after.leader and after.leader:
            self.add(now, "leader", f"{after.leader} leads")
        if before.stale != after.stale:
            lost = "the store cannot be reached" if after.stale else "the store is back"
            self.add(now, "store", lost)

    def _states(self, before: Sight, after: Sight, now: float) -> None:
        fabric = after.record.fabric
        for rows, one, many in (
            (after.down - before.down, "is down", "are down"),
            (before.down - after.down, "is up again", "are up again"),
        ):
            labels = [fabric.link_name(row) for row in sorted(rows)]
            for text in _told(labels, one, f"links {many}"):
                self.add(now, "link", text)
        self._admin(before.record.fabric, fabric, now)

    def _admin(self, before: Fabric, after: Fabric, now: float) -> None:
        for row in np.flatnonzero(before.link_state != after.link_state)[:_NAMED].tolist():
            state = State(int(after.link_state[row])).name
            self.add(now, "link", f"{after.link_name(row)} was set {state} by an operator")
        kinds, ids = after.structure.nodes.kind, after.structure.nodes.ids
        for row in np.flatnonzero(before.node_state != after.node_state)[:_NAMED].tolist():
            if kinds[row] != NodeKind.NIC:
                state = State(int(after.node_state[row])).name
                self.add(now, "switch", f"{ids[row]} was set {state} by an operator")

    def _jobs(self, before: Sight, after: Sight, now: float) -> None:
        changed = [
            f"job {name} is {state.name}"
            for name, state in after.jobs.items()
            if before.jobs.get(name) != state
        ]
        changed += [f"job {name} ended" for name in before.jobs if name not in after.jobs]
        for text in changed[:_NAMED]:
            self.add(now, "job", text)
        if len(changed) > _NAMED:
            self.add(now, "job", f"and {len(changed) - _NAMED} more jobs changed")

    def _agents(self, before: Sight, after: Sight, now: float) -> None:
        if before.agents is after.agents:
            return
        for names, one, many in (
            (after.agents - before.agents, "has a session", "have sessions"),
            (before.agents - after.agents, "has no session any more", "have no session any more"),
        ):
            owners = [f"the agent of {name}" for name in sorted(names)]
            for text in _told(owners, one, f"agents {many}"):
                self.add(now, "agent", text)


def _told(names: list[str], one: str, many: str) -> list[str]:
    """A sentence for each; only how many there are where there are many."""
    return [f"{name} {one}" for name in names] if len(names) <= _NAMED else [f"{len(names)} {many}"]
