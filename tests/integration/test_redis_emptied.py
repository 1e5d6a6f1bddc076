"""What an emptied Redis is given back besides the intent: who asked for what, and secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from heddle_controller.state.audit import verify
from heddle_controller.state.errors import PortError, Unavailable
from heddle_controller.state.records import Request
from heddle_controller.store.redis import RedisStore
from tests.redis_clients import opened
from tests.redis_server import NEVER, RedisServer
from tests.unit.store.samples import clos, job
from tests.waiting import PATIENCE


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


async def trail(store: RedisStore) -> list[tuple[str, str, str]]:
    """Action, name and request of all records, by number, the chain being sound."""
    page = await store.audit()
    assert verify(page.anchor, page.records) == page.head
    return [(r.entry.action, r.entry.name, r.entry.request) for r in page.records]


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


async def test_requests_and_trail_outlive_the_server(server: RedisServer) -> None:
    """A repeated request is answered as the first was, and the trail names what was asked.

    As often as the server is emptied, and nothing of it twice.
    """
    one, other = await opened(server.url), await opened(server.url)
    await one.put_fabric("f1", clos())
    kept = await one.submit_job("f1", job(), checked_revision=1, request=Request("r1"))
    await other.submit_job("f1", job("gone", ("h0.1",)), checked_revision=1)
    await other.delete_job("f1", "gone", request=Request("r2"))
    told = await trail(one)
    assert len(told) == 4
    for _ in range(2):
        await emptied(server, one, other)
        assert sorted(await trail(one)) == sorted(told)
        again = await other.submit_job("f1", job(), checked_revision=1, request=Request("r1"))
        assert again == kept
        await one.delete_job("f1", "gone", request=Request("r2"))
        assert [record.job.name for record in await one.list_jobs("f1")] == [job().name]
    await other.close()
    await one.close()


async def test_emptied_in_the_middle(server: RedisServer) -> None:
    """Emptied again and again while it is written to, it has what was acknowledged, once each."""
    one = await opened(server.url)
    await one.put_fabric("f1", clos(hosts=20))
    names = []
    for number in range(20):
        if number % 5 == 0:
            server.command("FLUSHALL")
        async with asyncio.timeout(PATIENCE):
            while True:
                wanted, request = job(f"j{number}", (f"h0.{number}",)), Request(f"r{number}")
                try:
                    await one.submit_job("f1", wanted, checked_revision=1, request=request)
                    break
                except Unavailable:
                    await asyncio.sleep(0.02)
        names.append(f"j{number}")
    assert sorted(record.job.name for record in await one.list_jobs("f1")) == sorted(names)
    told = [name for action, name, _ in await trail(one) if action == "submit_job"]
    assert sorted(told) == sorted(f"fabrics/f1/jobs/{name}" for name in names)
    await one.close()
