"""A planner that runs in the calling process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from heddle_controller.model.job import Iteration, Job
from heddle_controller.model.plan import Certificate, Plan, Turn
from heddle_controller.place.ask import Choices, PlacementAsk
from heddle_controller.planner.core import PlanningCore
from heddle_controller.planner.planning import Engine, Planned
from heddle_controller.planner.port import PlanAnswer, Trial, WhatIf
from heddle_controller.state.records import Intent


class DirectPlanner:
    """Calls a core in a thread, one event after another; questions do not wait for events."""

    def __init__(self, engine: Engine) -> None:
        self._core, self._advice = PlanningCore(engine), PlanningCore(engine)
        self._planning, self._asking = asyncio.Lock(), asyncio.Lock()

    async def plan(
        self, intent: Intent, standing: Plan | None, newest: Plan | None = None
    ) -> PlanAnswer:
        """Implement ``Planner.plan``."""
        async with self._planning:
            answer = await asyncio.to_thread(self._core.plan, intent, standing, newest)
            await asyncio.to_thread(self._core.make_ready, intent.name)
            return answer

    async def prepare(self, fabric: str, standing: Plan) -> None:
        """Implement ``Planner.prepare``."""
        async with self._planning:
            await asyncio.to_thread(self._core.prepare, fabric, standing)

    async def certify(self, fabric: str, standing: Plan) -> Certificate:
        """Implement ``Planner.certify``."""
        async with self._asking:
            return await asyncio.to_thread(self._advice.certify, fabric, standing)

    async def reoptimise(
        self, fabric: str, standing: Plan, worth_moving: float
    ) -> Planned | Certificate | None:
        """Implement ``Planner.reoptimise``."""
        async with self._asking:
            return await asyncio.to_thread(self._advice.reoptimise, fabric, standing, worth_moving)

    async def turns(
        self,
        fabric: str,  # noqa: ARG002 - a port
        standing: Plan,
        iterations: Sequence[Iteration],
    ) -> tuple[Turn, ...]:
        """Implement ``Planner.turns``."""
        async with self._asking:
            return await asyncio.to_thread(self._advice.turns, standing, iterations)

    async def what_if(self, intent: Intent, supposed: Intent, standing: Plan | None) -> WhatIf:
        """Implement ``Planner.what_if``."""
        async with self._asking:
            return await asyncio.to_thread(self._advice.what_if, intent, supposed, standing)

    async def choose(self, intent: Intent, ask: PlacementAsk, standing: Plan | None) -> Choices:
        """Implement ``Planner.choose``."""
        async with self._asking:
            return await asyncio.to_thread(self._advice.choose, intent, ask, standing)

    async def try_job(
        self,
        intent: Intent,
        job: Job,
        standing: Plan | None,
        *,
        settled: bool = False,
        hasty: bool = False,
    ) -> Trial:
        """Implement ``Planner.try_job``."""
        async with self._asking:
            return await asyncio.to_thread(
                self._advice.try_job, intent, job, standing, settled=settled, hasty=hasty
            )
