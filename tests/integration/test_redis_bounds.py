"""The memory used in Redis stays bounded, and refused writes leave nothing behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from heddle_controller.state.audit import verify
from heddle_controller.state.errors import StaleEpoch, Unavailable, Unusable
from heddle_controller.state.plans import KEPT, plan_rows
from heddle_controller.state.records import PlanFacts, Request
from heddle_controller.store.applier import Bounds
from heddle_controller.store.redis.store import RedisStore
from heddle_controller.store.redis.writes import Keys
from tests.support.redis_server import NEVER, RedisServer, opened
from tests.support.store_samples import clos, demands, job, plan_of, program_of
from tests.support.waiting import PATIENCE, until

KEYS = Keys("heddle")
BOUNDS = Bounds(requests=10, writes=10, audit=10)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis server that holds nothing else."""
    with RedisServer(tmp_path, *NEVER) as running:
        yield running


@pytest.fixture
async def store(server: RedisServer) -> AsyncIterator[RedisStore]:
    """A store with small bounds."""
    small = await opened(server.url, bounds=BOUNDS)
    yield small
    await small.close()


async def ask(store: RedisStore, *words: Any) -> Any:
    """Return the server's answer to a command."""
    client: Any = store.link
    return await client.call(lambda redis: redis.execute_command(*words))


async def blobs(store: RedisStore) -> set[str]:
    """Return the keys of all large values that do not expire; each must be referenced."""
    names = [name.decode() for name in await ask(store, "KEYS", KEYS.blob("*"))]
    lasting = {name for name in names if await ask(store, "TTL", name) == -1}
    assert lasting == {name.decode() for name in await ask(store, "HKEYS", KEYS.references)}
    return lasting


async def commit(store: RedisStore, epoch: int) -> None:
    """Commit a plan after the newest one."""
    generation = (await store.versions("f1")).generation
    plan = plan_of((await store.intent("f1")).fabric)
    await store.commit(
        "f1",
        epoch=epoch,
        expected_generation=generation,
        plan=plan,
        program=program_of(plan, epoch, generation + 1),
        facts=PlanFacts(),
    )


async def test_large_values_go_with_what_points_at_them(store: RedisStore) -> None:
    """Structures, plans and demand sets are deleted with the last record that refers to them.

    A plan is stored as its difference from the plan before, which is kept as long.
    """
    epoch = await store.acquire_leadership("c")
    for spines in (2, 3, 2, 3, 4):
        await store.put_fabric("f1", clos(spines=spines))
        await commit(store, epoch)
    assert len(await blobs(store)) == 5 + 5, "five plans, each on a structure of its own"
    for _ in range(KEPT):
        await commit(store, epoch)
    held = await blobs(store)
    rows = plan_rows(store.applier.view("f1"))
    needed = {blob for row in rows.values() for blob in row.pointed_at()}
    assert len(rows) == KEPT
    assert held == {KEYS.blob(blob) for blob in needed}, "kept plans, and what they go on from"
    for _ in range(3):
        await store.put_demands("f1", "d", demands(("n0.0", "n1.0")))
    assert len(await blobs(store)) == len(held) + 1
    await store.delete_demands("f1", "d")
    assert await blobs(store) == held


async def test_a_refused_plan_goes_by_itself(store: RedisStore, server: RedisServer) -> None:
    """Values that were written for a refused commit expire by themselves."""
    await store.put_fabric("f1", clos())
    epoch = await store.acquire_leadership("c")
    await commit(store, epoch)
    before = await blobs(store)
    other = await opened(server.url, bounds=BOUNDS)
    await store.release_leadership(epoch)
    await other.acquire_leadership("d")
    with pytest.raises(StaleEpoch):
        await commit(store, epoch)
    assert await blobs(store) == before
    await other.close()


async def test_a_large_value_that_is_lost_is_told(store: RedisStore, server: RedisServer) -> None:
    """A replica that has not read a value yet says that the store lacks it, and does not hang."""
    await store.put_fabric("f1", clos())
    epoch = await store.acquire_leadership("c")
    await commit(store, epoch)
    await store.put_demands("f1", "d", demands(("n0.0", "n1.0")))
    reads: dict[str, Callable[[RedisStore], Awaitable[object]]] = {
        "demands": lambda other: other.get_demands("f1", "d"),
        "plan": lambda other: other.committed("f1"),
        "structure": lambda other: other.get_fabric("f1"),
    }
    for kind, read in reads.items():
        assert await ask(store, "DEL", *await ask(store, "KEYS", KEYS.blob(f"{kind}-*"))) == 1
        other = await opened(server.url, bounds=BOUNDS)
        with pytest.raises(Unusable, match=f"{kind}-.* is gone; restore"):
            await asyncio.wait_for(read(other), PATIENCE)
        await other.close()


async def test_memories_are_bounded(store: RedisStore) -> None:
    """Answers to requests, the log and the audit trail keep only the newest; the trail verifies."""
    await store.put_fabric("f1", clos(hosts=7))
    for number in range(400):
        name = f"j{number % 7}"
        request = Request(f"r{number}")
        if number % 14 < 7:
            await store.submit_job("f1", job(name, (f"h0.{number % 7}",)), request=request)
        else:
            await store.delete_job("f1", name, request=request)
    assert await ask(store, "HLEN", KEYS.requests) == BOUNDS.requests
    assert await ask(store, "LLEN", KEYS.request_order) == BOUNDS.requests
    assert await ask(store, "XLEN", KEYS.log) < 250, "trimmed by whole pages of the stream"
    page = await store.audit()
    assert len(page.records) == BOUNDS.audit
    assert verify(page.anchor, page.records) == page.head
    assert page.head.number == 401
    assert await ask(store, "DBSIZE") < 15


async def test_a_replica_that_slept_through_the_log(store: RedisStore, server: RedisServer) -> None:
    """A replica that missed more than the log holds reads all again and reports the change."""
    other = await opened(server.url, bounds=BOUNDS)
    await other.put_fabric("f1", clos(hosts=500))
    await store.versions("f1")
    changes = store.changes()
    assert await anext(changes) == "f1"
    for number in range(400):
        wanted = job(f"j{number}", (f"h0.{number}",))
        await other.submit_job("f1", wanted)
    assert await anext(changes) == "f1"
    assert len(await store.list_jobs("f1")) == 400
    assert await store.versions("f1") == await other.versions("f1")
    await other.close()


async def test_a_server_without_memory_is_asked_for_the_lead_now_and_then(
    store: RedisStore,
) -> None:
    """A server that refuses all writes is asked as often as it says, and the log says why.

    Reads are answered, the audit trail among them. With room again, there is a leader.
    """
    await store.put_fabric("f1", clos(), request=Request("a1", "ann"))
    await ask(store, "CONFIG", "SET", "maxmemory", "1")
    with pytest.raises(Unavailable, match="maxmemory") as refused:
        await store.submit_job("f1", job())
    began, asked = time.monotonic(), await scripts_run(store)
    with capture_logs() as logs:
        leading = asyncio.create_task(store.acquire_leadership("c1"))
        await until(lambda: any("maxmemory" in one.get("why", "") for one in logs), "the log")
        for _ in range(100):
            await ask(store, "PING")
        asked = await scripts_run(store) - asked
        assert asked <= 2 * (2 + (time.monotonic() - began) / refused.value.retry_after)
        page = await store.audit()
        assert verify(page.anchor, page.records) == page.head
        assert [one.entry.actor for one in page.records] == ["ann"]
    await ask(store, "CONFIG", "SET", "maxmemory", "0")
    assert await asyncio.wait_for(leading, PATIENCE) > 0


async def scripts_run(store: RedisStore) -> int:
    """Return how many scripts the server has been asked to run."""
    stats = await ask(store, "INFO", "commandstats")
    return sum(
        int(stats[name]["calls"]) for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats
    )
