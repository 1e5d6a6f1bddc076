"""What Heddle adds to the start of a Slurm job: the run time of its prolog.

The program of deploy/slurm runs as slurmctld runs it, with a real controller and the agents of a
small fabric, one job after the other. Two things are measured beside it: a Python program that
imports grpcio and does nothing, which is the least that any client in Python takes, and the prolog
with a controller that is away.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from heddle_emulator.client import Client
from heddle_emulator.fleet import Controller
from heddle_emulator.fleet.agents import Fleet
from tests.bench.rows import Row, Scale
from tests.bench.screen import Screen
from tests.support.slurm_world import HEDDLE, NODES, PAGE, even_and_odd

TITLE = "start of a Slurm job of 8 hosts"
RUNS = 9
MOST_SECONDS, MOST_AWAY_SECONDS = 0.300, 1.0
PATIENCE = 120.0
NOWHERE = "127.0.0.1:1"


@dataclass(frozen=True, slots=True)
class Spent:
    """Seconds of one run."""

    wall: float
    processor: float


def measure(_: Scale, screen: Screen) -> list[Row]:
    """Return three rows: the prolog, the prolog without a controller, and the import alone."""
    with screen.progress(TITLE, 1) as advance:
        planned, away, alone = asyncio.run(_measured())
        advance(1)
    least = statistics.median(one.processor for one in alone)
    return [
        _row("Heddle, flows programmed", planned, least, MOST_SECONDS),
        _row("Heddle, controller away", away, least, MOST_AWAY_SECONDS),
        _row("import of grpcio alone", alone, least),
    ]


def _row(who: str, runs: Sequence[Spent], least: float, most: float | None = None) -> Row:
    wall = statistics.median(one.wall for one in runs)
    processor = statistics.median(one.processor for one in runs)
    return Row(
        f"{TITLE}: added by the prolog",
        who,
        f"{wall * 1e3:.0f} ms",
        "" if most is None else f"< {most * 1e3:.0f} ms",
        None if most is None else wall < most,
        f"median of {len(runs)}; processor {processor * 1e3:.0f} ms, {processor / least:.1f} times "
        "that of importing grpcio",
        {"seconds": wall, "processor_seconds": processor, "ratio": processor / least},
    )


async def _measured() -> tuple[list[Spent], list[Spent], list[Spent]]:
    fabric, numbers = even_and_odd(), itertools.count(1)
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as name:
        folder = Path(name)
        for program in ("prolog", "epilog"):
            shutil.copy(PAGE.parent / program, folder / program)
        async with Controller(folder) as controller:
            async with Client(controller.api, "fabrics/f1") as client:
                await client.put_fabric(fabric)
            async with Fleet(fabric, [controller.api]) as fleet:
                await fleet.connected(PATIENCE)
                planned, away, alone = [], [], []
                for _ in range(RUNS):  # in turns, so that load affects all alike
                    planned.append(await _job(folder, controller.api, next(numbers)))
                    away.append(await _job(folder, NOWHERE, next(numbers)))
                    alone.append(await _run([sys.executable, "-c", "import grpc"], {}))
        log = (folder / "log").read_text()
        if log.count("is programmed") != RUNS:
            message = f"a job was not programmed: {log}"
            raise OSError(message)
        return planned, away, alone


async def _job(folder: Path, controller: str, number: int) -> Spent:
    """Run the prolog of a job, then its epilog, and return the time of the prolog."""
    settings = {
        "HEDDLE": HEDDLE,
        "HEDDLE_SERVER": controller,
        "HEDDLE_SLURM_DIRECTORY": folder,
        "HEDDLE_SLURM_WAIT": 25,
    }
    text = "".join(f"{name}='{value}'\n" for name, value in settings.items())
    (folder / "heddle.env").write_text(text)
    job = {
        "SLURM_CLUSTER_NAME": "bench",
        "SLURM_JOB_ID": str(number),
        "SLURM_JOB_NODELIST": ",".join(NODES),
        "SLURM_JOB_COMMENT": "heddle: gpus=1 all_reduce=dp:1GiB",
        "SLURM_JOB_UID": str(os.getuid()),
    }
    spent = await _run([str(folder / "prolog")], job)
    await _run([str(folder / "epilog")], job)
    return spent


async def _run(command: Sequence[str], environment: Mapping[str, str]) -> Spent:
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = await asyncio.create_subprocess_exec(*command, env=dict(environment))
    status = await process.wait()
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    if status:
        message = f"{command[0]} ended with {status}"
        raise OSError(message)
    return Spent(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
