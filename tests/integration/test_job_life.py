"""The life of a job with a real controller and agents: moved, resized, suspended, resumed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from heddle.client import (
    PROGRAMMED,
    SUSPENDED,
    AsyncClient,
    InvalidRequest,
    NotFound,
    PreconditionFailed,
)
from heddle.v1 import placement_pb2 as pb
from heddle.v1.plan_pb2 import GetPlanRequest
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_emulator.fleet.agents import Fleet
from heddle_emulator.topology import three_tier
from tests.support.operating import Controller, controlling
from tests.support.waiting import PATIENCE, until

FABRIC = three_tier(
    zones=1, leaves=3, spines=2, nics_per_leaf=8, nics_per_host=2, cores=2, taper=1.0
)
"""Leaves z0-l0 to z0-l2, each with four hosts of two NICs."""
HOSTS = [f"z0-l{leaf}-h{host}" for leaf in range(3) for host in range(4)]
OWN, FREE = HOSTS[:8:2], HOSTS[1::2]
SPEC = pb.JobSpec(hosts=OWN, gpus_per_host=2, parallelism=pb.Parallelism(tp=2))


@dataclass
class Running:
    """A controller with its agents, and the job "j" programmed."""

    controller: Controller
    client: AsyncClient

    async def ends(self, job: str = "j") -> set[str]:
        """Return the hosts that the planned flows of a job join."""
        _, routes = await self.client.list_routes(job)
        return {nic.rpartition("-")[0] for one in routes for nic in (one.source, one.destination)}

    async def does(self, *words: str) -> str:
        """Run a command that must succeed; return its output."""
        done = await self.controller.does(*words)
        assert done.code == 0, done.err
        return done.out

    async def refuses(self, *words: str) -> str:
        """Run a command that must be refused; return its error."""
        done = await self.controller.does(*words)
        assert done.code == 2, done.out
        return done.err


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[Running]:
    """Start a controller and agents, and submit the job."""
    save_fabric_file(FABRIC, folder / "fabric.json")
    async with controlling(folder) as controller:
        await controller.does("fabric", "import", folder / "fabric.json", "--fabric", "f1")
        async with (
            Fleet(FABRIC, [controller.address]) as fleet,
            AsyncClient(controller.address) as client,
        ):
            await fleet.connected(PATIENCE)
            job = await client.submit_job("j", SPEC)
            await client.wait_until(PROGRAMMED, [job], PATIENCE)
            yield Running(controller, client)


async def test_a_job_moves_to_other_hosts(tmp_path: Path) -> None:
    """A host is replaced in one step: flows end at the new one, and the old one is free.

    Wrong replacements are refused and change nothing.
    """
    async with running(tmp_path) as world:
        client = world.client
        out = await world.does("job", "replace", "j", f"{OWN[1]}={FREE[0]}")
        assert out.splitlines()[1].split()[:3] == ["j", "ACCEPTED", "4"]
        await client.wait_until(PROGRAMMED, ["j"], PATIENCE)
        wanted = [OWN[0], FREE[0], *OWN[2:]]
        assert list((await client.get_job("j")).spec.hosts) == wanted
        assert await world.ends() == set(wanted)
        await client.submit_job("other", pb.JobSpec(hosts=[OWN[1]], gpus_per_host=2))
        before = await client.get_job("j")
        said = await world.refuses("job", "replace", "j", f"{FREE[0]}={OWN[1]}")
        assert f"host '{OWN[1]}': is in use by job 'other'" in said
        said = await world.refuses("job", "replace", "j", "nowhere=z0-l0-h1")
        assert "'nowhere' is not of the job, which has z0-l0-h0" in said
        said = await world.refuses("job", "replace", "j", f"{OWN[0]}={FREE[0]}")
        assert f"'{FREE[0]}' is of the job already" in said
        said = await world.refuses("job", "replace", "j", f"{OWN[0]}")
        assert "write OLD=NEW" in said
        with pytest.raises(InvalidRequest, match="'nowhere' is not in the fabric; "):
            await client.replace_hosts("j", {OWN[0]: "nowhere"})
        with pytest.raises(NotFound):
            await client.replace_hosts("k", {OWN[0]: FREE[1]})
        assert (await client.get_job("j")).spec == before.spec
        trail = await world.does("audit", "list", "--json")
        assert trail.count('"update_job"') == 1


async def test_schedulers_that_move_hosts_at_once_lose_nothing(tmp_path: Path) -> None:
    """Replacements of different hosts at the same moment all take effect."""
    async with running(tmp_path) as world:
        moves = dict(zip(OWN, FREE, strict=False))
        await asyncio.gather(
            *(world.client.replace_hosts("j", {old: new}) for old, new in moves.items())
        )
        found = (await world.client.get_job("j")).spec
        assert list(found.hosts) == list(moves.values())
        await world.client.wait_until(PROGRAMMED, ["j"], PATIENCE)
        assert await world.ends() == set(moves.values())


async def test_a_job_grows_and_shrinks(tmp_path: Path) -> None:
    """New hosts come last, replicas follow, removed hosts are free, and reservations hold."""
    async with running(tmp_path) as world:
        client = world.client
        await client.reserve_placement("r", FREE[:2], 600)
        said = await world.refuses("job", "resize", "j", "--add", FREE[0])
        assert f"host '{FREE[0]}': is reserved by 'r'" in said
        more = ("--add", ",".join(FREE[:2]), "--remove", OWN[0])
        await world.does("job", "resize", "j", *more, "--reservation", "r")
        await client.wait_until(PROGRAMMED, ["j"], PATIENCE)
        assert await world.ends() == {*OWN[1:], *FREE[:2]}
        assert await client.list_reservations() == []
        await client.submit_job("other", pb.JobSpec(hosts=[OWN[0]], gpus_per_host=2))
        said = await world.refuses("job", "resize", "j", "--remove", OWN[1], "--dp", "9")
        assert "tp 2 × dp 9 = 18, but 4 hosts × 2 GPUs = 8 ranks; dp 4 would fit" in said
        said = await world.refuses("job", "resize", "j", "--add", OWN[0])
        assert f"host '{OWN[0]}': is in use by job 'other'" in said
        everything = [word for host in (*OWN[1:], *FREE[:2]) for word in ("--remove", host)]
        said = await world.refuses("job", "resize", "j", *everything)
        assert "none would be left: delete the job, or suspend it" in said
        said = await world.refuses("job", "resize", "j")
        assert "none comes and none goes" in said
        assert len((await client.get_job("j")).spec.hosts) == 5


async def test_a_suspended_job_keeps_its_hosts_and_sends_nothing(tmp_path: Path) -> None:
    """No switch holds an entry of a suspended job, and no other job gets its hosts.

    It can be moved meanwhile, and is programmed again when resumed.
    """
    async with running(tmp_path) as world:
        client = world.client
        events: list[str] = []

        async def listen() -> None:
            async for event in client.watch_jobs():
                events.extend([pb.JobState.Name(event.job.state)] if event.job.name else [])

        listening = asyncio.create_task(listen())
        out = await world.does("job", "suspend", "j", "--wait", "--seconds", str(PATIENCE))
        assert out.splitlines()[1].split()[:4] == ["j", "SUSPENDED", "4", "0"]
        await until(lambda: "JOB_STATE_SUSPENDED" in events, "a listener to hear of it")
        assert await world.ends() == set()
        plan = await client.plans.GetPlan(GetPlanRequest(name="fabrics/f1/plan"))
        assert plan.entry_count == 0
        assert plan.settled_generation == plan.generation
        with pytest.raises(PreconditionFailed, match="is in use by job 'j'"):
            await client.submit_job("other", pb.JobSpec(hosts=[OWN[0]], gpus_per_host=2))
        again = await client.suspend_job("j")
        assert again.state == SUSPENDED
        doctor = await world.controller.does("doctor", "job", "j")
        assert doctor.code == 1
        assert "It is suspended" in doctor.out
        assert "heddle job resume j" in doctor.out
        out = await world.does("job", "watch", "--until", "programmed", "--seconds", str(PATIENCE))
        assert "j SUSPENDED" in out
        await world.does("job", "replace", "j", f"{OWN[0]}={FREE[0]}")
        await client.wait_until(SUSPENDED, ["j"], PATIENCE)
        await world.does("job", "resume", "j")
        await client.wait_until(PROGRAMMED, ["j"], PATIENCE)
        assert await world.ends() == {FREE[0], *OWN[1:]}
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        assert "k" in await world.refuses("job", "suspend", "k")
