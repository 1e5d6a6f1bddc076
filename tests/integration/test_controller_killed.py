"""A controller is killed in the middle of a push, with real agents and real connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Collective, Group, Job, Operation, Parallelism
from heddle_controller.traffic.jobs import flows_of_jobs
from heddle_emulator.client import Client, routed
from heddle_emulator.demo.story import strays
from heddle_emulator.fleet import Controller, Fleet
from heddle_emulator.topology import three_tier
from heddle_emulator.walk import measure
from tests.support.depth import examples
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE

NAME = "fabrics/killed"


def fabric_of_two_zones() -> Fabric:
    """Return a fabric of 16 leaves, so that a push takes many messages."""
    return three_tier(zones=2, leaves=8, spines=4, nics_per_leaf=8, cores=4, taper=2.0)


def job(name: str, hosts: tuple[str, ...]) -> Job:
    """Return a data parallel job of eight GPUs per host, with an all-reduce across hosts."""
    collective = Collective(Operation.ALL_REDUCE, Group.DP, 1 << 30)
    return Job(name, hosts, 8, Parallelism(tp=8), (collective,))


async def submitted(client: Client, jobs: list[Job]) -> None:
    """Submit jobs all at once; return when each is acknowledged, hence durable."""
    await asyncio.gather(*(client.submit(job) for job in jobs))


async def half_way(fleet: Fleet) -> None:
    """Wait until some switch holds an entry, while the push goes on."""
    async with asyncio.timeout(PATIENCE):
        while not any(fib.read_back() for fib in fleet.switches.fibs.values()):  # noqa: ASYNC110
            await asyncio.sleep(0)


async def agree(client: Client, fleet: Fleet, fabric: Fabric, flows: Flows) -> None:
    """Wait until packets go exactly where the newest plan says."""
    plan = await client.programmed_plan(0, PATIENCE)
    while True:
        generation, routes = await client.list_routes()
        if generation == plan.generation and len(routes) == len(flows):
            break
        plan = await client.programmed_plan(plan.generation, PATIENCE)
    told = routed(fabric, flows, routes)
    assert not told.unrouted
    found = measure(fleet.world, flows, fleet.switches)
    assert not len(found.walk.lost)
    assert not len(strays(found.paths, told))


@pytest.mark.deep
@pytest.mark.parametrize("pause", [0.01, 0.0, 0.03][: examples(1, 3)])
async def test_agents_converge_after_a_kill_in_mid_push(tmp_path: Path, pause: float) -> None:
    """After the restart every acknowledged job is there, and packets follow the newest plan."""
    fabric = fabric_of_two_zones()
    hosts = fabric.structure.host_names
    jobs = [job("across", hosts[4:12]), job("whole", (*hosts[:4], *hosts[12:]))]
    flows = flows_of_jobs(sorted(jobs, key=lambda each: each.name), fabric)
    listen = f"--listen=127.0.0.1:{free_port()}"
    store = f"--store=sqlite:///{tmp_path / 'heddle.sqlite3'}"
    logs = tmp_path / "first", tmp_path / "second"
    for folder in logs:
        folder.mkdir()
    async with (
        Controller(logs[0], listen, store) as first,
        Client(first.api, NAME) as client,
        Fleet(fabric, [first.api], name=NAME) as fleet,
    ):
        await client.put_fabric(fabric)
        await fleet.connected(PATIENCE)
        await submitted(client, jobs)
        await half_way(fleet)
        await asyncio.sleep(pause)
        await first.kill()
        held = sum(len(fib.read_back()) for fib in fleet.switches.fibs.values())
        async with Controller(logs[1], listen, store) as second, Client(second.api, NAME) as again:
            await again.programmed_jobs([each.name for each in jobs], PATIENCE)
            await agree(again, fleet, fabric, flows)
        assert held  # entries stayed while there was no controller
