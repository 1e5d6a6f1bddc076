"""How much longer one client's calls take while hostile strangers attack the controller.

The controller is a process of its own and checks tokens. The client has a token, the strangers have
none. All of them share the machine, so part of the ratio is the strangers' own work.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import multiprocessing.synchronize
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from tests.bench.rows import Row, Scale, quantile
from tests.bench.screen import Screen
from tests.integration.test_serve_floods import LIST, dial, peak_memory
from tests.integration.test_strangers_door import (
    attack,
    large_references,
    pings,
    resets,
    small_references,
    strangers_welcome,
)

CALLS, PAUSE = 300, 0.005
MOST = 10.0
"""The 99 % quantile may be at most this many times that without strangers."""
Said = Callable[[], Iterator[bytes]]
STRANGERS: dict[str, Said] = {
    "references to a small header": small_references,
    "references to a large header": large_references,
    "calls taken back at once": resets,
    "pings": pings,
}


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return one row for each kind of stranger."""
    del scale
    title = "others' calls beside a stranger"
    with (
        screen.progress(title, len(STRANGERS)) as advance,
        tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder,
    ):
        return asyncio.run(_rows(title, Path(folder), advance))


async def _rows(title: str, folder: Path, advance: Callable[[int], None]) -> list[Row]:
    rows = []
    async with (
        strangers_welcome(folder) as (controller, ca, token),
        dial(controller.port, ca) as channel,
    ):
        fabrics = FabricServiceStub(channel)
        known = (("authorization", f"Bearer {token}"),)

        async def ask() -> list[float]:
            waits = []
            for _ in range(CALLS):
                begin = time.perf_counter()
                await fabrics.ListFabrics(LIST, metadata=known)
                waits.append(time.perf_counter() - begin)
                await asyncio.sleep(PAUSE)
            return waits

        await ask()
        for done, (who, said) in enumerate(STRANGERS.items()):
            idle, before = await ask(), peak_memory(controller)
            async with _beside(controller.port, ca, said):
                waits = await ask()
            more = (peak_memory(controller) - before) >> 20
            ratio = quantile(waits, 0.99) / quantile(idle, 0.99)
            rows.append(
                Row(
                    title,
                    who,
                    f"{ratio:.1f} x as long at 99 %",
                    f"<= {MOST:.0f} x",
                    ratio <= MOST,
                    f"{quantile(idle, 0.99) * 1e3:.1f} ms without; {more} MiB more memory",
                    {"ratio": ratio, "idle": idle, "seconds": waits, "mebibytes": more},
                )
            )
            advance(done + 1)
    return rows


@asynccontextmanager
async def _beside(port: int, ca: Path, said: Said) -> AsyncIterator[None]:
    """Attack the controller from a process of its own, again and again, during the block."""
    context = multiprocessing.get_context("spawn")
    begun = context.Event()
    stranger = context.Process(target=_again, args=(port, ca, said, begun), daemon=True)
    stranger.start()
    try:
        await asyncio.to_thread(begun.wait)
        yield
    finally:
        stranger.terminate()
        await asyncio.to_thread(stranger.join)


def _again(port: int, ca: Path, said: Said, begun: multiprocessing.synchronize.Event) -> None:
    async def forever() -> None:
        while True:
            await attack(port, ca, said)

    begun.set()
    asyncio.run(forever())
