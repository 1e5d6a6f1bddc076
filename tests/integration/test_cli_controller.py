"""A controller process, the agents of all switches, and an operator who runs ``heddle``."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np

from heddle.v1 import demand_pb2
from heddle.v1.demand_pb2_grpc import DemandServiceStub
from heddle_agent.agent import Agent
from heddle_agent.fib import Packets
from heddle_controller.cli.failure import UNROUTED
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.model.flows import ROCE_PORT
from heddle_emulator.fleet import Fleet
from heddle_emulator.topology import clos
from tests.support.operating import Controller, controlling, holds_a_plan
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE, until

FABRIC = clos(leaves=4, spines=4, nics_per_leaf=4, nics_per_host=4, name="pod")
JOBS = """\
- job: red
  hosts: [l0-h0, l1-h0]
  gpus_per_host: 4
  parallelism: {dp: 8}
- job: blue
  hosts: [l2-h0, l3-h0]
  gpus_per_host: 4
  parallelism: {pp: 2, dp: 4}
"""


async def begun(path: Path, controller: Controller) -> None:
    """Import the fabric and submit the jobs, as an operator does."""
    fabric, jobs = path / "pod.json.gz", path / "jobs.yaml"
    await asyncio.to_thread(save_fabric_file, FABRIC, fabric)
    await asyncio.to_thread(jobs.write_text, JOBS)
    for words in (("fabric", "import", fabric), ("job", "submit", jobs)):
        done = await controller.does(*words)
        assert done.code == 0, done.err


async def generation(controller: Controller, above: int) -> int:
    """Wait for a plan above this generation that all switches hold; return its generation."""
    async with asyncio.timeout(PATIENCE):
        while True:
            shown = await controller.does("show", "plan", "--json")
            assert shown.code == 0 or "no plan yet" in shown.err, shown.err
            plan = shown.json if shown.code == 0 else {"generation": 0}
            if int(plan["generation"]) > above and "programmed_time" in plan:
                return int(plan["generation"])
            await asyncio.sleep(0.05)


async def programmed(controller: Controller) -> int:
    """Wait until all jobs are programmed; return the generation of the plan with all of them.

    An earlier plan may have been made without some of the jobs. Jobs are degraded meanwhile if an
    agent is away for longer than the controller waits for it.
    """
    words = ("job", "watch", "--until", "programmed", "--seconds", f"{PATIENCE:g}")
    async with asyncio.timeout(PATIENCE):
        while (done := await controller.does(*words)).code == UNROUTED:
            pass
    assert done.code == 0, done.out + done.err
    return await generation(controller, 0)


async def test_jobs_are_programmed_and_moved_off_what_is_drained(tmp_path: Path) -> None:
    """All switches hold the jobs' entries; flows leave a drained spine and a lost link.

    Once the jobs are deleted, no switch holds an entry.
    """
    async with controlling(tmp_path) as controller:
        await begun(tmp_path, controller)
        async with Fleet(FABRIC, [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            first = await programmed(controller)
            shown = await controller.does("show", "plan")
            assert "no plan below 1.000 (cut), gap 0.0%" in shown.out

            assert (await controller.does("fabric", "switch", "s3", "drained")).code == 0
            second = await generation(controller, first)
            routes = await controller.does("show", "routes")
            assert not re.search(r"\bs3\b", routes.out)
            await until(lambda: holds_a_plan(fleet, fleet.agents), "plans in all switches")

            await fleet.set_link("l0", "s0", None, up=False)
            await generation(controller, second)
            seen = await controller.does("fabric", "show")
            assert ["l0,s0,0", "400", "up", "down"] in [line[:4] for line in seen.lines]
            over = await controller.does("show", "routes", "--link", "l0,s0")
            assert len(over.lines) == 1

            assert (await controller.does("job", "delete", "red", "blue")).code == 0
            async with asyncio.timeout(PATIENCE):
                while any(agent.held.entries for agent in fleet.agents.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        assert await controller.ends() == 0
        assert "Traceback" not in controller.log.read_text()


async def test_a_fabric_is_deleted_and_put_again(tmp_path: Path) -> None:
    """A fabric with jobs is not deleted. Without jobs it is, and its agents lose all entries.

    So does an agent that was away meanwhile and comes back. Metrics no longer show it. When it is
    put again, the same agents program its jobs, and the epoch stays.
    """
    async with controlling(tmp_path) as controller:
        await begun(tmp_path, controller)
        async with Fleet(FABRIC, [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            first = await programmed(controller)
            refused = await controller.does("fabric", "delete", "pod")
            told = "fabric 'pod': jobs: it still has 'blue', 'red'; delete them first by"
            assert (refused.code, told in refused.err) == (2, True), refused
            away = next(row for row, agent in fleet.agents.items() if agent.held.entries)
            await fleet.stop(away)
            for words in (("job", "delete", "red", "blue"), ("fabric", "delete", "pod")):
                assert (await controller.does(*words)).code == 0
            assert (await controller.does("fabric", "list", "--json")).json == []
            fleet.agents[away] = returned = Agent(
                fabric="fabrics/pod",
                switch=fleet.agents[away].switch,
                controllers=[controller.address],
                fib=fleet.switches.fibs[away],
                links=fleet.links[away],
                fence=fleet.agents[away].forwarding.table.fence,
            )
            assert returned.held.entries
            running = asyncio.create_task(returned.run())
            agents = fleet.agents.values()
            await until(lambda: not any(agent.held.entries for agent in agents), "empty tables")
            shown, url = True, f"http://127.0.0.1:{controller.metrics_port}/metrics"
            async with asyncio.timeout(PATIENCE):
                while shown:
                    text = await asyncio.to_thread(lambda: urlopen(url).read().decode())
                    shown = 'heddle_fabric_switches{fabric="pod"}' in text
            await begun(tmp_path, controller)
            assert await programmed(controller) > first
            assert any(agent.held.entries for agent in agents)
            assert {agent.held.epoch for agent in agents if agent.held.entries} == {1}
            await returned.stop()
            await running
        assert await controller.ends() == 0
        log = controller.log.read_text()
        assert "Traceback" not in log
        assert "leadership over" not in log


async def test_agents_follow_a_controller_that_was_killed(tmp_path: Path) -> None:
    """The next controller has the plan, does not replan without a change, and goes on."""
    listen = ("--listen", f"127.0.0.1:{free_port()}")
    async with controlling(tmp_path, *listen) as controller:
        await begun(tmp_path, controller)
        async with Fleet(FABRIC, [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            before = await programmed(controller)
            controller.process.kill()
            await controller.process.wait()
            async with controlling(tmp_path, *listen) as following:
                await fleet.connected(PATIENCE)
                assert await generation(following, before - 1) == before
                await following.does("job", "delete", "red")
                await generation(following, before)
                await until(lambda: holds_a_plan(fleet, fleet.agents), "plans in all switches")
                assert await following.ends() == 0


async def told(controller: Controller, *lines: str) -> None:
    """Wait until the metrics page has a line for each pattern: metrics lag behind events."""
    url = f"http://127.0.0.1:{controller.metrics_port}/metrics"
    end = time.monotonic() + PATIENCE
    missing = list(lines)
    while missing:
        text = await asyncio.to_thread(lambda: urlopen(url).read().decode())
        missing = [line for line in lines if not re.search(line, text)]
        assert time.monotonic() < end, f"metrics never told {missing}:\n{text}"


async def test_metrics_tell_what_the_controller_did(tmp_path: Path) -> None:
    """The metrics page shows plans, certificates, agents, pushes and calls."""
    async with controlling(tmp_path) as controller:
        await begun(tmp_path, controller)
        async with Fleet(FABRIC, [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            await programmed(controller)
            await told(
                controller,
                r'heddle_connected_agents{fabric="pod"} 8\.0',
                r'heddle_tier_max_utilization_ratio{fabric="pod",tier="leaf-spine"} 1\.0',
                r'heddle_tier_gap_ratio{fabric="pod",tier="leaf-spine"} 0\.0',
                r'heddle_rollout_pending_switches{fabric="pod"} 0\.0',
                r'heddle_plan_unrouted_flows{fabric="pod"} 0\.0',
                r'heddle_solve_seconds_count{fabric="pod"} [1-9]',
                r'heddle_rollout_pushes_total{fabric="pod"} [1-9]',
                r'heddle_rpcs_total{code="OK",method="PutFabric"[^}]*} 1\.0',
            )
        assert await controller.ends() == 0


async def test_what_switches_count_comes_out_as_rates_of_flows(tmp_path: Path) -> None:
    """Packets that a leaf's entry counts become the rate of the flow that the plan put there."""
    async with (
        controlling(tmp_path, "--counter-interval-seconds", "0.1") as controller,
        controller.channel() as channel,
    ):
        await begun(tmp_path, controller)
        async with Fleet(FABRIC, [controller.address], name="fabrics/pod") as fleet:
            await fleet.connected(PATIENCE)
            await programmed(controller)
            routes = await controller.does("show", "routes", "--job", "red", "--json")
            route = json.loads(routes.out.splitlines()[0])
            pace = asyncio.create_task(send(fleet, route))
            watch = DemandServiceStub(channel).WatchRates(
                demand_pb2.WatchRatesRequest(fabric="fabrics/pod")
            )
            rates: dict[str, float] = {}
            async with asyncio.timeout(PATIENCE):
                async for batch in watch:
                    rates = dict(zip(batch.flows, batch.rates_gbps, strict=True))
                    if rates.get(route["flow"]):
                        break
            watch.cancel()
            pace.cancel()
        assert set(rates) >= {route["flow"]}
        assert sum(rate > 0 for rate in rates.values()) == 1
        assert await controller.ends() == 0


async def send(fleet: Fleet, route: dict[str, Any]) -> None:
    """Let packets of one flow pass its first switch until cancelled."""
    index, names = FABRIC.structure.index, fleet.switches.names
    ends = names.ids([route["source"]]), names.ids([route["destination"]])
    ports = np.array([route["source_port"]]), np.array([ROCE_PORT])
    packets = Packets(*ends, *ports)
    while True:
        fleet.switches.fibs[index[route["paths"][0]["nodes"][1]]].count(packets, 1 << 20)
        await asyncio.sleep(0.01)
