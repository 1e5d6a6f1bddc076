"""What a controller tells of its plans and links, as somebody who watches it hears it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Self

from heddle.v1 import common_pb2, fabric_pb2, plan_pb2
from heddle_emulator.client.api import Client

LinkName = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Generation:
    """A plan, and when what became of it, in nanoseconds."""

    plan: plan_pb2.Plan
    """As it was told of last."""
    committed: int
    programmed: int | None
    """When all its switches held it; None if they do not."""


@dataclass(slots=True, eq=False)
class ControllerView:
    """All that was told, each with the nanosecond it came by a clock of the caller's choice.

    Controllers say themselves when they committed a plan or knew of a link, and are believed,
    unless their clocks are put wrong on purpose: then it was when the watcher heard of it.
    """

    clock: Callable[[], int] = time.time_ns
    skewed: bool = False
    """Whether controllers' clocks are not to be believed."""
    plans: list[tuple[int, plan_pb2.Plan]] = field(default_factory=list)
    links: list[tuple[int, fabric_pb2.Link]] = field(default_factory=list)
    latest: dict[int, plan_pb2.Plan] = field(default_factory=dict)
    """By generation, each plan as it was told of last."""
    down: set[LinkName] = field(default_factory=set)
    """Links that the controller believes down, by ends and key."""
    changed: int = 0
    """When it was last told of a link that was not so before, or asked for something else."""
    committed: int = 0
    """When the newest generation was first told of."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever something is told."""

    def take_plan(self, plan: plan_pb2.Plan) -> None:
        """A plan was committed, or programmed."""
        now = self.clock()
        if plan.generation not in self.latest:
            self.committed = now
        self.plans.append((now, plan))
        self.latest[plan.generation] = plan
        self.news.set()

    def take_link(self, link: fabric_pb2.Link) -> None:
        """A link is not up, or has changed."""
        now, before = self.clock(), len(self.down)
        self.links.append((now, link))
        name = (link.source, link.target, link.key)
        if link.oper_state == common_pb2.STATE_DOWN:
            self.down.add(name)
        else:
            self.down.discard(name)
        if len(self.down) != before:
            self.changed = now
        self.news.set()

    def forget(self) -> None:
        """Drop what is over: all but the links that are down and the newest times."""
        self.plans.clear()
        self.links.clear()
        self.latest.clear()

    @property
    def plan(self) -> plan_pb2.Plan | None:
        """The plan that was told of last."""
        return self.plans[-1][1] if self.plans else None

    @property
    def flows(self) -> int:
        """The flows of that plan, routed or not; -1 where there is none."""
        return self.plan.routed_count + self.plan.unrouted_count if self.plan else -1

    @property
    def is_fresh(self) -> bool:
        """Whether the newest plan is newer than the last change of links or of what is wanted."""
        return self.committed >= self.changed

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


class Watcher:
    """Use as ``async with``: keeps a view up to date, whichever controller serves."""

    def __init__(self, client: Client, view: ControllerView, *, plans: bool = True) -> None:
        """Without ``plans`` only links are watched."""
        self._client, self._view, self._plans = client, view, plans
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        watches = [self._watch_links()]
        if self._plans:
            watches.insert(0, self._watch_plans())
        self._tasks = [asyncio.create_task(watch) for watch in watches]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch_plans(self) -> None:
        async with aclosing(self._client.watch_plans()) as plans:
            async for plan in plans:
                self._view.take_plan(plan)

    async def _watch_links(self) -> None:
        async with aclosing(self._client.watch_fabric()) as events:
            async for event in events:
                if event.HasField("link"):
                    self._view.take_link(event.link)
