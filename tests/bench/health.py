"""Whether a full plan keeps a controller from answering health checks in the meantime.

A real controller in a process of its own is given the largest fabric and its flows over the API.
From the moment the flows are handed over until the plan is committed, a client asks for its health,
one call after the other. The slowest answer counts. The cost of asking itself is measured on the
idle controller.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_emulator.client import Client
from heddle_emulator.fleet import Controller
from tests.bench.planned import size_of
from tests.bench.rows import Row, Scale, spread
from tests.bench.screen import Screen
from tests.bench.workloads import published_zones, zone_traffic
from tests.support.health import is_healthy

MOST_SECONDS = 0.050
PAUSE = 0.002
"""Seconds between an answer and the next question."""
IDLE_CALLS = 200
PLAN_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Answers:
    """Seconds that each answer took."""

    idle: list[float]
    busy: list[float]
    solve: float
    """Seconds in the solver, as the controller reports them."""
    wait: float
    """Seconds from handing over the flows until the plan is committed."""


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return one row, for the slowest answer."""
    fabric = published_zones(scale)
    title = f"health of a controller during a full plan, {size_of(fabric)}"
    with screen.progress(title, 1) as advance:
        found = asyncio.run(_asked(fabric, zone_traffic(fabric, 0)))
        advance(1)
    busy, idle = spread(found.busy), spread(found.idle)
    return [
        Row(
            title,
            "Heddle",
            f"slowest answer {busy['most'] * 1e3:.0f} ms, p99 {busy['p99'] * 1e3:.1f} ms",
            f"< {MOST_SECONDS * 1e3:.0f} ms",
            busy["most"] < MOST_SECONDS,
            f"{len(found.busy):,} answers from demands to plan, {found.wait:.1f} s, of which the"
            f" solver {found.solve:.1f} s; idle p99 {idle['p99'] * 1e3:.1f} ms",
            {"busy": busy, "idle": idle, "solve_seconds": found.solve, "seconds": found.wait},
        )
    ]


async def _asked(fabric: Fabric, flows: Flows) -> Answers:
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as name:
        async with Controller(Path(name)) as controller:
            client = Client(controller.api, "fabrics/bench")
            async with client, Client(controller.api, "fabrics/bench") as asking:
                await client.put_fabric(fabric)
                await client.committed_plan(0, PLAN_SECONDS)
                idle = [await _answer(asking) for _ in range(IDLE_CALLS)]
                return await _busy(client, asking, (fabric, flows), idle)


async def _busy(
    client: Client, asking: Client, wanted: tuple[Fabric, Flows], idle: list[float]
) -> Answers:
    busy: list[float] = []

    async def ask() -> None:
        while True:
            busy.append(await _answer(asking))
            await asyncio.sleep(PAUSE)

    await client.put_demands("all", *wanted)
    begin = time.perf_counter()
    asker = asyncio.create_task(ask())
    try:
        plan = await client.committed_plan(len(wanted[1]), PLAN_SECONDS)
    finally:
        asker.cancel()
        await asyncio.gather(asker, return_exceptions=True)
    return Answers(idle, busy, plan.solve_seconds, time.perf_counter() - begin)


async def _answer(asking: Client) -> float:
    begin = time.perf_counter()
    await is_healthy(asking)
    return time.perf_counter() - begin
