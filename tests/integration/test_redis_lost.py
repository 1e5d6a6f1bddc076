"""The store when its Redis is killed, stopped, emptied, or restored to an older state."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from heddle_controller.model.fabric import State
from heddle_controller.state.audit import verify
from heddle_controller.state.errors import StaleEpoch, Unavailable
from heddle_controller.state.records import (
    PlanFacts,
    Request,
)
from heddle_controller.store.redis.store import RedisStore
from tests.support import redis_server as clients
from tests.support.redis_server import ALWAYS, RedisServer, acknowledged
from tests.support.store_samples import clos, demands, job, plain, plan_of, program_of
from tests.support.waiting import PATIENCE

HANGS = 1.0
"""Seconds until a server counts as hung; a slow one may count too, so requests are repeated."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that has on disk whatever it acknowledged."""
    with RedisServer(tmp_path / "redis", *ALWAYS) as running:
        yield running


async def opened(server: RedisServer, **options: float) -> RedisStore:
    """Return the store of one replica."""
    return await clients.opened(server.url, lease=clients.SHORT_LEASE, **options)


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the condition holds, even while the store is unavailable."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                if await holds():
                    return
            except Unavailable:
                pass
            await asyncio.sleep(0.02)


async def usable(store: RedisStore, losses: int = 1) -> None:
    """Wait until the store has noticed ``losses`` losses of its server and takes writes again."""

    async def is_back() -> bool:
        return store.link.losses >= losses and store.link.up

    await until(is_back)


async def test_killed_server_has_all_it_acknowledged(server: RedisServer) -> None:
    """With ``appendfsync always``, a killed server loses no acknowledged write."""
    store = await opened(server)
    await store.put_fabric("f1", clos(hosts=200))
    told: list[str] = []
    begun = asyncio.Event()

    async def submit(number: int) -> None:
        wanted = job(f"j{number}", (f"h0.{number}",))
        await store.submit_job("f1", wanted)
        told.append(wanted.name)
        begun.set()

    tasks = [asyncio.create_task(submit(number)) for number in range(200)]
    await begun.wait()
    server.kill()
    await asyncio.gather(*tasks, return_exceptions=True)
    server.start()
    fresh = await opened(server)
    stored = {record.job.name for record in await fresh.list_jobs("f1")}
    assert stored >= set(told)
    assert told
    await store.close()
    await fresh.close()


async def test_away_and_back(server: RedisServer) -> None:
    """While the server is away, writes are refused and reads return the last known state."""
    store = await opened(server)
    await store.put_fabric("f1", clos())
    await store.submit_job("f1", job())
    await store.put_demands("f1", "d", demands(("n0.0", "n1.0")))
    known = plain(await store.intent("f1"))
    assert store.stale_for() == 0.0
    server.kill()
    for _ in range(2):
        with pytest.raises(Unavailable) as refused:
            await store.submit_job("f1", job("j2", ("h0.1",)))
        assert refused.value.retry_after > 0
    assert plain(await store.intent("f1")) == known
    assert (await store.get_job("f1", "j1")).job == job()
    assert store.stale_for() > 0.0
    server.start()
    await usable(store)
    assert store.stale_for() == 0.0
    await store.submit_job("f1", job("j2", ("h0.1",)))
    assert [record.job.name for record in await store.list_jobs("f1")] == ["j1", "j2"]
    await store.close()


async def test_stopped_server_hangs_nobody(server: RedisServer) -> None:
    """With a hanging server, one caller waits for the time-out; later writes fail at once."""
    store = await opened(server, timeout=HANGS)
    await acknowledged(lambda: store.put_fabric("f1", clos(), request=Request("f")))
    server.signal(signal.SIGSTOP)
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(Unavailable):
            await store.set_switch_state("f1", "s0", State.DOWN)
        refusals = [store.submit_job("f1", job(f"j{n}", ("h0.0",))) for n in range(500)]
        answers = await asyncio.gather(*refusals, return_exceptions=True)
        assert all(isinstance(answer, Unavailable) for answer in answers)
        assert (await store.get_fabric("f1")).name == "f1"
    server.signal(signal.SIGCONT)
    await usable(store)
    await acknowledged(lambda: store.set_switch_state("f1", "s0", State.DRAINED))
    await store.close()


async def test_the_same_request_finds_out(server: RedisServer) -> None:
    """After ``Unavailable``, the same request id is used again, and only one write is made."""
    store = await opened(server, timeout=HANGS)
    await acknowledged(lambda: store.put_fabric("f1", clos(), request=Request("f")))
    server.signal(signal.SIGSTOP)
    with pytest.raises(Unavailable):
        await store.submit_job("f1", job(), request=Request("r1"))
    server.signal(signal.SIGCONT)
    await usable(store)
    record = await acknowledged(lambda: store.submit_job("f1", job(), request=Request("r1")))
    assert await store.list_jobs("f1") == [record]
    await store.close()


async def test_watchers_hear_of_what_came_while_away(server: RedisServer) -> None:
    """A replica that lost the server hears, once it is back, of all that others wrote."""
    one, other = await opened(server), await opened(server)
    await one.put_fabric("f1", clos())
    changes = other.changes()
    assert await anext(changes) == "f1"
    server.kill()
    with pytest.raises(Unavailable):
        await one.set_switch_state("f1", "s0", State.DOWN)
    server.start()
    await usable(one)
    await one.set_switch_state("f1", "s0", State.DOWN)
    async with asyncio.timeout(PATIENCE):
        assert await anext(changes) == "f1"
    await until(lambda: _is_down(other))
    await one.close()
    await other.close()


async def _is_down(store: RedisStore) -> bool:
    record = await store.get_fabric("f1")
    return int(record.fabric.node_state[record.fabric.structure.index["s0"]]) == State.DOWN


def put_back(server: RedisServer, copy: Path) -> None:
    """Kill the server and start it with the data in ``copy``."""
    server.kill()
    shutil.rmtree(server.folder / "appendonlydir")
    shutil.copytree(copy, server.folder / "appendonlydir")
    server.start()


async def test_an_older_server_counts_from_then_on(server: RedisServer, tmp_path: Path) -> None:
    """After a restore to older data, all controllers use it, under versions never used before.

    Writes that the older data lacks can be requested again.
    """
    one, other = await opened(server), await opened(server)
    await one.put_fabric("f1", clos(hosts=4))
    first = await one.submit_job("f1", job("old", ("h0.3",)))
    epoch = await one.acquire_leadership("c1")
    copy = tmp_path / "copy"
    shutil.copytree(server.folder / "appendonlydir", copy)
    await one.release_leadership(epoch)
    second = await other.acquire_leadership("c2")
    await one.submit_job("f1", job(), request=Request("r1"))
    await other.delete_job("f1", "old", etag=first.etag)
    versions = await one.versions("f1")
    put_back(server, copy)
    await usable(one)
    await usable(other)
    for store in (one, other):
        now = await store.intent("f1")
        assert [(r.job, r.etag) for r in now.jobs] == [(first.job, first.etag)]
        assert now.version > versions.intent
        assert not store.leads(second)
    again = await other.submit_job("f1", job(), request=Request("r1"))
    assert [r.job.name for r in await one.list_jobs("f1")] == [again.job.name, "old"]
    page = await one.audit()
    assert verify(page.anchor, page.records) == page.head
    assert await one.acquire_leadership("c1") > second
    await one.close()
    await other.close()


async def test_old_leader_cannot_write_after_a_return(server: RedisServer, tmp_path: Path) -> None:
    """A leader from before a restore to older data leads no more and cannot commit."""
    store = await opened(server)
    await store.put_fabric("f1", clos())
    copy = tmp_path / "copy"
    shutil.copytree(server.folder / "appendonlydir", copy)
    epoch = await store.acquire_leadership("c1")
    put_back(server, copy)
    await usable(store)
    async with asyncio.timeout(PATIENCE):
        await store.leadership_lost(epoch)
    plan = plan_of((await store.intent("f1")).fabric)
    with pytest.raises(StaleEpoch):
        await store.commit(
            "f1",
            epoch=epoch,
            expected_generation=0,
            plan=plan,
            program=program_of(plan, epoch, 1),
            facts=PlanFacts(),
        )
    assert await store.acquire_leadership("c1") > epoch
    await store.close()


async def test_figures_tell_of_it(server: RedisServer) -> None:
    """Metrics count losses of the server, and returns that lack acknowledged writes."""
    store = await opened(server)
    await store.put_fabric("f1", clos())
    figures = {name: read for name, _, read in store.figures()}
    assert [read() for read in figures.values()] == [0, 0]
    assert server.command("FLUSHALL").startswith(b"+OK")
    with suppress(Unavailable):
        await store.submit_job("f1", job())
    await usable(store)
    assert figures["heddle_store_losses_total"]() == 1
    assert figures["heddle_store_older_returns_total"]() == 1
    assert await store.list_fabrics() == []
    await store.close()
