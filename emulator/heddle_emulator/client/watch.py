"""What a controller reports about its plans and links to a client that watches it."""

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
    """A plan with its times in nanoseconds."""

    plan: plan_pb2.Plan
    """The plan in its last reported version."""
    committed: int
    programmed: int | None
    """When all its switches held it; None if they do not."""


@dataclass(slots=True, eq=False)
class ControllerView:
    """All that was reported, each item with its time of arrival in ns by the given clock.

    Controllers report when they committed a plan or learnt of a link's state, and these times are
    used. If their clocks are set wrong on purpose, the time of arrival at the watcher is used
    instead.
    """

    clock: Callable[[], int] = time.time_ns
    skewed: bool = False
    """Whether the controllers' clocks are wrong, so that their times are not used."""
    plans: list[tuple[int, plan_pb2.Plan]] = field(default_factory=list)
    links: list[tuple[int, fabric_pb2.Link]] = field(default_factory=list)
    latest: dict[int, plan_pb2.Plan] = field(default_factory=dict)
    """The last reported version of each plan, by generation."""
    down: set[LinkName] = field(default_factory=set)
    """Links that the controller believes to be down, by ends and key."""
    changed: int = 0
    """When the set of links believed down last changed, or the intent was last changed."""
    committed: int = 0
    """When the newest generation was first reported."""
    news: asyncio.Event = field(default_factory=asyncio.Event)
    """Set whenever something is reported."""

    def take_plan(self, plan: plan_pb2.Plan) -> None:
        """Record a plan that was committed or programmed."""
        now = self.clock()
        if plan.generation not in self.latest:
            self.committed = now
        self.plans.append((now, plan))
        self.latest[plan.generation] = plan
        self.news.set()

    def take_link(self, link: fabric_pb2.Link) -> None:
        """Record a link that is not up, or has changed."""
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
        """Drop the history; keep the links that are down, and the newest times."""
        self.plans.clear()
        self.links.clear()
        self.latest.clear()

    @property
    def plan(self) -> plan_pb2.Plan | None:
        """The last reported plan; None before the first."""
        return self.plans[-1][1] if self.plans else None

    @property
    def flows(self) -> int:
        """Number of flows of that plan, routed or not; -1 if there is no plan."""
        return self.plan.routed_count + self.plan.unrouted_count if self.plan else -1

    @property
    def is_fresh(self) -> bool:
        """Whether the newest plan is newer than the last change of links or of the intent."""
        return self.committed >= self.changed

    def generations(self) -> list[Generation]:
        """Return every plan once, in the order of generations."""
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
        """Return each change of a link once, with the time in ns when the controller knew it."""
        found: dict[tuple[str, str, str, int, int], tuple[int, fabric_pb2.Link]] = {}
        for heard, link in self.links:
            known = link.state_time.ToNanoseconds()
            key = (link.source, link.target, link.key, link.oper_state, known)
            found.setdefault(key, (heard if self.skewed else known, link))
        return list(found.values())


class Watcher:
    """Keeps a view up to date, whichever controller serves. Use it as ``async with``."""

    def __init__(self, client: Client, view: ControllerView, *, plans: bool = True) -> None:
        """Create a watcher; without ``plans`` it watches only links."""
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
