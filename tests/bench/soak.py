"""A day in half an hour: placements, faults and restarts at speed, and what grows meanwhile.

``make soak`` runs it for 30 minutes (``SOAK_ARGS='--minutes 5 --seed 7 --store sqlite'``):
controllers on a real store, agents of all switches, and random events. On a Redis one of two
controllers is killed and started again and again. The other is only suspended at times, so that its
growth can be seen. A controller that is alone dies in the first quarter only. In the end all faults
are repaired, and everything that was acknowledged must be there. A controller started afresh must
find nothing to do, and agents that start with empty tables must end with what they had.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import click  # noqa: E402 - the path first

from heddle.client import HeddleError  # noqa: E402
from heddle.v1 import plan_pb2  # noqa: E402
from heddle_emulator.client import Client  # noqa: E402
from heddle_emulator.fleet.agents import agent_logs  # noqa: E402
from tests.bench.soak_events import Events  # noqa: E402
from tests.bench.soak_house import Sample, faults, growth, housed, measure  # noqa: E402
from tests.support.replicating import SECONDS, House, Replica  # noqa: E402

PAUSE = 0.2
"""Seconds between two events, on average."""
QUIET = 8.0
"""Seconds after which a leader has compared its plan with one made anew."""
SAMPLES = 40
"""Number of measurements in a run."""


@dataclass
class Soak:
    """One run of the soak."""

    house: House
    events: Events
    samples: list[Sample] = field(default_factory=list)
    trouble: str = ""
    """What the last check found wrong."""

    async def run(self, seconds: float, report: Callable[[Sample], None], least: int) -> None:
        """Run random events for so many seconds, and at least so many events."""
        begin = time.monotonic()
        due = 0.0
        while (now := time.monotonic() - begin) < seconds or self.events.count.total() < least:
            if now >= due:
                self.samples.append(await self.measure(now))
                report(self.samples[-1])
                due = time.monotonic() - begin + seconds / SAMPLES
            await self.events.one(young=now < seconds / 4)
            await asyncio.sleep(self.events.chance.expovariate(1 / PAUSE))
        self.samples.append(await self.measure(seconds))
        report(self.samples[-1])

    async def measure(self, now: float) -> Sample:
        """Take a sample now."""
        return await measure(self.house, self.events.steady, now, self.events.count.total())

    async def settle(self) -> None:
        """Repair everything, then check that all that was acknowledged is there and programmed.

        Raises:
            AssertionError: something is missing or added, or a controller or agent that starts
                afresh finds something to do.
        """
        await self._mended()
        steady = self.events.steady
        client = await self.house.client(steady)
        await _until(lambda: self._agreed(steady), "all as it was acknowledged", self)
        generation, routes = await self._quiet(client)
        tables = self._tables()
        for replica in list(self.house.replicas):
            await replica.kill()
        self.house.replicas.clear()
        fresh = await self.house.again(steady)
        await self.house.leads(fresh, 0)
        again = await self.house.client(fresh)
        await _until(lambda: self._fenced(fresh), "all agents follow the controller made afresh")
        await self.house.agree(again)
        now, others = await again.list_routes()
        assert now == generation, f"a fresh controller made generation {now} of {generation}"
        assert others == routes, "a fresh controller tells other routes"
        assert self._tables() == tables, "a fresh controller found something to send"
        await self._emptied(tables)

    async def _mended(self) -> None:
        """End all faults, and resolve every call whose outcome is unknown."""
        for row in sorted(self.events.stopped):
            self.house.fleet.boot(row)
        for one in sorted(self.events.down):
            await self.house.fleet.set_link(*one, None, up=True)
        await self.house.fleet.connected(SECONDS)
        for name in sorted(self.events.asked):
            await _until(partial(self.events.deleted, name), f"{name} cleared away")
        for one in sorted(self.events.drained):
            await _until(partial(self.events.undrained, one), f"{one} up")
        if self.events.withdrawn:
            await _until(self.events.restored, "the overlay restored")

    async def _emptied(self, tables: dict[int, bytes]) -> None:
        """Start all agents with empty tables, and wait until they have what they had."""
        for row in sorted(tables):
            await self.house.fleet.stop(row)
            self.house.fleet.boot(row)
        await self.house.fleet.connected(SECONDS)
        await _until(lambda: self._hold(tables), "the tables made anew are as they were")

    async def _hold(self, tables: dict[int, bytes]) -> bool:
        return self._tables() == tables

    async def _quiet(self, client: Client) -> tuple[int, list[plan_pb2.Route]]:
        """Wait until the leader has found nothing better for a while; return the current plan."""
        told = await client.list_routes()
        end = time.monotonic() + QUIET
        while time.monotonic() < end:
            await asyncio.sleep(0.5)
            now = await client.list_routes()
            if now[0] != told[0]:
                told, end = now, time.monotonic() + QUIET
        return told

    async def _agreed(self, replica: Replica) -> bool:
        try:
            await self.house.agree(await self.house.client(replica))
        except (AssertionError, HeddleError, TimeoutError) as error:
            self.trouble = str(error)
            return False
        return True

    async def _fenced(self, replica: Replica) -> bool:
        epochs = {agent.held.epoch for agent in self.house.fleet.agents.values()}
        return epochs == {replica.epoch}

    def _tables(self) -> dict[int, bytes]:
        agents = self.house.fleet.agents
        return {row: agent.forwarding.digest() for row, agent in agents.items()}


async def _until(
    reached: Callable[[], Awaitable[bool]], what: str, soak: Soak | None = None
) -> None:
    end = time.monotonic() + 2 * SECONDS
    while not await reached():
        assert time.monotonic() < end, f"{what}; {soak.trouble if soak else ''}"
        await asyncio.sleep(0.1)


def row(sample: Sample) -> str:
    """Return one line of the table."""
    return (
        f"{sample.seconds:7.0f} {sample.events:7} {sample.generation:6} {sample.memory:9.1f} "
        f"{sample.files:6} {sample.tasks:6} {sample.rows:6} {sample.stored:7.1f} "
        f"{sample.own:8.1f} {sample.own_files:6} {sample.own_tasks:6}"
    )


HEAD = (
    "                           controller               store            agents\n"
    "seconds  events   plan       MiB  files  tasks   rows     MiB      MiB  files  tasks"
)


async def soak(
    folder: Path,
    seconds: float,
    seed: int,
    report: Callable[[Sample], None],
    store: str = "redis",
    *,
    least: int = 0,
) -> Soak:
    """Run the soak for at least so many seconds and events, and settle.

    Raises:
        AssertionError: something acknowledged is missing in the end, or a controller had a fault.
    """
    async with housed(folder, store) as house:
        events = Events(house, random.Random(seed), house.replicas[0], house.replicas[-1])
        running = Soak(house, events)
        await running.run(seconds, report, least)
        await running.settle()
        found = await asyncio.to_thread(lambda: faults(folder.glob("r*/controller.log")))
        assert not found, f"controllers had faults: {dict(found)}"
        return running


@click.command()
@click.option("--minutes", type=float, default=30.0, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True)
@click.option("--store", type=click.Choice(["redis", "sqlite"]), default="redis", show_default=True)
@click.option("--keep", type=click.Path(path_type=Path), help="Copy the logs of a fault here.")
def main(minutes: float, seed: int, store: str, keep: Path | None) -> None:
    """Placements, faults and restarts at speed; exit status 1 if anything grows or is lost."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        stack.enter_context(agent_logs(Path(name)))
        click.echo(f"seed {seed}, {store}\n{HEAD}")
        try:
            done = asyncio.run(
                soak(Path(name), 60 * minutes, seed, lambda one: click.echo(row(one)), store)
            )
        except BaseException:
            if keep is not None:
                shutil.copytree(name, keep, dirs_exist_ok=True)
            raise
    counted = sorted(done.events.count.items())
    click.echo(", ".join(f"{count} {what}" for what, count in counted))
    grown = growth(done.samples)
    for line in grown:
        click.echo(line)
    click.echo("verdict: " + ("something grows" if grown else "nothing lost, nothing grows"))
    sys.exit(1 if grown else 0)


if __name__ == "__main__":
    main()
