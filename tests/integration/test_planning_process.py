"""The planning process when it is killed, hangs, runs out of memory, or loses its parent."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import socket
import subprocess
import sys
import time
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
from heddle_controller.planner import process
from heddle_controller.planner.core import planning_engine
from heddle_controller.planner.port import PlannerLost
from heddle_controller.planner.process import PlanningProcess, ProcessLimits
from heddle_controller.planner.protocol import Question, packed
from heddle_controller.state.records import Intent, JobFacts, JobRecord, JobState
from tests.support.direct_planner import DirectPlanner
from tests.support.operating import Controller, controlling
from tests.support.reconcile_world import ring, three_tiers
from tests.support.waiting import PATIENCE, wait_until

FABRIC = three_tiers()
FILES = 1100
LARGER = three_tiers(leaves=400)
"""A larger fabric with the same hosts, so that planning on it has to allocate memory."""
JOB = ring("j1", "h0.0.0", "h1.0.0", "h0.1.0", "h1.1.0")
SETTINGS = ("--planner-silence-seconds", "2", "--rollout-seconds", "3600")
"""A hanging planner is found soon; rollouts do not give up on switches, which have no agents."""
SILENT = ProcessLimits(silence=2.0, patience=PATIENCE)
"""Detects a hanging process soon; a process that is merely slow still uses some processor time."""


def intent(fabric: Fabric, version: int = 1) -> Intent:
    """Return an intent with the job ``JOB`` on a fabric."""
    record = JobRecord(JOB, "e", 0.0, JobFacts("e", JobState.ACCEPTED))
    return Intent("f1", version, 0.0, 1, fabric, (record,), ())


def lossy(fabric: Fabric = FABRIC) -> Fabric:
    """Return the fabric with one link down."""
    return fabric.with_links(dict.fromkeys(fabric.find_links("l0.0", "s0.0"), State.DOWN))


PATIENT = ProcessLimits(silence=PATIENCE, patience=PATIENCE)
"""Takes no process for one that hangs, as even an idle machine may halt all processes a while."""


@pytest.fixture
async def planner(request: pytest.FixtureRequest) -> AsyncIterator[PlanningProcess]:
    """A planning process that is closed after the test; a parameter replaces ``PATIENT``."""
    made = PlanningProcess("test", getattr(request, "param", PATIENT))
    yield made
    await made.close()


def runs(pid: int) -> bool:
    """Return whether a process runs; one that has ended but is not reaped yet does not count."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def over(pid: int) -> bool:
    """Return whether a child process has ended with all its threads."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def kill(pid: int) -> None:
    """Kill the process."""
    os.kill(pid, signal.SIGKILL)


def stop(pid: int) -> None:
    """Make the process hang."""
    os.kill(pid, signal.SIGSTOP)


def starve(pid: int) -> None:
    """Leave the process no memory beyond what it has."""
    resource.prlimit(pid, resource.RLIMIT_AS, (1 << 20, 1 << 20))


@pytest.mark.parametrize("planner", [SILENT], indirect=True, ids=["silent"])
@pytest.mark.parametrize("fails", [kill, stop, starve])
async def test_a_process_that_fails_is_replaced_and_knows_what_the_last_one_knew(
    planner: PlanningProcess, fails: object
) -> None:
    """The caller notices nothing, and the plan is the same as without the failure."""
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


@pytest.mark.parametrize("planner", [SILENT], indirect=True, ids=["silent"])
async def test_a_process_that_takes_no_question_is_replaced(planner: PlanningProcess) -> None:
    """A stopped process is replaced even if the question is larger than the pipe's buffer."""
    planner.start()
    before = planner.pid
    stop(before)
    found = (await planner.plan(intent(three_tiers(leaves=6_000)), None)).planned
    assert found is not None
    assert planner.pid not in {0, before}
    assert not runs(before)


async def test_a_halt_of_the_whole_machine_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that could not work, because nothing on the machine did, still gets to answer."""
    limits = ProcessLimits(silence=0.2)
    planner, looked = PlanningProcess("halted", limits), asyncio.Event()

    def idle(_: int) -> float:
        looked.set()
        return 0.0

    monkeypatch.setattr(process, "processor_seconds", idle)
    monkeypatch.setattr(process, "_wants_to_work", lambda _: False)

    async def answers_after_a_halt() -> str:
        await looked.wait()
        time.sleep(5 * limits.silence)  # noqa: ASYNC251 - the halt
        await asyncio.sleep(limits.silence / 10)
        return "the answer"

    planner.start()
    try:
        assert await planner._unless_hung(answers_after_a_halt(), PATIENCE) == "the answer"
        with pytest.raises(TimeoutError, match="did nothing"):
            await planner._unless_hung(asyncio.Event().wait(), PATIENCE)
    finally:
        await planner.close()


async def test_a_process_lives_on_beside_many_sessions() -> None:
    """A process started while the controller has over a thousand open files keeps working."""
    async with AsyncExitStack() as stack:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * FILES)), hard))
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(FILES):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        planner = PlanningProcess("test", PATIENT)
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
    """The caller gets ``PlannerLost``, and a new process answers the next question.

    If a process ends between two questions, the caller of the second one notices nothing.
    """
    first = (await planner.plan(intent(FABRIC), None)).planned
    assert first is not None
    starve(planner.pid)
    with pytest.raises(PlannerLost, match="try again"):
        await planner.what_if(intent(LARGER), intent(lossy(LARGER), 2), None)
    for _ in range(2):
        found = await planner.what_if(intent(FABRIC), intent(lossy(), 2), first.plan)
        assert found.before is first.plan
        assert found.after.fabric.link_state.tolist() == lossy().link_state.tolist()
        kill(planner.pid)
        wait_until(lambda: over(planner.pid), "its end")


async def test_a_planner_that_is_closed_replaces_no_process(planner: PlanningProcess) -> None:
    """A question that found the process ended, and was about to begin another, is refused."""
    await planner.plan(intent(FABRIC), None)
    kill(planner.pid)
    wait_until(lambda: over(planner.pid), "its end")
    asking = asyncio.create_task(planner.plan(intent(FABRIC, 2), None))
    while planner.pid:  # noqa: ASYNC110 - until the process that ended is put away
        await asyncio.sleep(0)
    await planner.close()
    with pytest.raises(PlannerLost):
        await asking
    assert planner.pid == 0


async def test_who_goes_away_leaves_the_pipe_in_order(planner: PlanningProcess) -> None:
    """After a caller is cancelled while it waits, the same process answers the next question."""
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
    """The process is gone when ``close`` returns; later calls raise and start no new process."""
    await planner.plan(intent(FABRIC), None)
    pid = planner.pid
    await planner.close()
    assert not runs(pid)
    with pytest.raises(PlannerLost):
        await planner.plan(intent(FABRIC), None)
    assert planner.pid == 0


async def test_closing_waits_for_no_answer() -> None:
    """Closing a process with an open question ends it at once, before it would count as hung."""
    planner = PlanningProcess("closed", ProcessLimits(silence=100 * PATIENCE))
    await planner.plan(intent(FABRIC), None)
    stop(planner.pid)
    asked = asyncio.create_task(planner.plan(intent(lossy()), None))
    await asyncio.sleep(0)  # the question is on its way
    async with asyncio.timeout(PATIENCE):
        await planner.close()
    with pytest.raises(PlannerLost):
        await asked


async def test_an_interrupt_at_the_terminal_is_for_the_controller_alone() -> None:
    """Ctrl-C goes to the controller's process group, where a planning process is never in."""
    planner = PlanningProcess("apart")
    planner.start()
    try:
        assert os.getpgid(planner.pid) == planner.pid != os.getpgrp()
    finally:
        await planner.close()


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
    """The planning process ends even when its parent is killed without warning."""
    with subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as parent:
        assert parent.stderr is not None
        pid = int(parent.stderr.readline())
        assert runs(pid)
        parent.kill()
    wait_until(lambda: not runs(pid), "the end of the planning process")


def test_it_ends_without_a_word_when_nobody_takes_its_answer() -> None:
    """A controller that was killed after a question leaves no traceback of another program."""
    mine, its = socket.socketpair()
    program = [sys.executable, "-m", "heddle_controller.planner.core"]
    given = [str(its.fileno()), "30.0", "headroom", str(os.getpid())]
    with its:
        asked = subprocess.Popen(
            [*program, *given], pass_fds=[its.fileno()], stderr=subprocess.PIPE, text=True
        )
    with asked, mine:
        mine.sendall(packed(Question("nothing", "f1", {}))[0])
        mine.close()
        told = asked.communicate(timeout=PATIENCE)[1]
    assert (asked.returncode, told) == (0, "")


async def generation(plans: PlanServiceStub) -> int:
    """Return the generation of the newest plan as a client reads it; the controller must answer."""
    asked: Any = plans.GetPlan  # its type does not know asyncio
    plan = await asked(plan_pb2.GetPlanRequest(name="fabrics/f1/plan"), timeout=PATIENCE)
    return int(plan.generation)


def planning_of(controller: Controller) -> int | None:
    """Return the planning process's id, the controller's first child; None if there is none."""
    parent = controller.process.pid
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii").split()
    return int(children[0]) if children else None


async def test_the_controller_answers_while_its_planning_process_is_replaced(
    tmp_path: Path,
) -> None:
    """Without a planner, the controller answers reads and writes; the plan comes later.

    The process hangs, because of all its failures this one takes longest to detect.
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
            # A plan that the advisor had begun before may come first.
            while planning_of(controller) in {old, None} or await generation(plans) == before:
                await fabrics.GetFabric(fabric_pb2.GetFabricRequest(name="fabrics/f1"))
        assert not runs(old)
        assert await controller.ends() == 0
        assert "planning process replaced" in controller.log.read_text()
