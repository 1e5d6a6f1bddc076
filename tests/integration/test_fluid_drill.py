"""Drills in virtual time: what a fault costs follows from the given times by arithmetic."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from heddle.v1 import plan_pb2
from heddle_emulator.client import ControllerView
from heddle_emulator.drill.fluid.harness import SETTLE_SECONDS, ControllerHarness
from heddle_emulator.drill.fluid.world import FluidWorld
from heddle_emulator.drill.load import load_scenario
from heddle_emulator.drill.runner import DrillRunner
from heddle_emulator.fleet import ControllerPool, FaultInjectingController, Held
from heddle_emulator.report.evidence import Mark, Story
from tests.support.waiting import PATIENCE, wait_until

PROGRAM = Path(sys.executable).with_name("heddle-emulator")
HEAD = """drill: sums
proves: sums
worlds: [fluid]
fabric: {clos: {leaves: 2, spines: 2, nics_per_leaf: 1, nics_per_host: 1}}
control: {detect: 2ms, notice: 1ms, report: 1ms, plan: 20ms, push: 5ms, bgp: 50ms}
"""
DEMAND = """demands: [{from: l0-h0-n0, to: l1-h0-n0, gbps: 100}]
probes: [{probe: one, from: l0-h0-n0, to: l1-h0-n0, rate: 1000}]
"""
JOB = """jobs:
  - job: pair
    hosts: [l0-h0, l1-h0]
    gpus_per_host: 1
    parallelism: {dp: 2}
    collectives: [{operation: send_recv, group: world, bytes: 250MB}]
    compute: 5ms
probes: [{probe: one, from: l0-h0-n0, to: l1-h0-n0, rate: 1000}]
"""
EXPECT = "\nexpect: [{stranded: all, most: 0}]\n"


@pytest.fixture(scope="module")
def runner() -> Iterator[DrillRunner]:
    """A runner shared by the tests in which the controller is not harmed."""
    with DrillRunner({"fluid": FluidWorld()}) as shared:
        yield shared


def _play(
    runner: DrillRunner, folder: Path, traffic: str, steps: str, settle: str = "300ms"
) -> tuple[Mapping[tuple[str, str], float], Story]:
    """Play a drill once; return its values by (measure, of), and its story."""
    path = folder / "sums.yaml"
    path.write_text(f"{HEAD}{traffic}settle: {settle}\ntimeline:\n{steps}{EXPECT}")
    verdict = runner.play(load_scenario(path), "fluid", 1)
    assert not verdict.fault, verdict.fault
    (story,) = verdict.stories
    return {(measure, of): series[0] for (_, measure, of), series in verdict.values.items()}, story


def test_a_lost_link_costs_what_its_times_say(runner: DrillRunner, tmp_path: Path) -> None:
    """A flow loses 100 Gbit/s until a loss far away is detected and its notice has arrived."""
    values, story = _play(runner, tmp_path, DEMAND, "  - {at: 100ms, cut: hop 3 of one}\n")
    assert values["recovered", "one"] == pytest.approx(0.003)
    assert values["lost_gbit", "one"] == pytest.approx(100 * 0.003)
    assert values["lost", "one"] == pytest.approx(1000 * 0.003)
    assert values["delivered", "all"] == pytest.approx(1 - 0.003 / 0.4)
    assert values["detected", ""] == pytest.approx(0.002)
    assert values["notified", ""] == pytest.approx(0.003)
    assert values["solved", ""] == pytest.approx(0.023)
    assert values["slowest during", "all"] == 0
    assert values["slowest after", "all"] == 1
    assert values["stranded", "all"] == 0
    marks = [event.mark for event in story.events]
    assert marks.index(Mark.FAULT) < marks.index(Mark.DETECTED) < marks.index(Mark.RECOVERED)
    assert [moment.title for moment in story.maps[0].moments] == ["before", "during", "after"]


def test_late_news_of_a_plan_changes_nothing(
    runner: DrillRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that the watch tells of long after its pushes is still in the results, on time."""
    take = ControllerView.take_plan

    def later(view: ControllerView, plan: plan_pb2.Plan) -> None:
        asyncio.get_running_loop().call_later(0.4, take, view, plan)

    monkeypatch.setattr(ControllerView, "take_plan", later)
    values, _ = _play(runner, tmp_path, DEMAND, "  - {at: 100ms, cut: hop 3 of one}\n")
    assert values["solved", ""] == pytest.approx(0.023)
    assert values["recovered", "one"] == pytest.approx(0.003)


def test_a_near_one_needs_no_notice(runner: DrillRunner, tmp_path: Path) -> None:
    """The loss of a leaf's own link costs the detection time only, even with its agent dead."""
    steps = "  - {at: 50ms, kill: l0}\n  - {at: 100ms, cut: hop 2 of one}\n"
    values, _ = _play(runner, tmp_path, DEMAND, steps)
    assert values["recovered", "one"] == pytest.approx(0.002)
    assert values["stranded", "all"] == 0


def test_what_an_agent_slept_through_leaves_no_trace(runner: DrillRunner, tmp_path: Path) -> None:
    """Cables that an agent did not see cut are used again once it goes on and they are mended."""
    steps = """  - {at: 50ms, hang: l0}
  - {at: 100ms, cut: links of l0}
  - {at: 390ms, mend: links of l0}
  - {at: 400ms, resume: l0}
"""
    values, _ = _play(runner, tmp_path, DEMAND, steps)
    assert values["stranded", "one"] == 0
    assert values["slowest after", "all"] == 1


def test_a_silent_link_and_a_slow_one(runner: DrillRunner, tmp_path: Path) -> None:
    """A fifth of all packets is lost while links drop a fifth; a slow link gives its speed."""
    steps = """  - {at: 100ms, silence: l0 to s0, share: 0.2}
  - {at: 100ms, silence: l0 to s1, share: 0.2}
  - {at: 200ms, mend: all}
  - {at: 300ms, degrade: l1-h0-n0 to l1, gbps: 40}
"""
    values, _ = _play(runner, tmp_path, DEMAND, steps, settle="100ms")
    assert values["lost", "one"] == pytest.approx(0.2 * 1000 * 0.1)
    assert values["slowest during", "one"] == pytest.approx(0.4)
    assert values["slowest after", "one"] == pytest.approx(0.4)
    assert values["stranded", "all"] == 0


def test_a_job_waits_for_as_long_as_its_way_is_dead(runner: DrillRunner, tmp_path: Path) -> None:
    """A lost link makes one iteration of a job longer by 3 ms, the time until the repair.

    An iteration takes 10 ms: 5 ms to compute, and 5 ms for 250 MB at 400 Gbit/s.
    """
    values, _ = _play(runner, tmp_path, JOB, "  - {at: 106ms, cut: hop 3 of one}\n")
    assert values["iteration during", "pair"] == pytest.approx(1 + 0.003 / 0.010, rel=1e-6)
    assert values["iteration after", "pair"] == pytest.approx(1)
    assert values["lost_gbit", "one"] == pytest.approx(400 * 0.003)


def test_a_job_that_is_done_sends_no_more(runner: DrillRunner, tmp_path: Path) -> None:
    """After its last iteration a job leaves all room to a demand, also if a link then degrades.

    The link carries 400 Gbit/s, the demand asks for 300 and the job for 400. The job is done before
    the link is degraded to 200.
    """
    fabric = "clos: {leaves: 2, spines: 1, nics_per_leaf: 2, nics_per_host: 1}"
    demand = "demands: [{from: l0-h1-n0, to: l1-h1-n0, gbps: 300}]\n"
    job = JOB.partition("probes:")[0].replace("compute: 5ms", "iterations: 3") + demand
    path = tmp_path / "done.yaml"
    old = "clos: {leaves: 2, spines: 2, nics_per_leaf: 1, nics_per_host: 1}"
    step = "timeline: [{at: 200ms, degrade: l0 to s0, gbps: 200}]\n"
    path.write_text(f"{HEAD.replace(old, fabric)}{job}{step}{EXPECT}")
    verdict = runner.play(load_scenario(path), "fluid", 1)
    values = {(name, of): series[0] for (_, name, of), series in verdict.values.items()}
    assert values["makespan", "pair"] < 0.2
    assert values["slowest", "pair"] < 1
    assert values["slowest before", "demands"] == 1
    assert values["utilization before", ""] == pytest.approx(300 / 400)
    assert values["slowest during", "demands"] == pytest.approx(200 / 300)
    assert values["carried during", "all"] == pytest.approx(200 / 300)
    assert values["slowest during", "pair"] == 1


def test_a_demand_loses_what_it_asks_for(runner: DrillRunner, tmp_path: Path) -> None:
    """While its path is dead, a demand loses its whole offer, also if it got less before."""
    traffic = DEMAND.replace("gbps: 100}", "gbps: 600}")
    values, _ = _play(runner, tmp_path, traffic, "  - {at: 100ms, cut: hop 3 of one}\n")
    assert values["slowest before", "demands"] == pytest.approx(400 / 600)
    assert values["lost_gbit", "demands"] == pytest.approx(600 * 0.003)


def test_a_job_that_is_finished_after_its_last_iteration_has_a_makespan(
    runner: DrillRunner, tmp_path: Path
) -> None:
    """Three iterations of 10 ms take 30 ms, whether or not the job is then finished."""
    job = JOB.replace("compute: 5ms", "compute: 5ms\n    iterations: 3")
    values, _ = _play(runner, tmp_path, job, "  - {at: 100ms, finish: pair}\n")
    assert values["makespan", "pair"] == pytest.approx(0.030)


def test_a_job_that_is_finished_before_its_last_iteration_has_no_makespan(
    runner: DrillRunner, tmp_path: Path
) -> None:
    """What a job would have needed is not measured if a step ends it in its second iteration."""
    job = JOB.replace("compute: 5ms", "compute: 5ms\n    iterations: 3")
    values, _ = _play(runner, tmp_path, job, "  - {at: 15ms, finish: pair}\n")
    assert ("makespan", "pair") not in values


def test_a_plan_that_moves_nothing_stands_once_it_is_committed(
    runner: DrillRunner, tmp_path: Path
) -> None:
    """A plan that changes no entry is acknowledged when it is committed, not when it is made.

    The flow stays below its leaf, which loses a link to a spine: 2 ms until the loss is seen, 1 ms
    for the report and 20 ms for the plan, and there is nothing to push.
    """
    fabric = "clos: {leaves: 2, spines: 2, nics_per_leaf: 2, nics_per_host: 1}"
    old = "clos: {leaves: 2, spines: 2, nics_per_leaf: 1, nics_per_host: 1}"
    demand = "demands: [{from: l0-h0-n0, to: l0-h1-n0, gbps: 100}]\n"
    path = tmp_path / "local.yaml"
    step = "timeline: [{at: 100ms, cut: l0 to s0}]\nsettle: 300ms\n"
    path.write_text(f"{HEAD.replace(old, fabric)}{demand}{step}{EXPECT}")
    verdict = runner.play(load_scenario(path), "fluid", 1)
    values = {(name, of): series[0] for (_, name, of), series in verdict.values.items()}
    assert values["moved", ""] == 0
    for stage in ("solved", "acked", "converged"):
        assert values[stage, ""] == pytest.approx(0.023)
    (story,) = verdict.stories
    marks = [event.mark for event in sorted(story.events, key=lambda event: event.at)]
    assert marks.index(Mark.PLAN) < marks.index(Mark.ACK)


def test_replaced_and_finished(runner: DrillRunner, tmp_path: Path) -> None:
    """A job that ends sends nothing more, and its flows leave the plan."""
    values, story = _play(runner, tmp_path, JOB, "  - {at: 100ms, finish: pair}\n")
    assert values["stranded", "all"] == 0
    assert values["utilization before", ""] == pytest.approx(1)
    assert values["utilization after", ""] == 0
    (line,) = [line for line in story.charts[0].lines if line.name == "pair"]
    late = [value for at, value in zip(line.times, line.values, strict=True) if at > 0.11]
    assert late
    assert not any(late)


def test_plans_may_take_as_long_as_they_did(runner: DrillRunner, tmp_path: Path) -> None:
    """With ``measured`` a plan takes its real time; what agents do takes the given times."""
    path = tmp_path / "measured.yaml"
    head = HEAD.replace("plan: 20ms, push: 5ms", "measured: true")
    step = "  - {at: 100ms, cut: hop 3 of one}\n"
    path.write_text(f"{head}{DEMAND}settle: 30s\ntimeline:\n{step}{EXPECT}")
    found = runner.play(load_scenario(path), "fluid", 1).values
    assert list(found["", "recovered", "one"]) == [pytest.approx(0.003)]
    (solved,), (acked,) = found["", "solved", ""], found["", "acked", ""]
    assert 0.003 < solved <= acked
    assert found["", "stranded", "all"] == [0]


def test_switches_that_wait_for_others_hold_up_no_run(
    runner: DrillRunner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run goes on while some switches wait for others whose pushes are due later.

    If it waited until its time is up, the controller would give those pushes up.
    """
    settle, took = ControllerHarness.settle, list[float]()

    async def timed(harness: ControllerHarness) -> list[Held]:
        begin = time.monotonic()
        held = await settle(harness)
        took.append(time.monotonic() - begin)
        return held

    monkeypatch.setattr(ControllerHarness, "settle", timed)
    path = tmp_path / "due.yaml"
    path.write_text("""drill: due
proves: pushes of two moments
worlds: [fluid]
fabric: {clos: {leaves: 3, spines: 2, nics_per_leaf: 4, nics_per_host: 2, parallel: 2}}
demands: [{pattern: shift, gbps: 100}]
timeline:
  - {at: 100ms, cut: l0 to s0}
  - {at: 601ms, crash: s0}
  - {at: 1101ms, reboot: s0}
  - {at: 1102ms, mend: l0 to s0}
expect: [{stranded: all, most: 0}, {converged: plan, most: 300ms}]
""")
    verdict = runner.play(load_scenario(path), "fluid", 1)
    assert verdict.held, [*map(str, verdict.findings), verdict.fault]
    assert max(took) < SETTLE_SECONDS


@pytest.mark.parametrize("later", ["", "  - {at: 100ms, start: controller}\n"])
def test_a_controller_that_does_not_come_to_its_death_fails_the_drill(
    tmp_path: Path, later: str
) -> None:
    """The drill fails with the reason, and no controller is left."""
    path = tmp_path / "sums.yaml"
    step = "  - {at: 50ms, kill: controller, point: push}\n"
    path.write_text(f"{HEAD}{DEMAND}timeline:\n{step}{later}{EXPECT}")
    before = set(_children(os.getpid()))
    with DrillRunner({"fluid": FluidWorld()}) as runner:
        verdict = runner.play(load_scenario(path), "fluid", 1)
    assert verdict.fault == "no controller came to the point push, at which to die"
    assert not set(_children(os.getpid())) - before


def test_a_controller_that_is_started_twice_runs_once(tmp_path: Path) -> None:
    """A new process takes the place of the one that still runs."""

    async def processes() -> list[list[int]]:
        found, before = [], set(_children(os.getpid()))
        controller = FaultInjectingController(tmp_path)
        async with controller:
            found.append(sorted(set(_children(os.getpid())) - before))
            await controller.start()
            found.append(sorted(set(_children(os.getpid())) - before))
        return found

    first, second = asyncio.run(processes())
    assert len(first) == len(second) == 1
    assert first != second


def test_a_controller_that_was_to_die_is_not_lent_again() -> None:
    """It might still die, even if it has seen its order and the order is gone."""

    async def lent_twice() -> list[FaultInjectingController]:
        pool = ControllerPool()
        try:
            first, _ = await pool.lend()
            first.orders.die_at("ack")
            first.orders.clear()
            pool.give_back(first)
            second, _ = await pool.lend()
        finally:
            await pool.close()
        return [first, second]

    first, second = asyncio.run(lent_twice())
    assert first is not second


def test_a_closed_terminal_leaves_a_report_and_nothing_else(tmp_path: Path) -> None:
    """SIGHUP is as good as Ctrl-C.

    The report says that the drill was interrupted; processes and folders are gone.
    """
    path = tmp_path / "long.yaml"
    steps = "".join(
        f"  - {{at: {n}s, drain: s0}}\n  - {{at: {n}.5s, undrain: s0}}\n" for n in range(1, 90)
    )
    path.write_text(f"{HEAD.replace('sums', 'long', 1)}{DEMAND}timeline:\n{steps}{EXPECT}")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    command = [str(PROGRAM), "drill", str(path), "--runs=20", f"--report={tmp_path / 'report'}"]
    process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(scratch)})
    try:
        wait_until(lambda: list(scratch.glob("heddle-drill-*/agents.log")), "agents")
        wait_until(lambda: _children(process.pid), "a controller")
        children = _children(process.pid)
        process.send_signal(signal.SIGHUP)
        assert process.wait(PATIENCE) == 130
    finally:
        left = _children(process.pid)  # some, if the drill did not end
        process.kill()
        process.wait()
        for child in left:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
    told = json.loads((tmp_path / "report" / "long.json").read_text())
    assert told["fault"] == "it was interrupted"
    assert not told["held"]
    assert not list(scratch.iterdir()), list(scratch.iterdir())
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def _children(parent: int) -> list[int]:
    """Return the process ids of a process's children."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "stat").read_text().rpartition(") ")[2].split()
        except OSError:
            continue
        if int(status[1]) == parent:
            found.append(int(folder.name))
    return found
