"""How often a rollout evaluates while the answers of many switches come one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from typing_extensions import override

from heddle_controller.reconcile.rollout.driver import Rollout, RolloutSettings
from heddle_controller.reconcile.rollout.report import Target
from heddle_controller.state.records import PlanFacts
from heddle_controller.store.embedded import open_embedded
from tests.support.reconcile_gateway import MemoryGateway, all_switches
from tests.support.reconcile_world import Figures
from tests.support.store_samples import clos, plan_of, program_of
from tests.support.waiting import until


class HandClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = 0.0
        self._moved = asyncio.Condition()

    def now(self) -> float:
        """Implement ``Clock.now``."""
        return self.time

    def monotonic(self) -> float:
        """Implement ``Clock.monotonic``."""
        return self.time

    async def sleep(self, seconds: float) -> None:
        """Implement ``Clock.sleep``."""
        end = self.time + seconds
        async with self._moved:
            await self._moved.wait_for(lambda: self.time >= end)

    async def move(self, seconds: float) -> None:
        """Advance the clock and let those who waited go on."""
        async with self._moved:
            self.time += seconds
            self._moved.notify_all()
        await turns()


class SlowGateway(MemoryGateway):
    """A gateway with which each evaluation takes a second."""

    def __init__(self, clock: HandClock, switches: int) -> None:
        super().__init__("f1", all_switches(clos(leaves=switches - 2)))
        self.looks = 0
        self._clock = clock

    @override
    def held_aside(self, fabric: str) -> Mapping[str, str]:
        self.looks += 1  # asked once in each evaluation
        self._clock.time += 1.0
        return super().held_aside(fabric)


async def turns() -> None:
    """Let every task go on that waits for nothing in this test."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_answers_that_come_one_by_one_are_looked_at_together(tmp_path: Path) -> None:
    """Between two evaluations passes four times the time of one, unless all answers are in."""
    clock, fabric = HandClock(), clos(leaves=6)
    gateway = SlowGateway(clock, switches=8)
    store = await open_embedded(tmp_path / "store")
    await store.put_fabric("f1", fabric)
    epoch = await store.acquire_leadership("test")
    plan = plan_of(fabric)
    committed = await store.commit(
        "f1",
        epoch=epoch,
        expected_generation=0,
        plan=plan,
        program=program_of(plan, epoch, 1),
        facts=PlanFacts(changed_count=1, solve_seconds=0.25),
    )
    names = list(gateway.switches)
    for switch in gateway.switches.values():
        switch.answers.clear()
    gateway.connect(*names)
    settings = RolloutSettings(patience=1e6)
    rollout = Rollout(
        "f1",
        epoch,
        {},
        store=store,
        gateway=gateway,
        clock=clock,
        metrics=Figures(),
        settings=settings,
    )
    work = asyncio.create_task(rollout.run())
    rollout.aim(Target(committed))
    await until(lambda: gateway.looks == 1, "every switch to be asked what it holds")
    await turns()
    for name in names[:-1]:
        gateway.switches[name].answers.set()
        questions = gateway.switches[name].questions
        await until(questions.copy, f"{name} to answer")
        await turns()
        await clock.move(3.9 / len(names))
        assert gateway.looks == 1, f"looked again for {name} alone"
    await clock.move(4.0)
    await until(lambda: gateway.looks == 2, "what has come to be looked at")
    gateway.switches[names[-1]].answers.set()  # the clock stands still from here on
    await until(lambda: gateway.switches["l0"].pushes, "the entry to be pushed")
    assert work.cancel()
    await asyncio.wait([work])
    await store.close()
