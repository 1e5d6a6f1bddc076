"""What the lab's controllers have told a watcher, and when each of it was.

They say themselves when they committed a plan or knew of a link, and are believed, unless a
drill puts their clocks wrong: then it was when the watcher heard of it.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from heddle.v1 import common_pb2, fabric_pb2, plan_pb2


@dataclass(frozen=True, slots=True)
class Generation:
    """A plan, and when what became of it, in nanoseconds."""

    plan: plan_pb2.Plan
    """As it was told of last."""
    committed: int
    programmed: int | None
    """When all its switches held it; None if they do not."""


@dataclass(slots=True)
class Seen:
    """What a watcher has been told, each with the nanosecond it came."""

    plans: list[tuple[int, plan_pb2.Plan]] = field(default_factory=list)
    links: list[tuple[int, fabric_pb2.Link]] = field(default_factory=list)
    down: set[tuple[str, str, str]] = field(default_factory=set)
    """Links that the controller believes down."""
    changed: int = 0
    """When it was last told of a link that was not so before."""
    skewed: bool = False
    """Whether controllers' clocks are not to be believed."""

    def plan(self, plan: plan_pb2.Plan) -> None:
        """A plan was committed or programmed."""
        self.plans.append((time.time_ns(), plan))

    def link(self, link: fabric_pb2.Link) -> None:
        """A link is not up, or has changed."""
        now, before = time.time_ns(), len(self.down)
        self.links.append((now, link))
        name = (link.source, link.target, link.key)
        if link.oper_state == common_pb2.STATE_DOWN:
            self.down.add(name)
        else:
            self.down.discard(name)
        if len(self.down) != before:
            self.changed = now

    def generations(self) -> list[Generation]:
        """Every plan once, in order of their generations."""
        found: dict[int, Generation] = {}
        for heard, plan in self.plans:
            before = found.get(plan.generation)
            committed = heard if self.skewed else plan.commit_time.ToNanoseconds()
            programmed = None
            if plan.HasField("programmed_time"):
                programmed = heard if self.skewed else plan.programmed_time.ToNanoseconds()
            if before is not None:
                committed = min(before.committed, committed)
                programmed = before.programmed or programmed
            found[plan.generation] = Generation(plan, committed, programmed)
        return [found[number] for number in sorted(found)]

    def reports(self) -> list[tuple[int, fabric_pb2.Link]]:
        """Changes of links, each once and when the controller knew, in ns."""
        found: dict[tuple[str, str, str, int, int], tuple[int, fabric_pb2.Link]] = {}
        for heard, link in self.links:
            known = link.state_time.ToNanoseconds()
            key = (link.source, link.target, link.key, link.oper_state, known)
            found.setdefault(key, (heard if self.skewed else known, link))
        return list(found.values())
