"""Failover from a master that dies to its replica, under sentinels, with real processes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from heddle_controller.state.errors import PortError, StaleEpoch
from heddle_controller.state.records import (
    FabricRecord,
    JobFacts,
    JobRecord,
    JobState,
    Request,
)
from heddle_controller.store.redis.store import RedisStore
from heddle_controller.store.redis.writes import Durability
from tests.support.redis_sentinels import Sentinels
from tests.support.redis_server import (
    SHORT_LEASE,
    acknowledged,
    opened,
    submitted,
    until_they_agree,
)
from tests.support.store_samples import clos, job
from tests.support.waiting import PATIENCE


@pytest.fixture
def sentinels(tmp_path: Path) -> Iterator[Sentinels]:
    """A master with one replica, under sentinels."""
    with Sentinels(tmp_path) as running:
        yield running


async def furnished(store: RedisStore) -> None:
    """Put a fabric."""
    await acknowledged(lambda: store.put_fabric("f1", clos(hosts=100), request=Request("f")))


async def test_failover_loses_nothing_that_its_replica_was_waited_for(
    sentinels: Sentinels,
) -> None:
    """After a failover both controllers find the new master, and no acknowledged job is lost."""
    async with AsyncExitStack() as stores:
        one, other = [await _waiting(sentinels, stores) for _ in range(2)]
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
        async with asyncio.timeout(PATIENCE):
            second = await other.acquire_leadership("c2")
        assert second > epoch
        facts = {"j000": JobFacts("", JobState.PLANNED)}
        with pytest.raises(StaleEpoch):
            await acknowledged(lambda: one.record_jobs("f1", epoch=epoch, facts=facts))


async def _waiting(sentinels: Sentinels, stores: AsyncExitStack) -> RedisStore:
    """Return a store whose writes wait for the replica; it is closed with ``stores``."""
    store = await opened(sentinels.url, lease=SHORT_LEASE, durability=Durability(1))
    stores.push_async_callback(store.close)
    return store


async def test_without_its_replica_nothing_is_acknowledged(sentinels: Sentinels) -> None:
    """A store that needs a replica for each write refuses writes while there is none.

    What only the master has may be lost with it. So a request that was acknowledged before is
    refused too when it is repeated. Once there is a replica again, the same requests are
    acknowledged.
    """
    store = await opened(sentinels.url, timeout=4.0, durability=Durability(1))
    await furnished(store)

    async def asked() -> JobRecord:
        return await store.submit_job("f1", job(), request=Request("r1"))

    async def put_again() -> FabricRecord:
        return await store.put_fabric("f1", clos(hosts=100), request=Request("f"))

    sentinels.replica.kill()
    for _ in range(2):
        await _lacks_a_replica(asked)
        await _lacks_a_replica(put_again)
    sentinels.replica.start()
    record = await acknowledged(asked)
    assert await store.list_jobs("f1") == [record]
    await acknowledged(put_again)
    await store.close()


async def _lacks_a_replica(write: Callable[[], Awaitable[object]]) -> None:
    """Assert that a write is refused, for want of a replica unless the server itself is slow."""
    async with asyncio.timeout(PATIENCE):
        while True:
            with pytest.raises(PortError) as refused:
                await write()
            if "0 of 1 replicas" in str(refused.value):
                return
