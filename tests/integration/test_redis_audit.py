"""One audit trail that several controllers write at the same time."""

from __future__ import annotations

import asyncio
from pathlib import Path

from heddle_controller.state.audit import verify
from heddle_controller.state.errors import AlreadyExists
from tests.support.redis_server import NEVER, RedisServer, opened
from tests.support.store_samples import clos, job

EACH = 60
"""Number of jobs that each controller submits."""


async def test_controllers_that_write_at_once_make_one_chain(tmp_path: Path) -> None:
    """Each acknowledged write is in the audit trail exactly once, and the chain verifies."""
    with RedisServer(tmp_path / "redis", *NEVER) as server:
        stores = [await opened(server.url) for _ in range(3)]
        await stores[0].put_fabric("f1", clos(hosts=EACH))
        told: list[str] = []

        async def submit(who: int, number: int) -> None:
            # The second and third controller use the same names, so one of the two is refused.
            wanted = job(f"j{min(who, 1)}-{number}", (f"h{min(who, 1)}.{number}",))
            try:
                await stores[who].submit_job("f1", wanted)
            except AlreadyExists:
                return
            told.append(f"fabrics/f1/jobs/{wanted.name}")

        await asyncio.gather(*(submit(who, n) for n in range(EACH) for who in range(3)))
        page = await stores[0].audit()
        assert verify(page.anchor, page.records) == page.head
        names = [r.entry.name for r in page.records if r.entry.action == "submit_job"]
        assert sorted(names) == sorted(told)
        assert len(names) == 2 * EACH
        for store in stores:
            await store.close()
