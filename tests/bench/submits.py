"""Jobs submitted by many clients at once: how many per second are accepted and durable.

Each job is first checked against the fabric and written with its audit record, as the API does it,
in one process and without planning. So the store and its checks are measured. Every submission is
acknowledged before its client submits the next one.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from heddle_controller.state.records import Request
from heddle_controller.store.embedded import open_embedded
from heddle_controller.store.redis.store import open_redis
from heddle_controller.store.store import Store
from tests.bench.rows import Row, Scale, quantile
from tests.bench.screen import Screen
from tests.support.redis_server import ALWAYS, EVERY_SECOND, RedisServer
from tests.support.store_samples import clos, job

CLIENTS = 64
LEAST = 500.0
"""Submissions per second."""
LEAVES, HOSTS = 16, 128
BLOCK = LEAVES * HOSTS // 2
"""Jobs of two hosts that fit on the fabric at once."""


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Measure the embedded store, and Redis with each way of syncing to its disk."""
    stores: dict[str, Callable[[Path], AbstractAsyncContextManager[Store]]] = {
        "embedded": _embedded,
        "Redis, appendfsync always": lambda folder: _redis(folder, ALWAYS),
        "Redis, appendfsync everysec": lambda folder: _redis(folder, EVERY_SECOND),
    }
    title = f"jobs submitted by {CLIENTS} clients at once"
    rows = []
    with screen.progress(title, len(stores)) as advance:
        for done, (who, opened) in enumerate(stores.items()):
            rows.append(asyncio.run(_row(title, who, opened, min(scale.submits, BLOCK))))
            advance(done + 1)
    return rows


async def _row(
    title: str,
    who: str,
    opened: Callable[[Path], AbstractAsyncContextManager[Store]],
    count: int,
) -> Row:
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder:
        async with opened(Path(folder)) as store:
            await store.put_fabric("f1", clos(LEAVES, 8, HOSTS))
            rate, waits = await _submit(store, count)
            assert len(await store.list_jobs("f1")) == count
    return Row(
        title,
        who,
        f"{rate:,.0f} a second; {quantile(waits, 0.99) * 1e3:.0f} ms at 99 %",
        f">= {LEAST:.0f} a second",
        rate >= LEAST,
        f"{count:,} jobs, each checked, durable and audited before the next of its client",
        {"per_second": rate, "seconds": waits},
    )


async def _submit(store: Store, count: int) -> tuple[float, list[float]]:
    """Return submissions per second, and the seconds that each took."""
    numbers = iter(range(count))
    waits: list[float] = []

    async def client() -> None:
        for number in numbers:
            leaf, host = divmod(number, HOSTS // 2)
            hosts = (f"h{leaf}.{2 * host}", f"h{leaf}.{2 * host + 1}")
            begin = time.perf_counter()
            await store.submit_job("f1", job(f"j{number}", hosts), request=Request(f"r{number}"))
            waits.append(time.perf_counter() - begin)

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(CLIENTS)))
    return count / (time.perf_counter() - begin), waits


@asynccontextmanager
async def _embedded(folder: Path) -> AsyncIterator[Store]:
    store = await open_embedded(folder / "store.db")
    yield store
    await store.close()


@asynccontextmanager
async def _redis(folder: Path, options: tuple[str, ...]) -> AsyncIterator[Store]:
    with RedisServer(folder / "redis", *options) as server:
        store = await open_redis(server.url)
        yield store
        await store.close()
