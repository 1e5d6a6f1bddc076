"""``heddle job delete --wait`` with a real controller and real agents, one of them slow."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from heddle_agent.table import Forwarding, Push, TableWorker
from heddle_emulator.fleet import Fleet, Held
from heddle_emulator.fleet.staged import Gate, GatedWorker
from tests.integration.test_cli_controller import FABRIC, begun
from tests.support.operating import Controller, Outcome, controlling
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE

HEDDLE = Path(sys.executable).parent / "heddle"
LONE = """\
- job: lone
  hosts: [l0-h0]
  gpus_per_host: 1
  parallelism: {dp: 1}
"""
FLOWS = "flow,src,dst,gbps,job,phase\nout,l2-h0-n0,l3-h0-n0,10,,\n"


class OneGate(Gate):
    """A gate that holds up the pushes to one switch."""

    def __init__(self) -> None:
        super().__init__()
        self.row = -1

    def stop(self, switch: int, push: Push) -> Held | None:
        """Hold up a push if it is for that switch."""
        self.shut = switch == self.row
        return super().stop(switch, push)

    def open(self) -> None:
        """Let through what waits, and all later pushes."""
        row, self.row = self.row, -1
        for held in self.take({row}):
            held.free.set()


class SlowFleet(Fleet):
    """A fleet in which one agent can be kept from taking pushes."""

    def __init__(self, controller: Controller) -> None:
        self.gate = OneGate()
        super().__init__(FABRIC, [controller.address], name="fabrics/pod")

    def _worker(self, row: int, forwarding: Forwarding) -> TableWorker:
        return GatedWorker(row, forwarding, self.gate)

    def holders(self) -> list[int]:
        """Return the rows of the switches whose tables have entries."""
        return [row for row, fib in self.switches.fibs.items() if fib.read_back()]

    def hold_one(self) -> str:
        """Keep a switch that has entries from taking pushes; return its name."""
        self.gate.row = self.holders()[0]
        return self.agents[self.gate.row].switch


async def begin(controller: Controller, *words: str) -> Process:
    """Start ``heddle`` as a process, without waiting for its end."""
    return await asyncio.create_subprocess_exec(
        HEDDLE, "--server", controller.address, *words, stdout=PIPE, stderr=PIPE
    )


def runs(process: Process) -> bool:
    """Return whether a command still runs."""
    return process.returncode is None


async def end(process: Process) -> Outcome:
    """Wait for a command; return its exit code and output."""
    out, err = await process.communicate()
    assert process.returncode is not None
    return Outcome(process.returncode, out.decode(), err.decode())


async def plan_such_that(controller: Controller, wanted: Callable[[Any], bool]) -> Any:
    """Wait until the newest plan, as JSON, meets a condition; return it."""
    async with asyncio.timeout(PATIENCE):
        while True:
            shown = await controller.does("show", "plan", "--json")
            if shown.code == 0 and wanted(shown.json):
                return shown.json
            await asyncio.sleep(0.05)


def has_entries(plan: Any) -> bool:
    """Return whether a plan routes flows and all switches hold it.

    The first plan is made before any job comes.
    """
    return bool(plan.get("routed_count")) and "programmed_time" in plan


def leaves_out(switch: str, plan: Any) -> bool:
    """Return whether a plan routes no flow and a switch does not hold it yet."""
    return not plan.get("routed_count") and switch in plan.get("unsettled_switches", [])


async def test_a_deleted_job_is_gone_when_the_last_switch_says_so(tmp_path: Path) -> None:
    """The command waits for the last switch; if its time is up first, it fails."""
    async with controlling(tmp_path) as controller:
        await begun(tmp_path, controller)
        async with SlowFleet(controller) as fleet:
            await fleet.connected(PATIENCE)
            await plan_such_that(controller, has_entries)
            slow = fleet.hold_one()
            waiting = await begin(controller, "job", "delete", "red", "blue", "--wait")
            await plan_such_that(controller, partial(leaves_out, slow))
            put = ("demand", "put", "d", flows_file(tmp_path))
            assert (await controller.does(*put)).code == 0
            vain = await controller.does("demand", "delete", "d", "--wait", "--seconds", "0.5")
            assert (vain.code, vain.out) == (2, "deleted d\n")
            assert vain.err.startswith("error: deleted, but after 0.5 s ")
            assert runs(waiting)
            assert fleet.gate.row in fleet.holders()
            fleet.gate.open()
            assert await end(waiting) == Outcome(0, "deleted red, blue\n", "")
            assert fleet.holders() == []
        assert await controller.ends() == 0


async def test_the_controller_may_restart_meanwhile(tmp_path: Path) -> None:
    """The command goes on with the next controller, which also waits for the slow switch."""
    listen = ("--listen", f"127.0.0.1:{free_port()}")
    async with controlling(tmp_path, *listen) as controller:
        await begun(tmp_path, controller)
        async with SlowFleet(controller) as fleet:
            await fleet.connected(PATIENCE)
            await plan_such_that(controller, has_entries)
            slow = fleet.hold_one()
            waiting = await begin(controller, "job", "delete", "red", "blue", "--wait")
            await plan_such_that(controller, partial(leaves_out, slow))
            assert waiting.stdout is not None
            assert await waiting.stdout.readline() == b"deleted red, blue\n"
            controller.process.kill()
            await controller.process.wait()
            assert waiting.stderr is not None
            note = await waiting.stderr.readline()
            assert note.startswith(b"note: cannot reach the controller"), note
            async with controlling(tmp_path, *listen) as following:
                await fleet.connected(PATIENCE)
                await plan_such_that(following, partial(leaves_out, slow))
                assert runs(waiting)
                assert fleet.gate.row in fleet.holders()
                fleet.gate.open()
                done = await end(waiting)
                assert (done.code, done.out) == (0, ""), done.err
                assert fleet.holders() == []
                assert await following.ends() == 0


async def test_what_never_had_entries_is_gone_at_once(tmp_path: Path) -> None:
    """Deleting a job without entries makes no new plan, and the command does not wait for one."""
    async with controlling(tmp_path) as controller:
        await begun(tmp_path, controller)
        file = tmp_path / "lone.yaml"
        await asyncio.to_thread(file.write_text, LONE.replace("l0-h0", "l1-h0"))
        async with SlowFleet(controller) as fleet:
            await fleet.connected(PATIENCE)
            await plan_such_that(controller, has_entries)
            assert (await controller.does("job", "delete", "red", "--wait")).code == 0
            settled = await plan_such_that(controller, lambda plan: "programmed_time" in plan)
            assert (await controller.does("job", "submit", file)).code == 0
            assert (await controller.does("job", "delete", "lone", "--wait")).code == 0
            after = (await controller.does("show", "plan", "--json")).json
            assert after["generation"] == settled["generation"]
            assert int(after["answered_version"]) > int(after["intent_version"])
            assert (await controller.does("demand", "put", "d", flows_file(tmp_path))).code == 0
            assert (await controller.does("demand", "delete", "d", "--wait")).code == 0
            assert (await controller.does("job", "delete", "blue", "--wait")).code == 0
            assert fleet.holders() == []
        assert await controller.ends() == 0


def flows_file(path: Path) -> Path:
    """Write a flows.csv of one flow; return its path."""
    file = path / "flows.csv"
    file.write_text(FLOWS)
    return file
