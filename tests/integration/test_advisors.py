"""Questions of clients when several planning processes answer them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from heddle_controller.model.job import Job, Parallelism
from heddle_controller.model.plan import Plan
from heddle_controller.place.ask import Choices, PlacementAsk
from heddle_controller.planner.advice import recommend
from heddle_controller.planner.core import planning_engine
from heddle_controller.planner.port import Trial
from heddle_controller.planner.process import (
    Advisors,
    PlanningProcess,
    ProcessLimits,
    processor_seconds,
)
from heddle_controller.state.records import Intent, JobFacts, JobRecord, JobState
from heddle_emulator.topology import clos
from tests.support.direct_planner import DirectPlanner
from tests.support.waiting import PATIENCE, until

FABRIC = clos(leaves=8, spines=2, nics_per_leaf=16, nics_per_host=4)
HOSTS = tuple(sorted(FABRIC.structure.nics_of_host))
RUNNING = Job("running", HOSTS[::2], 4, Parallelism(tp=4))
JOB = Job("new", HOSTS[1:9:2], 4, Parallelism(tp=4))
INTENT = Intent(
    "f1", 1, 0.0, 1, FABRIC, (JobRecord(RUNNING, "e", 0.0, JobFacts("e", JobState.ACCEPTED)),), ()
)
WAITING = ProcessLimits(silence=PATIENCE, patience=PATIENCE)
"""Does not take a stopped process for one that hangs."""


@pytest.fixture
async def processes() -> AsyncIterator[list[PlanningProcess]]:
    """Two planning processes that are closed after the test."""
    made = [PlanningProcess(name, WAITING) for name in ("questions", "proofs")]
    yield made
    for process in made:
        await process.close()


async def _plan() -> Plan:
    planned = (await DirectPlanner(planning_engine(None)).plan(INTENT, None)).planned
    assert planned is not None
    return planned.plan


class LateChoice(DirectPlanner):
    """Does not choose hosts before a job is being tried."""

    def __init__(self) -> None:
        super().__init__(planning_engine(None))
        self._tried = asyncio.Event()

    async def choose(self, intent: Intent, ask: PlacementAsk, standing: Plan | None) -> Choices:
        """Implement ``Advisor.choose``."""
        await asyncio.wait_for(self._tried.wait(), PATIENCE)
        return await super().choose(intent, ask, standing)

    async def try_job(
        self,
        intent: Intent,
        job: Job,
        standing: Plan | None,
        *,
        settled: bool = False,
        hasty: bool = False,
    ) -> Trial:
        """Implement ``Advisor.try_job``."""
        self._tried.set()
        return await super().try_job(intent, job, standing, settled=settled, hasty=hasty)


@pytest.mark.parametrize("count", [2, 4, len(HOSTS) // 2])
async def test_the_first_fit_is_tried_while_others_are_looked_for(count: int) -> None:
    """A recommendation is the same as one that chooses first, also if there are too few hosts."""
    plan, job = await _plan(), replace(JOB, hosts=HOSTS[1 : 2 * count : 2])
    for free in (HOSTS[1::2], HOSTS[3::2]):
        ask = PlacementAsk(job, free, 3)
        late = LateChoice() if count <= len(free) else DirectPlanner(planning_engine(None))
        found = await recommend(late, INTENT, ask, plan)
        assert found == await recommend(DirectPlanner(planning_engine(None)), INTENT, ask, plan)
        assert bool(found.placements) == (count <= len(free))


async def test_a_question_goes_to_a_process_that_is_idle(processes: list[PlanningProcess]) -> None:
    """While a process is stopped in the middle of an answer, another one answers alike."""
    plan, advisors = await _plan(), Advisors(processes)
    await advisors.prepare("f1", plan)
    os.kill(processes[0].pid, signal.SIGSTOP)
    first = asyncio.create_task(advisors.try_job(INTENT, JOB, plan))
    await until(lambda: not processes[0].idle)
    second = await advisors.try_job(INTENT, JOB, plan)
    assert not first.done()
    os.kill(processes[0].pid, signal.SIGCONT)
    assert await first == second


async def test_a_question_waits_when_no_process_is_idle(processes: list[PlanningProcess]) -> None:
    """Questions beyond the number of processes are answered too, all alike."""
    plan, advisors = await _plan(), Advisors(processes)
    trials = await asyncio.gather(*[advisors.try_job(INTENT, JOB, plan) for _ in range(5)])
    assert trials == [trials[0]] * 5


async def test_a_recommendation_is_worked_at_by_two_processes(
    processes: list[PlanningProcess],
) -> None:
    """Both processes work, and the answer is that of one planner."""
    plan, advisors = await _plan(), Advisors(processes)
    await advisors.prepare("f1", plan)
    before = [processor_seconds(process.pid) for process in processes]
    ask = PlacementAsk(JOB, HOSTS[1::2], 5)
    found = await recommend(advisors, INTENT, ask, plan)
    assert found == await recommend(DirectPlanner(planning_engine(None)), INTENT, ask, plan)
    assert len(found.placements) > 1
    worked = [processor_seconds(process.pid) for process in processes]
    assert all(now > was for now, was in zip(worked, before, strict=True))
