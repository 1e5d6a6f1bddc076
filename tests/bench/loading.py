"""Loading the files of 24,576 NICs and their flows, which must not take longer than planning."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from heddle_controller.model.demand import resolve
from heddle_controller.model.files.fabric_file import load_fabric_file, save_fabric_file
from heddle_controller.model.files.flows_file import load_demands
from heddle_emulator.traffic import save_flows
from tests.bench.planned import size_of
from tests.bench.rows import Row, Scale, quantile
from tests.bench.screen import Screen
from tests.bench.workloads import published_zones, zone_traffic

MOST_SECONDS = 3.0
ROUNDS = 5


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Load the fabric from JSON and the flows from CSV, checked and turned into arrays."""
    fabric = published_zones(scale)
    title = f"loading files, {size_of(fabric)}"
    flows = zone_traffic(fabric, 0)
    seconds: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as name:
        files = Path(name) / "fabric.json", Path(name) / "flows.csv"
        save_fabric_file(fabric, files[0])
        save_flows(fabric, flows, files[1])
        with screen.progress(title, ROUNDS) as advance:
            for _ in range(ROUNDS):
                seconds.append(_load(*files))
                advance(len(seconds))
    total = quantile([sum(both) for both in seconds], 0.5)
    parts = [quantile([both[part] for both in seconds], 0.5) for part in (0, 1)]
    return [
        Row(
            title,
            "Heddle",
            f"{total:.2f} s median of {ROUNDS}",
            f"< {MOST_SECONDS:.0f} s",
            total < MOST_SECONDS,
            f"fabric.json {parts[0]:.2f} s, flows.csv with {len(flows):,} flows {parts[1]:.2f} s",
            {"seconds": [sum(both) for both in seconds], "fabric": parts[0], "flows": parts[1]},
        )
    ]


def _load(fabric_file: Path, flows_file: Path) -> tuple[float, float]:
    """Return the seconds to load the fabric, and to load the flows on it."""
    begin = time.perf_counter()
    fabric = load_fabric_file(fabric_file)
    between = time.perf_counter()
    resolve(load_demands(flows_file), fabric, origin=str(flows_file))
    return between - begin, time.perf_counter() - between
