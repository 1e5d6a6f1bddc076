"""A Redis that is emptied under controllers that run on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from heddle_controller.serve.flow_index import FlowIndexes
from heddle_controller.state.audit import verify
from heddle_controller.state.errors import NotFound, PortError
from heddle_controller.state.records import PlanFacts, Request
from heddle_controller.store.redis.store import RedisStore
from tests.support.redis_server import NEVER, RedisServer, opened
from tests.support.store_samples import clos, job, plan_of, program_of
from tests.support.waiting import PATIENCE


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that keeps nothing."""
    with RedisServer(tmp_path / "redis", *NEVER) as running:
        yield running


async def emptied(server: RedisServer, *stores: RedisStore) -> None:
    """Take everything away, and wait until all replicas have noticed and take writes again."""
    before = [store.link.losses for store in stores]
    assert server.command("FLUSHALL").startswith(b"+OK")
    async with asyncio.timeout(PATIENCE):
        for store, losses in zip(stores, before, strict=True):
            while store.link.losses == losses or not store.link.up:
                with suppress(PortError):
                    await store.delete_job("f1", "nobody")  # a question, to notice it by
                await asyncio.sleep(0.02)


async def test_secrets_outlive_the_server(server: RedisServer) -> None:
    """A replica that starts after the loss is told the secret that the others still use.

    With one of its own, agents of its would take notices of all others for forged.
    """
    one = await opened(server.url)
    assert await one.secret("s", b"agreed") == b"agreed"
    await one.put_fabric("f1", clos())
    await emptied(server, one)
    late = await opened(server.url)
    assert await late.secret("s", b"another") == b"agreed"
    await late.close()
    await one.close()


async def test_form_outlives_the_server(server: RedisServer) -> None:
    """The mark that keeps older releases from a newer store's keys is there again."""
    one = await opened(server.url)
    await one.put_fabric("f1", clos())
    form = server.command("HGET", "{heddle}:meta", "form")
    assert form.startswith(b"$1")
    await emptied(server, one)
    assert server.command("HGET", "{heddle}:meta", "form") == form
    await one.close()


async def test_an_emptied_server_is_begun_anew(server: RedisServer) -> None:
    """Nothing of before is taken for present, and all can be asked for again."""
    one, other = await opened(server.url), await opened(server.url)
    await one.put_fabric("f1", clos())
    await one.submit_job("f1", job(), request=Request("r1"))
    epoch = await one.acquire_leadership("c1")
    assert (await other.leader()).epoch == epoch
    await emptied(server, one, other)
    for store in (one, other):
        assert await store.list_fabrics() == []
        with pytest.raises(NotFound):
            await store.list_jobs("f1")
    await other.put_fabric("f1", clos())
    await one.submit_job("f1", job(), request=Request("r1"))
    assert [record.job.name for record in await other.list_jobs("f1")] == [job().name]
    assert await other.acquire_leadership("c2") > epoch
    page = await one.audit()
    assert verify(page.anchor, page.records) == page.head
    await other.close()
    await one.close()


async def test_routes_are_of_the_plan_that_there_is(server: RedisServer) -> None:
    """What was kept of a plan that is lost answers for no plan that is made after it."""
    store = await opened(server.url)
    indexes = FlowIndexes(store)
    plans = []
    for _ in range(2):
        await store.put_fabric("f1", clos())
        epoch = await store.acquire_leadership("c1")
        plans.append(plan_of((await store.intent("f1")).fabric))
        program = program_of(plans[-1], epoch, 1)
        await store.commit(
            "f1",
            epoch=epoch,
            expected_generation=0,
            plan=plans[-1],
            program=program,
            facts=PlanFacts(),
        )
        index = await indexes.of("f1")
        assert index is not None
        assert index.plan is plans[-1]
        await emptied(server, store)
    await store.close()
