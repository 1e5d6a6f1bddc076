"""A controller that is busy with itself does not take its Redis for lost."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from heddle_controller.reconcile.errors import Unavailable
from heddle_controller.store.redis import open_redis
from tests.redis_server import NEVER, RedisServer
from tests.unit.store.samples import clos, job

TIMEOUT = 0.3


async def test_an_answer_that_waits_for_us_is_no_lost_server(tmp_path: Path) -> None:
    """The loop stands still for longer than an answer may take: nobody is refused for that."""
    with RedisServer(tmp_path, *NEVER) as server:
        store = await open_redis(server.url, timeout=TIMEOUT)
        await store.put_fabric("f1", clos())
        for _ in range(3):
            reads = [asyncio.create_task(store.list_jobs("f1")) for _ in range(3)]
            await asyncio.sleep(0.001)
            time.sleep(3 * TIMEOUT)  # noqa: ASYNC251 - what is tested
            await asyncio.gather(*reads, return_exceptions=True)
            assert store.link.up
        assert store.link.losses == 0
        await store.submit_job("f1", job(), checked_revision=1)
        await store.close()


async def test_a_server_that_hangs_is_lost_also_to_a_busy_controller(tmp_path: Path) -> None:
    """Where the loop stood still and the server does not answer, the next call finds that out."""
    with RedisServer(tmp_path, *NEVER) as server:
        store = await open_redis(server.url, timeout=TIMEOUT)
        await store.put_fabric("f1", clos())
        server.signal(signal.SIGSTOP)
        try:
            ping = asyncio.create_task(store.link.call(lambda client: client.ping()))
            await asyncio.sleep(0.001)
            time.sleep(3 * TIMEOUT)  # noqa: ASYNC251 - what is tested
            with pytest.raises(Unavailable):
                await ping
            with pytest.raises(Unavailable):
                await store.link.call(lambda client: client.ping())
            assert not store.link.up
        finally:
            server.signal(signal.SIGCONT)
        await store.close()
