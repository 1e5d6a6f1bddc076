"""What a controller says of its plans and links, as a drill hears it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from heddle.v1 import common_pb2, fabric_pb2, plan_pb2
from heddle_emulator.client import Client, ClientError

AGAIN_SECONDS = 0.05
EVERYBODY = 1 << 30
BELATED_SECONDS = 2.0
"""After which a plan that was told of before a change of links is believed to know of it: who
watches anew hears of both as they are, in any order."""
LinkName = tuple[str, str, str]


@dataclass(slots=True)
class Heard:
    """The newest of everything, and when it came."""

    plan: plan_pb2.Plan | None = None
    plans: dict[int, plan_pb2.Plan] = field(default_factory=dict)
    """By generation, each as it was last told of."""
    down: set[LinkName] = field(default_factory=set)
    """Links that the controller believes down, by ends and key."""
    changed: float = 0.0
    """When a link was last told of that changed its state, monotonic."""
    committed: float = 0.0
    """When the newest generation was first told of."""

    def take_plan(self, plan: plan_pb2.Plan) -> None:
        """A plan was committed, or all switches hold it."""
        if plan.generation not in self.plans:
            self.committed = time.monotonic()
        self.plan = self.plans[plan.generation] = plan

    def take_link(self, link: fabric_pb2.Link) -> None:
        """A link is not up, or has changed."""
        name, before = (link.source, link.target, link.key), len(self.down)
        if link.oper_state == common_pb2.STATE_DOWN:
            self.down.add(name)
        else:
            self.down.discard(name)
        if len(self.down) != before:
            self.changed = time.monotonic()

    @property
    def flows(self) -> int:
        """Of the newest plan, routed or not."""
        return self.plan.routed_count + self.plan.unrouted_count if self.plan else 0

    @property
    def settled(self) -> bool:
        """Whether the newest plan is newer than the last change, and all switches hold it."""
        return self.lacking == 0

    @property
    def is_fresh(self) -> bool:
        """Whether the newest plan is newer than the last change of links or wants."""
        late = time.monotonic() - self.changed >= BELATED_SECONDS
        return self.committed >= self.changed or late

    @property
    def lacking(self) -> int:
        """Switches that do not hold the newest plan, or what there is while it is too old."""
        if self.plan is None:
            return 0
        if not self.is_fresh:
            return EVERYBODY
        if self.plan.HasField("programmed_time"):
            return 0
        return max(self.plan.switch_count - self.plan.programmed_switch_count, 1)


class Watcher:
    """Keeps ``heard`` up to date for as long as it is entered, whoever serves."""

    def __init__(self, client: Client) -> None:
        self.heard = Heard()
        self._client = client
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Watch from now on."""
        self._tasks = [
            asyncio.create_task(self._watch(self._client.watch_plan, self.heard.take_plan)),
            asyncio.create_task(self._watch(self._client.watch_links, self.heard.take_link)),
        ]

    async def stop(self) -> None:
        """Watch no more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _watch(
        self, watch: Callable[[Any], Coroutine[Any, Any, None]], take: Callable[[Any], None]
    ) -> None:
        """Watch again whenever the stream ends: the controller may die and come back."""
        while True:
            with contextlib.suppress(ClientError):
                await watch(take)
            await asyncio.sleep(AGAIN_SECONDS)
