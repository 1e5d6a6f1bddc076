"""A day in half an hour: placements, faults and restarts at speed, and what grows meanwhile.

``make soak`` runs it for 30 minutes (``SOAK_ARGS='--minutes 5 --seed 7'``): two controllers on a
real Redis, agents of all switches, and a stream of chance. One controller is killed and started
again and again, the other is only put to sleep, so that it can be seen whether it grows. In the end
all faults are mended, all that was acknowledged has to be there, and a controller started afresh
has to find nothing to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import signal
import statistics
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import click  # noqa: E402 - the path first

from heddle.v1 import placement_pb2, plan_pb2  # noqa: E402
from heddle.v1.placement_pb2_grpc import PlacementServiceStub  # noqa: E402
from heddle_emulator.client import Client, ClientError  # noqa: E402
from heddle_emulator.fleet.logs import agent_logs  # noqa: E402
from tests.integration.replicating import NAME, SECONDS, House, Replica, job, replicated  # noqa: E402

PAUSE = 0.2
"""Seconds between two events, on average."""
ASLEEP = 2.0
"""Seconds for which a leader is put to sleep: longer than its lease."""
QUIET = 8.0
"""Seconds after which a leader has compared its plan with one made anew."""
SAMPLES = 30
"""How often is measured."""
_GAUGE = re.compile(r"^(\w+) ([0-9.e+]+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sample:
    """What one moment looks like."""

    seconds: float
    events: int
    generation: int
    memory: float
    """Of the controller that stays, MiB; likewise the next two."""
    files: int
    tasks: int
    keys: int
    """In Redis."""
    redis: float
    """MiB."""
    agents: int
    """Tasks of all agents together."""


COLUMNS = ("memory", "files", "tasks", "keys", "redis", "agents")
SLACK = {"memory": 24.0, "files": 6, "tasks": 12, "keys": 60, "redis": 8.0, "agents": 12}
"""By how much a column may be higher in the end than in the middle, beside a tenth of it."""


@dataclass
class Soak:
    """What goes on."""

    house: House
    chance: random.Random
    steady: Replica
    mortal: Replica
    asked: set[str] = field(default_factory=set)
    """Jobs whose submission was not answered: they may be there or not."""
    down: set[tuple[str, str]] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    number: int = 0
    events: Counter[str] = field(default_factory=Counter)
    samples: list[Sample] = field(default_factory=list)
    trouble: str = ""
    """What the last look found wrong."""

    async def run(self, seconds: float, report: Callable[[Sample], None]) -> None:
        """Events by chance, for so long."""
        begin = time.monotonic()
        due = 0.0
        while (now := time.monotonic() - begin) < seconds:
            if now >= due:
                self.samples.append(await self.measure(now))
                report(self.samples[-1])
                due += seconds / SAMPLES
            kinds = [self.submit, self.delete, self.link, self.agent, self.restart, self.sleep]
            (event,) = self.chance.choices(kinds, weights=[8, 6, 8, 3, 1, 1])
            await event()
            await asyncio.sleep(self.chance.expovariate(1 / PAUSE))

    def replica(self) -> Replica:
        """Any."""
        return self.chance.choice([self.steady, self.mortal])

    async def submit(self) -> None:
        """A job on hosts that are free; what is not acknowledged may be there all the same."""
        used = {host for one in self.house.jobs for host in one.hosts}
        free = [host for host in self.house.fabric.structure.host_names if host not in used]
        if len(free) < 2:
            return
        self.number += 1
        name = f"j{self.number}"
        hosts = tuple(self.chance.sample(free, self.chance.randint(2, min(4, len(free)))))
        try:
            await self.house.submit(await self.house.client(self.replica()), job(name, hosts))
            self.events["submitted"] += 1
        except ClientError:
            self.asked.add(name)
            self.events["not acknowledged"] += 1

    async def delete(self) -> None:
        """A job ends; one whose submission was not answered is cleared away, too."""
        names = [one.name for one in self.house.jobs] + sorted(self.asked)
        if not names:
            return
        name = self.chance.choice(names)
        if await self._deleted(name):
            self.house.jobs = [one for one in self.house.jobs if one.name != name]
            self.asked.discard(name)
            self.events["deleted"] += 1

    async def _deleted(self, name: str) -> bool:
        async with self.steady.controller.channel() as channel:
            request = placement_pb2.DeleteJobRequest(name=f"{NAME}/jobs/{name}")
            try:
                await PlacementServiceStub(channel).DeleteJob(request, timeout=5)
            except Exception as error:  # noqa: BLE001 - its status says what it is
                return "NOT_FOUND" in str(error)
        return True

    async def link(self) -> None:
        """A link between leaf and spine goes or comes; a leaf keeps one at least."""
        if self.down and self.chance.random() < 0.5:
            one = self.chance.choice(sorted(self.down))
            self.down.discard(one)
            await self.house.fleet.set_link(*one, None, up=True)
            self.events["link up"] += 1
            return
        zone, leaf, spine = (self.chance.randrange(limit) for limit in (2, 4, 2))
        if any(a == f"z{zone}-l{leaf}" for a, _ in self.down):
            return
        one = (f"z{zone}-l{leaf}", f"z{zone}-s{spine}")
        self.down.add(one)
        await self.house.fleet.set_link(*one, None, up=False)
        self.events["link down"] += 1

    async def agent(self) -> None:
        """An agent dies, or starts anew with an empty table."""
        if self.stopped:
            row = self.stopped.pop()
            self.house.fleet.boot(row)
            self.events["agent started"] += 1
            return
        row = self.chance.choice(sorted(self.house.fleet.agents))
        await self.house.fleet.stop(row)
        self.stopped.add(row)
        self.events["agent stopped"] += 1

    async def restart(self) -> None:
        """One controller ends, in order or not, and another starts in its place."""
        how = self.chance.choice([signal.SIGKILL, signal.SIGTERM])
        self.mortal.signal(how)
        async with asyncio.timeout(SECONDS):
            await self.mortal.controller.process.wait()
        self.house.replicas.remove(self.mortal)
        self.mortal = await self.house.again(self.mortal)
        self.events[how.name] += 1

    async def sleep(self) -> None:
        """The other is put to sleep until its lease is over, or the Redis is, for less."""
        if self.chance.random() < 0.5:
            self.steady.signal(signal.SIGSTOP)
            await asyncio.sleep(ASLEEP)
            self.steady.signal(signal.SIGCONT)
            self.events["asleep"] += 1
            return
        self.house.redis.signal(signal.SIGSTOP)
        await asyncio.sleep(ASLEEP / 4)
        self.house.redis.signal(signal.SIGCONT)
        self.events["redis asleep"] += 1

    async def measure(self, now: float) -> Sample:
        """How things stand."""
        gauges = await asyncio.to_thread(_gauges, self.steady)
        redis = self.house.redis
        info = await asyncio.to_thread(redis.command, "INFO", "memory")
        used = re.search(rb"used_memory:(\d+)", info)
        keys = await asyncio.to_thread(redis.command, "DBSIZE")
        return Sample(
            seconds=now,
            events=sum(self.events.values()),
            generation=int(gauges.get("generation", 0)),
            memory=gauges["process_resident_memory_bytes"] / 2**20,
            files=int(gauges["process_open_fds"]),
            tasks=int(gauges["heddle_event_loop_tasks"]),
            keys=int(keys.strip(b":\r\n")),
            redis=int(used[1]) / 2**20 if used else 0.0,
            agents=len(asyncio.all_tasks()),
        )

    async def settle(self) -> None:
        """Mend everything; then all that was acknowledged is there, programmed, and nothing else.

        Raises:
            AssertionError: it is not, or a controller started afresh finds something to do.
        """
        for row in self.stopped:
            self.house.fleet.boot(row)
        for one in self.down:
            await self.house.fleet.set_link(*one, None, up=True)
        await self.house.fleet.connected(SECONDS)
        for name in sorted(self.asked):
            await _until(partial(self._deleted, name), f"{name} cleared away")
        client = await self.house.client(self.steady)
        await _until(lambda: self._agreed(self.steady), "all as it was acknowledged", self)
        generation, routes = await self._quiet(client)
        tables = self._tables()
        for replica in (self.steady, self.mortal):
            await replica.kill()
        self.house.replicas.clear()
        fresh = await self.house.again(self.steady)
        await self.house.leads(fresh, 0)
        again = await self.house.client(fresh)
        await _until(lambda: self._fenced(fresh), "all agents follow the controller made afresh")
        await self.house.agree(again)
        now, others = await again.routes()
        assert now == generation, f"a fresh controller made generation {now} of {generation}"
        assert others == routes, "a fresh controller tells other routes"
        assert self._tables() == tables, "a fresh controller found something to send"

    async def _quiet(self, client: Client) -> tuple[int, list[plan_pb2.Route]]:
        """Wait until the leader has found nothing better for a while; the plan that stands."""
        told = await client.routes()
        end = time.monotonic() + QUIET
        while time.monotonic() < end:
            await asyncio.sleep(0.5)
            now = await client.routes()
            if now[0] != told[0]:
                told, end = now, time.monotonic() + QUIET
        return told

    async def _agreed(self, replica: Replica) -> bool:
        try:
            await self.house.agree(await self.house.client(replica))
        except (AssertionError, ClientError, TimeoutError) as error:
            self.trouble = str(error)
            return False
        return True

    async def _fenced(self, replica: Replica) -> bool:
        epochs = {agent.held.epoch for agent in self.house.fleet.agents.values()}
        return epochs == {replica.epoch}

    def _tables(self) -> dict[int, bytes]:
        agents = self.house.fleet.agents
        return {row: agent.forwarding.digest() for row, agent in agents.items()}


def _gauges(replica: Replica) -> dict[str, float]:
    port = replica.controller.metrics_port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    plan = re.search(r"^heddle_plan_generation\{[^}]*\} ([0-9.e+]+)$", text, re.MULTILINE)
    found = {name: float(value) for name, value in _GAUGE.findall(text)}
    return found | ({"generation": float(plan[1])} if plan else {})


async def _until(
    reached: Callable[[], Awaitable[bool]], what: str, soak: Soak | None = None
) -> None:
    end = time.monotonic() + 2 * SECONDS
    while not await reached():
        assert time.monotonic() < end, f"{what}; {soak.trouble if soak else ''}"
        await asyncio.sleep(0.1)


def growth(samples: Sequence[Sample]) -> list[str]:
    """Columns that are higher in the last quarter than in the second, beyond their slack."""
    quarter = max(1, len(samples) // 4)
    found = []
    for column in COLUMNS:
        middle, last = (
            statistics.median(float(getattr(sample, column)) for sample in part)
            for part in (samples[quarter : 2 * quarter], samples[-quarter:])
        )
        if last > 1.1 * middle + SLACK[column]:
            found.append(f"{column} grew from {middle:.1f} to {last:.1f}")
    return found


def row(sample: Sample) -> str:
    """One line of the table."""
    return (
        f"{sample.seconds:7.0f} {sample.events:7} {sample.generation:6} {sample.memory:9.1f} "
        f"{sample.files:6} {sample.tasks:6} {sample.keys:6} {sample.redis:8.1f} {sample.agents:6}"
    )


HEAD = "seconds  events   plan       MiB  files  tasks   keys    Redis agents"


async def soak(folder: Path, seconds: float, seed: int, report: Callable[[Sample], None]) -> Soak:
    """Run it, and settle.

    Raises:
        AssertionError: what was acknowledged is not there in the end.
    """
    async with replicated(folder, 2) as house:
        steady, mortal = house.replicas
        running = Soak(house, random.Random(seed), steady, mortal)
        await running.run(seconds, report)
        await running.settle()
        return running


@click.command()
@click.option("--minutes", type=float, default=30.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
def main(minutes: float, seed: int) -> None:
    """Placements, faults and restarts at speed; exit status 1 if anything grows or is lost."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        stack.enter_context(agent_logs(Path(name)))
        click.echo(f"seed {seed}\n{HEAD}")
        done = asyncio.run(soak(Path(name), 60 * minutes, seed, lambda one: click.echo(row(one))))
    click.echo(", ".join(f"{count} {what}" for what, count in sorted(done.events.items())))
    grown = growth(done.samples)
    for line in grown:
        click.echo(line)
    click.echo("verdict: " + ("something grows" if grown else "nothing lost, nothing grows"))
    sys.exit(1 if grown else 0)


if __name__ == "__main__":
    main()
