"""A Redis server that is emptied while controllers keep running."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from heddle_controller.serve.flow_index import FlowIndexes
from heddle_controller.state.audit import verify
from heddle_controller.state.errors import FabricDeleted, NotFound, PortError
from heddle_controller.state.records import PlanFacts, Request
from heddle_controller.store.redis.store import RedisStore
from heddle_controller.telemetry.metrics import Telemetry, follow_plans
from tests.support.redis_server import NEVER, RedisServer, opened
from tests.support.store_samples import clos, job, plan_of, program_of
from tests.support.waiting import PATIENCE, until


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis server that saves nothing to disk."""
    with RedisServer(tmp_path / "redis", *NEVER) as running:
        yield running


async def emptied(server: RedisServer, *stores: RedisStore) -> None:
    """Delete all keys, and wait until all replicas have noticed and accept writes again."""
    before = [store.link.losses for store in stores]
    assert server.command("FLUSHALL").startswith(b"+OK")
    async with asyncio.timeout(PATIENCE):
        for store, losses in zip(stores, before, strict=True):
            while store.link.losses == losses or not store.link.up:
                with suppress(PortError):
                    await store.delete_job("f1", "nobody")  # makes the store notice the loss
                await asyncio.sleep(0.02)


async def test_secrets_outlive_the_server(server: RedisServer) -> None:
    """A replica that starts after the loss gets the secret that the others still use.

    With a secret of its own, its agents would take the notices of all other agents for forged.
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
    """The format mark, which keeps older releases from a newer store's keys, is written again."""
    one = await opened(server.url)
    await one.put_fabric("f1", clos())
    form = server.command("HGET", "{heddle}:meta", "form")
    assert form.startswith(b"$1")
    await emptied(server, one)
    assert server.command("HGET", "{heddle}:meta", "form") == form
    await one.close()


async def test_an_emptied_server_is_begun_anew(server: RedisServer) -> None:
    """After the server is emptied, no old state counts as current, and all can be put again.

    Metrics no longer show the lost fabric, until it is put again.
    """
    one, other = await opened(server.url), await opened(server.url)
    telemetry = Telemetry()
    following = asyncio.create_task(follow_plans(one, telemetry))

    def shown(*, wanted: bool) -> bool:
        sample = telemetry.registry.get_sample_value("heddle_fabric_switches", {"fabric": "f1"})
        return (sample is not None) is wanted

    await one.put_fabric("f1", clos())
    await one.submit_job("f1", job(), request=Request("r1"))
    await until(lambda: shown(wanted=True), "metrics of the fabric")
    epoch = await one.acquire_leadership("c1")
    assert (await other.leader()).epoch == epoch
    await emptied(server, one, other)
    for store in (one, other):
        assert await store.list_fabrics() == []
        with pytest.raises(NotFound) as told:
            await store.list_jobs("f1")
        # Or else the leader would have all switches remove their entries.
        assert not isinstance(told.value, FabricDeleted)
    await until(lambda: shown(wanted=False), "metrics without the fabric")
    await other.put_fabric("f1", clos())
    await one.submit_job("f1", job(), request=Request("r1"))
    assert [record.job.name for record in await other.list_jobs("f1")] == [job().name]
    assert await other.acquire_leadership("c2") > epoch
    page = await one.audit()
    assert verify(page.anchor, page.records) == page.head
    await until(lambda: shown(wanted=True), "metrics of the fabric")
    await other.close()
    await one.close()
    await following


async def test_routes_are_of_the_plan_that_there_is(server: RedisServer) -> None:
    """The flow index of a lost plan is not used for a later plan of the same generation."""
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


async def test_a_plan_is_read_once_although_a_lost_one_was_newer(server: RedisServer) -> None:
    """Each replica keeps the newest plan that the store has, instead of reading it each time."""
    one, other = await opened(server.url), await opened(server.url)
    for commits in (3, 1):
        await one.put_fabric("f1", clos())
        epoch = await one.acquire_leadership("c1")
        plan = plan_of((await one.intent("f1")).fabric)
        for generation in range(commits):
            await one.commit(
                "f1",
                epoch=epoch,
                expected_generation=generation,
                plan=plan,
                program=program_of(plan, epoch, generation + 1),
                facts=PlanFacts(),
            )
        for store in (one, other):
            first, second = await store.committed("f1"), await store.committed("f1")
            assert first is not None
            assert second is not None
            assert (first.generation, second.generation) == (commits, commits)
            assert first.plan is second.plan
        await emptied(server, one, other)
    await one.close()
    await other.close()
