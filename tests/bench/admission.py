"""What Heddle adds to the start of a Workload of Kueue: from reserved quota until it is Ready.

``heddle-kubernetes`` runs as a process, as it does in a pod, between the API server of the tests
and a real controller with the agents of a small fabric. Workloads start one after the other. A
second row is for a controller that is away, where the workload starts after its time limit.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.bench.rows import Row, Scale
from tests.bench.screen import Screen
from tests.support.kube_world import World, kube_world, workload
from tests.support.slurm_world import NODES

TITLE = "start of a Workload of 8 hosts"
RUNS = 9
MOST_SECONDS, LIMIT = 0.500, 2.0
POLL = 0.002


@dataclass(frozen=True, slots=True)
class Answered:
    """Seconds that one workload took: wall time, and processor time of heddle-kubernetes."""

    wall: float
    processor: float


def measure(_: Scale, screen: Screen) -> list[Row]:
    """Return two rows: with routes programmed, and with a controller that is away."""
    with (
        screen.progress(TITLE, 1) as advance,
        tempfile.TemporaryDirectory(prefix="heddle-bench-") as name,
        kube_world(Path(name)) as world,
    ):
        planned = _answered(world, "60", RUNS, "planned: ")
        world.kill_controller()
        away = _answered(world, str(LIMIT), 3, "not planned within ")
        world.start_controller()
        advance(1)
    return [
        _row("Heddle, routes programmed", planned, MOST_SECONDS),
        _row(f"Heddle, controller away, limit {LIMIT:g} s", away, LIMIT + MOST_SECONDS),
    ]


def _row(who: str, runs: Sequence[Answered], most: float) -> Row:
    wall = statistics.median(one.wall for one in runs)
    processor = statistics.median(one.processor for one in runs)
    return Row(
        f"{TITLE}: reserved until Ready",
        who,
        f"{wall * 1e3:.0f} ms",
        f"< {most * 1e3:.0f} ms",
        wall < most,
        f"median of {len(runs)}; processor of heddle-kubernetes {processor * 1e3:.0f} ms",
        {"seconds": wall, "processor_seconds": processor},
    )


def _answered(world: World, wait: str, runs: int, said: str) -> list[Answered]:
    """Start workloads one after the other.

    The first is not counted, since it waits until the program has started.
    """
    process = world.launch("--wait", wait, "--sweep", "0.5", "--no-tiers")
    used = psutil.Process(process.pid)
    found = []
    for number in range(runs + 1):
        before = used.cpu_times()
        begin = time.perf_counter()
        key = world.submit(workload(f"w{wait}-{number}", NODES))
        while world.check(key)["state"] != "Ready":
            time.sleep(POLL)
        wall, after = time.perf_counter() - begin, used.cpu_times()
        if number:
            if not (message := world.check(key)["message"]).startswith(said):
                raise OSError(message)
            spent = after.user + after.system - before.user - before.system
            found.append(Answered(wall, spent))
        world.conclude(key, "Finished")
        if said.startswith("planned"):
            while world.jobs():
                time.sleep(POLL)
    process.terminate()
    process.wait()
    return found
