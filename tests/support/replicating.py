"""Several real controllers as processes on one real Redis, and agents with sessions to all."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from heddle.v1 import placement_pb2
from heddle.v1.placement_pb2_grpc import PlacementServiceStub
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Collective, Group, Job, Operation, Parallelism
from heddle_controller.traffic.jobs import flows_of_jobs
from heddle_emulator.client import Client, routed
from heddle_emulator.demo.story import strays
from heddle_emulator.fleet import Fleet
from heddle_emulator.topology import three_tier
from heddle_emulator.walk import measure
from tests.support.dying_controller import DIE
from tests.support.operating import Controller, controlling
from tests.support.redis_server import EVERY_SECOND, RedisServer
from tests.support.waiting import until

NAME = "fabrics/replicated"
SECONDS = 240.0
"""Not a measure of speed: a limit for busy machines."""


def running(tree: Path) -> tuple[str, ...]:
    """Return the command of a Python with another tree's code and this one's packages."""
    return ("env", f"PYTHONPATH={tree / 'proto'}:{tree / 'controller'}", sys.executable)


def small_fabric() -> Fabric:
    """Return eight leaves in two zones."""
    return three_tier(zones=2, leaves=4, spines=2, nics_per_leaf=8, cores=2, taper=2.0)


def job(name: str, hosts: tuple[str, ...]) -> Job:
    """Return a job with data-parallel traffic over some hosts."""
    collective = Collective(Operation.ALL_REDUCE, Group.DP, 1 << 30)
    return Job(name, hosts, 8, Parallelism(tp=8), (collective,))


@dataclass
class Replica:
    """One controller process, whose log is in JSON."""

    name: str
    controller: Controller

    @property
    def address(self) -> str:
        """Address of its API."""
        return self.controller.address

    def signal(self, number: signal.Signals) -> float:
        """Send it a signal; return when, in Unix seconds."""
        self.controller.process.send_signal(number)
        return time.time()

    async def kill(self) -> float:
        """Send SIGKILL and wait until it is gone; return when the signal was sent."""
        at = self.signal(signal.SIGKILL)
        await self.controller.process.wait()
        return at

    def events(self, name: str) -> list[dict[str, Any]]:
        """Return log lines of an event, oldest first; the last line may be half written."""
        lines = self.controller.log.read_text().rpartition("\n")[0].splitlines()
        records = (json.loads(line) for line in lines if line.startswith("{"))
        return [record for record in records if record.get("event") == name]

    @property
    def epoch(self) -> int:
        """The last epoch that it led with; 0 for none."""
        return max((int(event["epoch"]) for event in self.events("leading")), default=0)

    def led_at(self) -> float:
        """Return when it last began to lead, in Unix seconds."""
        return datetime.fromisoformat(self.events("leading")[-1]["timestamp"]).timestamp()


@dataclass
class House:
    """A Redis, replicas, and the agents of a fabric."""

    folder: Path
    redis: RedisServer
    fabric: Fabric
    stack: AsyncExitStack
    replicas: list[Replica] = field(default_factory=list)
    started: int = 0
    clients: dict[str, Client] = field(default_factory=dict)
    """Clients by address of the replica."""
    jobs: list[Job] = field(default_factory=list)
    tree: Path | None = None
    """Folder of the code that new replicas run, if it is not this tree."""
    lost: list[str] = field(default_factory=list)
    """Flows of programmed jobs whose packets were lost at any check."""
    fleet: Fleet = field(init=False)

    async def again(self, replica: Replica) -> Replica:
        """Start a replica at the address of one that is gone."""
        return await self.another("--listen", replica.address)

    async def another(self, *options: str) -> Replica:
        """Start a replica."""
        self.started += 1
        name = f"r{self.started}"
        folder = self.folder / name
        await asyncio.to_thread(folder.mkdir)
        program: tuple[str, ...] = (
            *(sys.executable, "-m", "tests.support.dying_controller", str(self.folder)),
        )
        if self.tree is not None:
            main = "from heddle_controller.app import main; main()"
            program = (*running(self.tree), "-c", main)
        started = controlling(
            folder,
            *("--store", self.redis.url, "--controller-id", name, "--log-format", "json"),
            *options,
            program=program,
        )
        replica = Replica(name, await self.stack.enter_async_context(started))
        self.replicas.append(replica)
        return replica

    def doom(self, step: str) -> None:
        """Have the first replica that takes a step kill itself; see ``dying_controller``.

        On a busy machine the lead may move at any time, so no replica is named.
        """
        (self.folder / DIE).write_text(step)

    async def death(self) -> Replica:
        """Wait until a replica has died, and return it; it is no longer among the replicas."""
        waits = {asyncio.create_task(one.controller.process.wait()): one for one in self.replicas}
        done, alive = await asyncio.wait(
            waits, timeout=SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        for wait in alive:
            wait.cancel()
        (dead,) = (waits[one] for one in done)
        self.replicas.remove(dead)
        return dead

    def leader(self) -> Replica:
        """Return the replica that led last."""
        return max(self.replicas, key=lambda replica: replica.epoch)

    async def leads(self, replica: Replica, above: int) -> float:
        """Wait until a replica leads with an epoch above this; return when, in Unix seconds."""
        async with asyncio.timeout(SECONDS):
            while replica.epoch <= above:  # noqa: ASYNC110 - a log has no events
                await asyncio.sleep(0.01)
        return replica.led_at()

    async def client(self, replica: Replica) -> Client:
        """Return the client of a replica, also used for the one that takes its place."""
        if replica.address not in self.clients:
            client = Client(replica.address, NAME)
            self.clients[replica.address] = await self.stack.enter_async_context(client)
        return self.clients[replica.address]

    async def submit(self, client: Client, *jobs: Job) -> None:
        """Submit jobs; each is acknowledged, so it must never be lost."""
        for one in jobs:
            await client.submit(one)
            self.jobs.append(one)

    async def withdraw(self, replica: Replica) -> None:
        """Delete the last job."""
        name = f"{NAME}/jobs/{self.jobs[-1].name}"
        async with replica.controller.channel() as channel:
            request = placement_pb2.DeleteJobRequest(name=name)
            await PlacementServiceStub(channel).DeleteJob(request, timeout=SECONDS)
        self.jobs.pop()

    def flows(self) -> Flows:
        """Return the flows of all acknowledged jobs."""
        return flows_of_jobs(sorted(self.jobs, key=lambda each: each.name), self.fabric)

    def watch(self) -> None:
        """From now on, check again and again whether packets of the current jobs arrive."""
        flows = self.flows()

        async def look() -> None:
            while True:
                missing = measure(self.fleet.world, flows, self.fleet.switches).walk.lost
                self.lost += [flows.ids[row] for row in missing.tolist()]
                await asyncio.sleep(0.02)

        self.stack.callback(asyncio.create_task(look()).cancel)

    async def agree(self, client: Client) -> None:
        """Wait until all jobs are programmed; check that packets go where the newest plan says."""
        flows = self.flows()
        await client.programmed_jobs([one.name for one in self.jobs], SECONDS)
        plan = await client.programmed_plan(0, SECONDS)
        async with asyncio.timeout(SECONDS):
            while True:
                generation, routes = await client.list_routes()
                if generation == plan.generation and len(routes) == len(flows):
                    break
                plan = await client.programmed_plan(plan.generation, SECONDS)
        told = routed(self.fabric, flows, routes)
        assert not told.unrouted
        found = measure(self.fleet.world, flows, self.fleet.switches)
        assert not len(found.walk.lost)
        assert not len(strays(found.paths, told))
        assert not self.lost, f"packets were lost: {sorted(set(self.lost))[:5]}"


@asynccontextmanager
async def replicated(
    folder: Path,
    count: int = 2,
    *options: str,
    redis: tuple[str, ...] = EVERY_SECOND,
    tree: Path | None = None,
) -> AsyncIterator[House]:
    """Run replicas on a Redis, the first of which leads, and agents of all switches."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(RedisServer(folder / "redis", *redis))
        house = House(folder, server, small_fabric(), stack, tree=tree)
        for _ in range(count):
            await house.another(*options)
        addresses = [replica.address for replica in house.replicas]
        client = await house.client(house.replicas[0])
        await client.put_fabric(house.fabric)
        house.fleet = await stack.enter_async_context(Fleet(house.fabric, addresses, name=NAME))
        await house.fleet.connected(SECONDS)
        agents = house.fleet.agents.values()
        await until(lambda: all(agent.sessions.connected == count for agent in agents), "sessions")
        yield house
