"""A store in a Redis cluster. All its keys are in one slot, whose master may change."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle_controller.state.errors import StaleEpoch
from heddle_controller.state.records import JobFacts, JobState, PlanFacts, Request
from heddle_controller.store.redis.writes import Durability
from tests.support.redis_cluster import Cluster
from tests.support.redis_server import (
    SHORT_LEASE,
    acknowledged,
    opened,
    submitted,
    until_they_agree,
)
from tests.support.store_samples import clos, demands, job, plan_of, program_of
from tests.support.waiting import PATIENCE

JOBS = 60


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three masters, and a replica of the one that holds the store."""
    with Cluster(tmp_path) as running:
        yield running


async def test_all_that_a_store_does_is_done_in_a_cluster(cluster: Cluster) -> None:
    """Another controller sees the intent, plan, lease and change notices that one has written."""
    one, other = await opened(cluster.url), await opened(cluster.url)
    fabric, heard = clos(hosts=JOBS), asyncio.Event()

    async def listen() -> None:
        async for name in other.changes():
            if name == "f1":
                heard.set()

    listening = asyncio.create_task(listen())
    await one.put_fabric("f1", fabric)
    record = await one.submit_job("f1", job("j1", ("h0.1",)))
    await one.put_demands("f1", "d", demands(("n0.0", "n1.0")))
    epoch = await one.acquire_leadership("c1")
    plan = plan_of(fabric)
    committed = await one.commit(
        "f1",
        epoch=epoch,
        expected_generation=0,
        plan=plan,
        program=program_of(plan, epoch, 1),
        facts=PlanFacts(),
    )
    async with asyncio.timeout(PATIENCE):
        await heard.wait()
    assert await other.list_jobs("f1") == [record]
    assert (await other.intent("f1")).demands[0].demands.ids == ("f0",)
    read_plan = await other.committed("f1")
    assert read_plan is not None
    assert read_plan.generation == committed.generation == 1
    assert (await other.leader()).epoch == epoch
    listening.cancel()
    await one.close()
    await other.close()


async def test_a_master_that_dies_takes_nothing_with_it_that_its_replica_was_waited_for(
    cluster: Cluster,
) -> None:
    """After the master dies, its replica takes over, and no acknowledged write is lost.

    Both controllers find the new master through the remaining nodes. The old leader cannot write.
    """
    durability = Durability(1)
    one = await opened(cluster.url, lease=SHORT_LEASE, durability=durability)
    other = await opened(cluster.url, lease=SHORT_LEASE, durability=durability)
    await acknowledged(lambda: one.put_fabric("f1", clos(hosts=JOBS), request=Request("f")))
    epoch = await one.acquire_leadership("c1")
    names = [await submitted(one, number) for number in range(10)]
    rest = [
        asyncio.create_task(submitted((one, other)[number % 2], number))
        for number in range(10, JOBS)
    ]
    await rest[0]
    await asyncio.to_thread(cluster.fail_over)
    names += await asyncio.gather(*rest)
    await until_they_agree([one, other], sorted(names))
    await one.release_leadership(epoch)
    async with asyncio.timeout(PATIENCE):
        assert await other.acquire_leadership("c2") > epoch
    facts = {"j000": JobFacts("", JobState.PLANNED)}
    with pytest.raises(StaleEpoch):
        await acknowledged(lambda: one.record_jobs("f1", epoch=epoch, facts=facts))
    await one.close()
    await other.close()


async def test_a_slot_that_moves_takes_the_store_along(cluster: Cluster) -> None:
    """While all keys move to another master, writes continue, with brief refusals at most."""
    seed = 1
    chance = random.Random(seed)
    one, other = await opened(cluster.url), await opened(cluster.url)
    await one.put_fabric("f1", clos(hosts=JOBS))
    names = [await submitted(one, number) for number in range(10)]

    async def late(number: int) -> str:
        await asyncio.sleep(chance.uniform(0, 0.5))
        return await submitted((one, other)[number % 2], number)

    rest = [asyncio.create_task(late(number)) for number in range(10, JOBS)]
    to = await asyncio.to_thread(cluster.move)
    names += await asyncio.gather(*rest)
    await until_they_agree([one, other], sorted(names))
    assert f":{to.port}" in to.command("CLUSTER", "SLOTS").decode()
    assert to.command("EXISTS", "{heddle}:sequence") == b":1\r\n"
    assert other.figures()
    await one.close()
    await other.close()
