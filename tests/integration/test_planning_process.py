"""The planning process killed, stopped, out of memory, orphaned; and nobody who waits for it."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from heddle.v1 import fabric_pb2, plan_pb2
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle.v1.plan_pb2_grpc import PlanServiceStub
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.planner.core import planning_engine
from heddle_controller.planner.port import PlannerLost
from heddle_controller.planner.process import PlanningProcess, ProcessLimits
from heddle_controller.state.records import Intent, JobFacts, JobRecord, JobState
from tests.support.direct_planner import DirectPlanner
from tests.support.operating import Controller, controlling
from tests.support.reconcile_world import ring, three_tiers
from tests.support.waiting import PATIENCE, wait_until

FABRIC = three_tiers()
FILES = 1100
LARGER = three_tiers(leaves=400)
"""The same hosts and more; to plan on it takes memory that a process does not have yet."""
JOB = ring("j1", "h0.0.0", "h1.0.0", "h0.1.0", "h1.1.0")
SETTINGS = ("--planner-silence-seconds", "2", "--rollout-seconds", "3600")
"""Nobody waits here until switches without an agent are given up."""
SILENT = ProcessLimits(silence=0.5, patience=PATIENCE)
"""Finds soon what does nothing at all; a process on a busy machine wants to do something."""


def intent(fabric: Fabric, version: int = 1) -> Intent:
    """One job on a fabric."""
    record = JobRecord(JOB, "e", 0.0, JobFacts("e", JobState.ACCEPTED))
    return Intent("f1", version, 0.0, 1, fabric, (record,), ())


def lossy(fabric: Fabric = FABRIC) -> Fabric:
    """The fabric without a link."""
    return fabric.with_links(dict.fromkeys(fabric.find_links("l0.0", "s0.0"), State.DOWN))


@pytest.fixture
async def planner() -> AsyncIterator[PlanningProcess]:
    """A planning process."""
    made = PlanningProcess("test", SILENT)
    yield made
    await made.close()


def runs(pid: int) -> bool:
    """Whether a process is there, and not just its exit status for whoever asks."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def kill(pid: int) -> None:
    """Killed, as by the kernel or an operator."""
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    """Hangs."""
    os.kill(pid, signal.SIGSTOP)


def starve(pid: int) -> None:
    """Whatever it asks for next, there is no memory."""
    resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))


@pytest.mark.parametrize("fails", [kill, stop, starve])
async def test_a_process_that_fails_is_replaced_and_knows_what_the_last_one_knew(
    planner: PlanningProcess, fails: object
) -> None:
    """The plan after it is the one that there would have been; whoever asked sees nothing of it."""
    direct = DirectPlanner(planning_engine(30.0))
    first = (await planner.plan(intent(FABRIC), None)).planned
    same = (await direct.plan(intent(FABRIC), None)).planned
    assert first is not None
    assert same is not None
    before = planner.pid
    assert callable(fails)
    fails(before)
    second = (await planner.plan(intent(lossy(LARGER), 2), first.plan)).planned
    expected = (await direct.plan(intent(lossy(LARGER), 2), same.plan)).planned
    assert second is not None
    assert expected is not None
    assert planner.pid not in {0, before}
    assert second.plan.paths.arcs.tolist() == expected.plan.paths.arcs.tolist()
    assert second.entries.primary.tolist() == expected.entries.primary.tolist()
    assert not runs(before)


async def test_a_process_that_takes_no_question_is_replaced(planner: PlanningProcess) -> None:
    """It is stopped, and the question is more than the pipe holds: names of a large fabric."""
    planner.start()
    before = planner.pid
    stop(before)
    found = (await planner.plan(intent(three_tiers(leaves=6_000)), None)).planned
    assert found is not None
    assert planner.pid not in {0, before}
    assert not runs(before)


async def test_a_process_lives_on_beside_many_sessions() -> None:
    """One that is started when the controller has over a thousand files open answers on."""
    async with AsyncExitStack() as stack:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * FILES)), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(FILES):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        planner = PlanningProcess("test", SILENT)
        stack.push_async_callback(planner.close)
        first = await planner.plan(intent(FABRIC), None)
        assert first.planned is not None
        pid = planner.pid
        second = await planner.plan(intent(lossy(), 2), first.planned.plan)
        assert second.planned is not None
        assert planner.pid == pid, "the process that made the first plan made the second, too"


async def test_a_question_that_a_process_dies_of_is_not_asked_again(
    planner: PlanningProcess,
) -> None:
    """Who asked is told; the next question is answered by another process."""
    first = (await planner.plan(intent(FABRIC), None)).planned
    assert first is not None
    kill(planner.pid)
    with pytest.raises(PlannerLost, match="try again"):
        await planner.what_if(intent(FABRIC), intent(lossy(), 2), first.plan)
    found = await planner.what_if(intent(FABRIC), intent(lossy(), 2), first.plan)
    assert found.before is first.plan
    assert found.after.fabric.link_state.tolist() == lossy().link_state.tolist()


async def test_who_goes_away_leaves_the_pipe_in_order(planner: PlanningProcess) -> None:
    """A caller that is cancelled in the middle costs the next one no more than the wait."""
    first = (await planner.plan(intent(FABRIC), None)).planned
    assert first is not None
    pid = planner.pid
    asked = asyncio.create_task(planner.what_if(intent(FABRIC), intent(lossy(), 2), first.plan))
    await asyncio.sleep(0)
    asked.cancel()
    again = await planner.plan(intent(lossy(), 2), first.plan)
    assert again.planned is not None
    assert planner.pid == pid


async def test_closing_ends_the_process(planner: PlanningProcess) -> None:
    """It is gone when ``close`` returns; whoever asks then is told so, and nothing is started."""
    await planner.plan(intent(FABRIC), None)
    pid = planner.pid
    await planner.close()
    assert not runs(pid)
    with pytest.raises(PlannerLost):
        await planner.plan(intent(FABRIC), None)
    assert planner.pid == 0


async def test_closing_waits_for_no_answer() -> None:
    """A process that is closed with a question in hand ends at once, not when it counts as hung."""
    planner = PlanningProcess("closed", ProcessLimits(silence=100 * PATIENCE))
    await planner.plan(intent(FABRIC), None)
    stop(planner.pid)
    asked = asyncio.create_task(planner.plan(intent(lossy()), None))
    await asyncio.sleep(0)  # the question is on its way
    async with asyncio.timeout(PATIENCE):
        await planner.close()
    with pytest.raises(PlannerLost):
        await asked


JOBS = """\
- job: j1
  hosts: [h0.0.0, h1.0.0]
  gpus_per_host: 1
  parallelism: {dp: 2}
"""
PARENT = """
import asyncio, sys
from heddle_controller.planner.process import PlanningProcess

async def main():
    planner = PlanningProcess("orphan")
    planner.start()
    print(planner.pid, file=sys.stderr, flush=True)
    await asyncio.sleep(3600)

asyncio.run(main())
"""


def test_it_dies_with_its_parent() -> None:
    """Even where that is killed and can tell nobody."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as parent:
        assert parent.stderr is not None
        pid = int(parent.stderr.readline())
        assert runs(pid)
        parent.kill()
    wait_until(lambda: not runs(pid), "the end of the planning process")


async def generation(plans: PlanServiceStub) -> int:
    """Of the newest plan, as a client reads it; the controller must answer."""
    asked: Any = plans.GetPlan  # of types that do not know of asyncio
    plan = await asked(plan_pb2.GetPlanRequest(name="fabrics/f1/plan"), timeout=PATIENCE)
    return int(plan.generation)


def planning_of(controller: Controller) -> int | None:
    """The process that plans, the first child of the controller; None while there is none."""
    parent = controller.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()
    return int(children[0]) if children else None


async def test_the_controller_answers_while_its_planning_process_is_replaced(
    tmp_path: Path,
) -> None:
    """A controller without a planner answers reads and writes; the plan comes afterwards.

    The process hangs: of all that it may do that takes longest to be found out.
    """
    file, larger = tmp_path / "f1.json.gz", tmp_path / "larger.json.gz"
    await asyncio.to_thread(save_fabric_file, FABRIC, file)
    await asyncio.to_thread(save_fabric_file, LARGER, larger)
    async with (
        controlling(tmp_path, *SETTINGS) as controller,
        controller.channel() as channel,
    ):
        fabrics, plans = FabricServiceStub(channel), PlanServiceStub(channel)
        done = await controller.does("fabric", "import", file, "--name", "f1")
        assert done.code == 0, done.err
        jobs = tmp_path / "jobs.yaml"
        jobs.write_text(JOBS, encoding="utf-8")
        done = await controller.does("job", "submit", jobs)
        assert done.code == 0, done.err
        words = ("job", "watch", "--until", "planned", "--seconds", f"{PATIENCE:g}")
        done = await controller.does(*words)
        assert done.code == 0, done.out + done.err
        before, old = await generation(plans), planning_of(controller)
        assert old is not None
        stop(old)
        done = await controller.does("fabric", "import", larger, "--name", "f1")
        assert done.code == 0, done.err
        async with asyncio.timeout(PATIENCE):
            while await generation(plans) == before:
                await fabrics.GetFabric(fabric_pb2.GetFabricRequest(name="fabrics/f1"))
        assert planning_of(controller) not in {old, None}
        assert not runs(old)
        assert await controller.ends() == 0
        assert "planning process replaced" in controller.log.read_text()
