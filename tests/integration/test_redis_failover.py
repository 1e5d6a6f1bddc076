"""A master that dies, and its replica that takes over, under sentinels: all real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from heddle_controller.reconcile.errors import PortError, StaleEpoch, Unavailable
from heddle_controller.reconcile.records import JobFacts, JobState, Request
from heddle_controller.store.redis import RedisStore, open_redis
from heddle_controller.store.redis.lane import Durability
from tests.redis_sentinels import Sentinels
from tests.unit.store.samples import clos, job

DEADLINE = 30.0

Answer = TypeVar("Answer")


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    """A master with one replica."""
    with Sentinels(tmp_path) as running:
        yield running


async def acknowledged(write: Callable[[], Awaitable[Answer]]) -> Answer:
    """Write as a client does: again, under the same id, until it is acknowledged."""
    async with asyncio.timeout(DEADLINE):
        while True:
            try:
                return await write()
            except Unavailable:
                await asyncio.sleep(0.05)


async def furnished(store: RedisStore) -> None:
    """Put a fabric."""
    await acknowledged(lambda: store.put_fabric("f1", clos(hosts=100), request=Request("f")))


async def submitted(store: RedisStore, number: int) -> str:
    """Submit a job of a number; its name once it is acknowledged."""
    wanted = job(f"j{number:03}", (f"h0.{number}",))
    request = Request(f"r{number}")
    await acknowledged(lambda: store.submit_job("f1", wanted, checked_revision=1, request=request))
    return wanted.name


async def until_they_agree(stores: list[RedisStore], names: list[str]) -> None:
    """Wait until every controller has found the one master, and that has these jobs.

    One that was sent to the old master meanwhile has to find out first.
    """
    async with asyncio.timeout(DEADLINE):
        while True:
            found = [[r.job.name for r in await store.list_jobs("f1")] for store in stores]
            fresh = not any(store.stale_for() for store in stores)
            if fresh and all(jobs == names for jobs in found):
                return
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("waits", [0, 1])
async def test_failover_loses_nothing_acknowledged(sentinels: Sentinels, waits: int) -> None:
    """The replica takes over; both controllers find it, and every acknowledged job is there.

    Without waiting for the replica the new master may have less than the old one: what it
    lacks is offered again by whoever wrote it.
    """
    durability = Durability(waits)
    one = await open_redis(sentinels.url, timeout=0.5, durability=durability)
    other = await open_redis(sentinels.url, timeout=0.5, durability=durability)
    await furnished(one)
    epoch = await one.acquire_leadership("c1")
    names = [await submitted(one, number) for number in range(20)]
    rest = [
        asyncio.create_task(submitted(store, number))
        for number, store in zip(range(20, 100), [one, other] * 40, strict=True)
    ]
    await rest[0]
    await asyncio.to_thread(sentinels.fail_over)
    names += await asyncio.gather(*rest)
    await until_they_agree([one, other], sorted(names))
    await one.release_leadership(epoch)
    async with asyncio.timeout(DEADLINE):
        second = await other.acquire_leadership("c2")
    assert second > epoch
    facts = {"j000": JobFacts("", JobState.PLANNED)}
    with pytest.raises(StaleEpoch):
        await acknowledged(lambda: one.record_jobs("f1", epoch=epoch, facts=facts))
    await one.close()
    await other.close()


async def test_without_its_replica_nothing_is_acknowledged(sentinels: Sentinels) -> None:
    """Who wants a replica to have each write is refused while there is none, and may ask again."""
    store = await open_redis(sentinels.url, timeout=0.5, durability=Durability(1))
    await furnished(store)
    sentinels.replica.kill()
    with pytest.raises(PortError, match="0 of 1 replicas"):
        await store.submit_job("f1", job(), checked_revision=1, request=Request("r1"))
    sentinels.replica.start()
    record = await acknowledged(
        lambda: store.submit_job("f1", job(), checked_revision=1, request=Request("r1"))
    )
    assert await store.list_jobs("f1") == [record]
    await store.close()
