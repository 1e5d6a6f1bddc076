"""The web page at the size of the largest fabric, in a browser: first content, heat map, memory.

The controller is that of the row ``event``, with every NIC sending into another zone, and a
headless Chromium on this machine. Times are the browser's own, from the start of the navigation.
Memory is what the largest renderer process holds by itself, after the heat map was opened several
times.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

import psutil
import structlog

from heddle_controller.model.fabric import NodeKind
from heddle_controller.web.server import WebServer, WebTerms
from tests.bench.event import LIMIT, across, house
from tests.bench.rows import Row, Scale, quantile, spread
from tests.bench.screen import Screen
from tests.bench.workloads import published_zones
from tests.support.chromium import Page, browsing

FIRST_SECONDS, READY_SECONDS, MEBIBYTES = 1.0, 2.0, 300.0
OPENED = 5
TOLD = """JSON.stringify([performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
  performance.now()])"""


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return three rows: first content, heat map, memory."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    return asyncio.run(_measured(scale, screen))


async def _measured(scale: Scale, screen: Screen) -> list[Row]:
    fabric = published_zones(scale)
    title = f"page, {len(fabric.rows_of_kind(NodeKind.NIC)):,} NICs"
    with (
        tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder,
        screen.progress(title, OPENED) as advance,
    ):
        async with house(Path(folder), fabric, metrics=False) as h:
            await across(h)
            await asyncio.wait_for(h.marks.whole.wait(), LIMIT)
            server = WebServer(h.api, WebTerms("127.0.0.1", 0))
            await server.start()
            async with browsing(Path(folder)) as page:
                await page.window(1280, 1000)
                first, ready = await _opened(page, server.port)
                advance(OPENED)
                held = _held()
                wrong = list(page.console)
            await server.stop()
    note = f"{OPENED} times opened; console errors: {len(wrong)}"
    return [
        _row((title, "first content"), first, FIRST_SECONDS, scale, note),
        _row((title, "heat map drawn"), ready, READY_SECONDS, scale, note),
        Row(
            title,
            "memory",
            f"{held:.0f} MiB",
            f"< {MEBIBYTES:.0f} MiB",
            held < MEBIBYTES and not wrong,
            note,
            {"mebibytes": held, "console": wrong},
        ),
    ]


async def _opened(page: Page, port: int) -> tuple[list[float], list[float]]:
    """Return the seconds to the first content of the overview, and to a painted heat map."""
    first: list[float] = []
    ready: list[float] = []
    for _ in range(OPENED):
        for path, there, kept, which in (
            ("", "#verdict", first, 0),
            ("/map", "[data-painted]", ready, 1),
        ):
            await page.open("about:blank")
            await page.open(f"http://127.0.0.1:{port}/fabrics/f1{path}")
            await page.until(f"document.querySelector('{there}')")
            kept.append(json.loads(await page.does(TOLD))[which] / 1000)
    return first, ready


def _held() -> float:
    """Return the MiB that the largest renderer process holds by itself."""
    below = psutil.Process().children(recursive=True)
    drawing = [one for one in below if "--type=renderer" in one.cmdline()]
    return max(float(one.memory_full_info().uss) / (1 << 20) for one in drawing)


def _row(title: tuple[str, str], seconds: list[float], most: float, scale: Scale, note: str) -> Row:
    middle = quantile(seconds, 0.5)
    whole = scale.name != "quick"
    return Row(
        *title,
        f"median {1e3 * middle:.0f} ms, most {1e3 * max(seconds):.0f} ms",
        f"< {1e3 * most:.0f} ms" if whole else "",
        middle < most if whole else None,
        note,
        {"seconds": spread(seconds)},
    )
