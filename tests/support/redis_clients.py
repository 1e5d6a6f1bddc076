"""What clients of stores in Redis do while servers of it die: ask again, and wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from heddle_controller.state.errors import Unavailable
from heddle_controller.state.records import Request
from heddle_controller.store.redis.store import RedisStore, open_redis
from tests.support.store_samples import job
from tests.support.waiting import PATIENCE

Answer = TypeVar("Answer")

CALL_SECONDS = 30.0
"""A server that answers at all answers in less, also where a machine has much else to do."""


SHORT_LEASE = 1.0
"""Where a lease has to run out, and who leads meanwhile is nothing to the test."""


async def opened(url: str, **options: Any) -> RedisStore:
    """A store that no pause of this machine takes the server or the lead from."""
    return await open_redis(url, **{"timeout": CALL_SECONDS, "lease": PATIENCE, **options})


async def acknowledged(write: Callable[[], Awaitable[Answer]]) -> Answer:
    """Write as a client does: again, under the same id, until it is acknowledged."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await write()
            except Unavailable:
                await asyncio.sleep(0.05)


async def submitted(store: RedisStore, number: int) -> str:
    """Submit a job of a number; its name once it is acknowledged."""
    wanted, request = job(f"j{number:03}", (f"h0.{number}",)), Request(f"r{number}")
    await acknowledged(lambda: store.submit_job("f1", wanted, checked_revision=1, request=request))
    return wanted.name


async def until_they_agree(stores: list[RedisStore], names: list[str]) -> None:
    """Wait until every controller reads these jobs from the one master, and not from memory.

    One that was sent to an old master meanwhile has to find out first.
    """
    async with asyncio.timeout(PATIENCE):
        while True:
            found = [[r.job.name for r in await store.list_jobs("f1")] for store in stores]
            fresh = not any(store.stale_for() for store in stores)
            if fresh and all(jobs == names for jobs in found):
                return
            await asyncio.sleep(0.1)
