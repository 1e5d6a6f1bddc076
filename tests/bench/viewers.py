"""What viewers of the page and scrapes of metrics cost the controller: ten viewers.

The controller is that of the row ``event``, with an agent for each switch. Blocks of the same work
alternate with and without the page, its viewers and metrics: links lost and back, full plans,
reads. Processor time of the controller is counted from the first piece of a block until a pause
after the last, so that deferred work counts too.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import structlog
from prometheus_client import generate_latest

from heddle.v1 import plan_pb2
from heddle.v1.plan_pb2_grpc import PlanServiceStub
from heddle_controller.model.fabric import NodeKind
from heddle_controller.planner.process import processor_seconds
from heddle_controller.telemetry.metrics import MetricsServer, follow_plans
from heddle_controller.web.server import WebServer, WebTerms
from tests.bench.event import LIMIT, QUIET, ROOT, House, across, house, order
from tests.bench.rows import Row, Scale, quantile, spread
from tests.bench.screen import Screen
from tests.bench.workloads import between_switches, published_zones
from tests.support.web import connect, event, fetch

VIEWERS = 10
MOST = 1.02
"""Limit of the processor time with viewers, divided by that without."""
SETTLED = 1.0
"""Seconds that belong to a block after its last piece."""
READS = 400
SCRAPES, SCRAPE_SECONDS, SCRAPE_BYTES = 21, 0.2, 2 << 20
LOST, SEEN_SECONDS = 10, 1.0


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return a row each for events, full plans, reads, scrapes, and the delay of the overview."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    return asyncio.run(_measured(scale, screen))


async def _measured(scale: Scale, screen: Screen) -> list[Row]:
    fabric = published_zones(scale)
    title = f"cost of {VIEWERS} viewers, {len(fabric.rows_of_kind(NodeKind.NIC)):,} NICs"
    blocks = 1 if scale.name == "quick" else 6
    rows = []
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder:
        async with house(Path(folder), fabric, metrics=False) as h:
            seeds = itertools.count()

            async def plans(h: House) -> int:
                """Replace all flows and wait until every switch holds the new plan."""
                h.marks.clear()
                await across(h, next(seeds))
                await asyncio.wait_for(h.marks.whole.wait(), LIMIT)
                return 1

            await plans(h)
            for who, work in (("events", _events), ("full plans", plans), ("reads", _reads)):
                with screen.progress(f"{title}, {who}", blocks) as advance:
                    found = await _pairs(h, work, blocks, advance)
                rows.append(_row(title, who, found, scale))
            rows += [await _scraped(h), await _seen(h)]
    return rows


async def _scraped(h: House) -> Row:
    """Time a scrape of the metrics of a controller with an agent for each switch."""
    server = MetricsServer(h.telemetry, "127.0.0.1", 0)
    shown = asyncio.create_task(follow_plans(h.api.store, h.telemetry))
    await asyncio.sleep(SETTLED)
    seconds, size = [], 0
    for _ in range(SCRAPES):
        begin = time.perf_counter()
        answer = await asyncio.to_thread(fetch, f"http://127.0.0.1:{server.port}/metrics")
        seconds.append(time.perf_counter() - begin)
        size = len(answer.body)
    shown.cancel()
    await asyncio.to_thread(server.close)
    middle = quantile(seconds, 0.5)
    return Row(
        f"scrape, {len(h.gateway.sessions('f1')):,} agents",
        "controller",
        f"median {1e3 * middle:.1f} ms, {size:,} bytes",
        f"< {1e3 * SCRAPE_SECONDS:.0f} ms, < {SCRAPE_BYTES:,} bytes",
        middle < SCRAPE_SECONDS and size < SCRAPE_BYTES,
        f"{SCRAPES} scrapes, the longest {1e3 * max(seconds):.1f} ms",
        {"seconds": spread(seconds), "bytes": size},
    )


async def _seen(h: House) -> Row:
    """Time from an agent's hearing of a lost link to an overview that shows it down."""
    server = WebServer(h.api, WebTerms("127.0.0.1", 0))
    await server.start()
    url = f"http://127.0.0.1:{server.port}/api/fabrics/f1/stream"
    stream = await asyncio.to_thread(connect, url)

    async def told(down: int) -> float:
        while True:
            one = await asyncio.to_thread(event, stream)
            if "id" in one and json.loads(one["data"])["links"]["down_count"] == down:
                return time.monotonic()

    await told(0)
    seconds = []
    rows = np.flatnonzero(between_switches(h.fabric))
    for link in np.random.default_rng(2).permutation(rows)[:LOST].tolist():
        h.marks.clear()
        seen = asyncio.create_task(told(1))
        seconds.append(-await order(h, f"down {link}") + await seen)
        await asyncio.wait_for(h.marks.whole.wait(), LIMIT)
        h.marks.clear()
        seen = asyncio.create_task(told(0))
        await order(h, f"up {link}")
        await seen
        await asyncio.wait_for(h.marks.whole.wait(), LIMIT)
    stream.close()
    await server.stop()
    worst = max(seconds)
    return Row(
        "lost link to an overview that says so",
        "one viewer",
        f"median {1e3 * quantile(seconds, 0.5):.0f} ms, most {1e3 * worst:.0f} ms",
        f"< {1e3 * SEEN_SECONDS:.0f} ms",
        worst < SEEN_SECONDS,
        f"{LOST} links",
        {"seconds": spread(seconds)},
    )


async def _pairs(
    h: House, work: Callable[[House], Awaitable[int]], blocks: int, advance: Callable[[int], None]
) -> list[tuple[float, float]]:
    """Return processor seconds per piece of work, without viewers and with them, for each pair."""
    await work(h)  # the first run loads modules and indexes
    found = []
    for pair in range(blocks):
        seconds = {}
        for looked in (pair % 2 == 0, pair % 2 == 1):  # in turns, as a machine's speed changes
            async with looked_at(h) if looked else looked_at_before(h):
                seconds[looked] = await _block(h, work)
        found.append((seconds[False], seconds[True]))
        advance(1)
    return found


async def _block(h: House, work: Callable[[House], Awaitable[int]]) -> float:
    before = _processor_seconds(h)
    pieces = await work(h)
    await asyncio.sleep(SETTLED)
    return (_processor_seconds(h) - before) / pieces


def _processor_seconds(h: House) -> float:
    """Return processor seconds of the serving process and of the one that plans.

    The process that looks for better plans does not count, since it starts whenever things are
    quiet, and then works for seconds.
    """
    planner = h.planners[0]
    return time.process_time() + (processor_seconds(planner.pid) if planner.pid else 0.0)


@asynccontextmanager
async def looked_at(h: House) -> AsyncIterator[None]:
    """Serve the page to its viewers during the block, and follow plans for the metrics."""
    server = WebServer(h.api, WebTerms("127.0.0.1", 0))
    await server.start()
    url = f"http://127.0.0.1:{server.port}/api/fabrics/f1/stream"
    people = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.viewers_page", url, str(VIEWERS)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    async with asyncio.TaskGroup() as tasks:
        shown = tasks.create_task(follow_plans(h.api.store, h.telemetry))
        assert people.stdout is not None
        async with asyncio.timeout(LIMIT):
            assert await people.stdout.readline() == b"ready\n"
        generate_latest(h.telemetry.registry)
        await asyncio.sleep(SETTLED)
        yield
        shown.cancel()
    assert people.stdin is not None
    people.stdin.close()
    await people.wait()
    await server.stop()
    assert people.returncode == 0, "a viewer lost its stream"


@asynccontextmanager
async def looked_at_before(h: House) -> AsyncIterator[None]:
    """Let viewers come and go before a block without them.

    So the block before it has as much time for deferred work.
    """
    async with looked_at(h):
        pass
    await asyncio.sleep(SETTLED)
    yield


async def _events(h: House) -> int:
    """Take links between switches down and up."""
    rows = np.flatnonzero(between_switches(h.fabric))
    links = np.random.default_rng(1).permutation(rows)[:5].tolist()
    for words in [f"{way} {link}" for link in links for way in ("down", "up")]:
        await asyncio.sleep(QUIET)
        h.marks.clear()
        await order(h, words)
        await asyncio.wait_for(h.marks.whole.wait(), LIMIT)
    return 2 * len(links)


async def _reads(h: House) -> int:
    """Ask why a flow takes its path, again and again."""
    stub = PlanServiceStub(h.channel)
    asked = plan_pb2.ListRoutesRequest(parent="fabrics/f1/plan", page_size=1)
    flow = (await stub.ListRoutes(asked)).routes[0].flow
    for _ in range(READS):
        await stub.ExplainFlow(plan_pb2.ExplainFlowRequest(plan="fabrics/f1/plan", flow=flow))
    return READS


def _row(title: str, who: str, found: list[tuple[float, float]], scale: Scale) -> Row:
    without, with_them = np.array(found).T
    ratios = with_them / without
    middle = quantile(ratios, 0.5)
    whole = scale.name != "quick"
    return Row(
        title,
        who,
        f"{middle:.3f} times the processor time",
        f"< {MOST:g}" if whole else "",
        middle < MOST if whole else None,
        f"{len(found)} pairs, {ratios.min():.3f} to {ratios.max():.3f}; without"
        f" {1e3 * quantile(without, 0.5):.2f} ms a piece",
        {"ratios": spread(ratios), "without": spread(without), "with": spread(with_them)},
    )
