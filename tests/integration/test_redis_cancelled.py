"""Tasks that wait for Redis end when they are cancelled, wherever the cancellation reaches them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from heddle_controller.store.redis.store import RedisStore
from tests.support.redis_server import NEVER, SHORT_LEASE, RedisServer, opened
from tests.support.waiting import PATIENCE

TIMES = 60


@asynccontextmanager
async def served(folder: Path) -> AsyncIterator[RedisStore]:
    """A store on a Redis server of its own."""
    with RedisServer(folder, *NEVER) as server:
        store = await opened(server.url, lease=SHORT_LEASE)
        try:
            yield store
        finally:
            await store.close()


async def ask(store: RedisStore) -> None:
    """Ping the server without end."""
    while True:
        await store.link.call(lambda client: client.ping())


async def follow(store: RedisStore) -> None:
    """Follow changes without end."""
    async for _fabric in store.changes():
        pass


@pytest.mark.parametrize("work", [ask, follow])
async def test_it_ends(
    tmp_path: Path, work: Callable[[RedisStore], Coroutine[Any, Any, None]]
) -> None:
    """A task that is cancelled at a random moment ends, and the store keeps its connection."""
    chance = random.Random(1)
    async with served(tmp_path) as store:
        busy = asyncio.create_task(ask(store))
        for number in range(TIMES):
            task = asyncio.create_task(work(store))
            await asyncio.sleep(chance.choice([0, 0.002]) * chance.random())
            for _ in range(chance.randrange(4)):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=PATIENCE)
            assert done, f"number {number} goes on: {task.get_stack()}"
            assert task.cancelled()
        assert not busy.done()
        busy.cancel()
        await asyncio.wait([busy])
        assert store.link.up
        assert not store.link.losses, "that somebody gave up is no loss of the server"


async def test_who_is_cancelled_as_he_gives_the_lease_back_is_cancelled(tmp_path: Path) -> None:
    """A task that is cancelled while it releases the lease ends as cancelled, at whichever step.

    The cancellation must not be mistaken for that of the lease's renewal.
    """
    async with served(tmp_path) as store:
        for steps in range(1, 8):
            epoch = await store.acquire_leadership("me")

            async def give_back(epoch: int = epoch) -> None:
                await store.release_leadership(epoch)
                await asyncio.Event().wait()

            task = asyncio.create_task(give_back())
            for _ in range(steps):
                await asyncio.sleep(0)
            task.cancel()
            done, _pending = await asyncio.wait([task], timeout=PATIENCE)
            assert done, f"cancelled at step {steps}, it goes on: {task.get_stack()}"
            assert not store.leads(epoch)
