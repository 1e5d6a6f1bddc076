"""Recommendations of hosts for a large job, asked of a real controller over its API.

The fabric is half full with jobs. In the first state each job is in one piece; in the second every
third one is spread over random hosts. Once the last plan is proven, a client asks for five choices,
for one shape of job after another. Another client asks for a job all the while. Its answers during
that time are compared with those of a time without such questions. Processor time is that of the
controller and its child processes.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from heddle.client import AsyncClient
from heddle.v1.placement_pb2 import JobSpec, Parallelism
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.job import Job
from heddle_controller.traffic.jobs import flows_of_job
from heddle_emulator.client import Client
from heddle_emulator.fleet import Controller
from heddle_emulator.topology import three_tier
from tests.bench.placing import SHAPES, drawn_job, moved_about
from tests.bench.planned import size_of
from tests.bench.rows import Row, Scale, quantile, spread
from tests.bench.screen import Screen

NAME = "fabrics/bench"
HOSTS, CHOICES = 256, 5
SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 32, 64, 128)
MOST_SECONDS = 0.300
IDLE_SECONDS, PAUSE, PATIENCE = 5.0, 0.005, 120.0
LOOK_SECONDS, QUIET_SHARE = 2.0, 0.05
"""A controller is quiet if it uses less than this share of a processor for this long."""
RUNS = 5
STATES = ("in one piece", "all over")


@dataclass(slots=True)
class Asked:
    """Seconds of each question for one shape of job in one state."""

    shape: str
    walls: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    others: list[float] = field(default_factory=list)
    """Seconds that answers to the other client took meanwhile."""


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return a row for each state and shape, and per state one for other questions meanwhile."""
    fabric = tapered_zones(scale)
    rows = []
    with screen.progress("recommendations", len(STATES)) as advance:
        for number, state in enumerate(STATES):
            found, idle = asyncio.run(_asked(fabric, state, min(RUNS, scale.plan_runs)))
            rows += _rows(fabric, state, found, idle)
            advance(number + 1)
    return rows


def tapered_zones(scale: Scale) -> Fabric:
    """Return the largest fabric of a scale, with zones that are tapered 7:1."""
    leaves, spines, nics = scale.zone
    return three_tier(
        zones=scale.zones,
        leaves=leaves,
        spines=spines,
        nics_per_leaf=nics,
        nics_per_host=min(8, nics),
        cores=spines,
        taper=7.0,
    )


def _rows(fabric: Fabric, state: str, found: Sequence[Asked], idle: Sequence[float]) -> list[Row]:
    title = f"{CHOICES} choices of hosts, {size_of(fabric)}, jobs {state}"
    rows = []
    for asked in found:
        wall, processor = quantile(asked.walls, 0.5), quantile(asked.processor, 0.5)
        rows.append(
            Row(
                title,
                f"Heddle, {asked.shape}",
                f"{wall * 1e3:.0f} ms, {processor * 1e3:.0f} ms of processor",
                f"< {MOST_SECONDS * 1e3:.0f} ms",
                wall < MOST_SECONDS,
                f"median of {len(asked.walls)}, the first {asked.walls[0] * 1e3:.0f} ms",
                {"walls": asked.walls, "processor": asked.processor},
            )
        )
    busy = spread([one for asked in found for one in asked.others])
    quiet = spread(idle)
    rows.append(
        Row(
            title,
            "Heddle, other answers",
            f"p50 {busy['median'] * 1e3:.1f} ms, p99 {busy['p99'] * 1e3:.1f} ms",
            note=f"idle: p50 {quiet['median'] * 1e3:.1f} ms, p99 {quiet['p99'] * 1e3:.1f} ms",
            data={"busy": busy, "idle": quiet},
        )
    )
    return rows


def half_full(fabric: Fabric, state: str) -> tuple[list[Job], list[str]]:
    """Return jobs on half of the hosts, and the hosts that are free."""
    draw = random.Random(1)
    known = fabric.structure.nics_of_host
    hosts, gpus = sorted(known), len(next(iter(known.values())))
    jobs: list[Job] = []
    at = 0
    while at < len(hosts):
        own = tuple(hosts[at : at + draw.choice(SIZES)])
        jobs.append(drawn_job(f"j{len(jobs):03d}", draw.choice(SHAPES), own, gpus, draw))
        at += len(own)
    draw.shuffle(jobs)
    kept: list[Job] = []
    while sum(len(one.hosts) for one in kept) < len(hosts) / 2:
        kept.append(jobs.pop())
    if state == STATES[1]:
        return kept, moved_about(kept, hosts, draw)
    used = {host for job in kept for host in job.hosts}
    return kept, [host for host in hosts if host not in used]


async def _asked(fabric: Fabric, state: str, runs: int) -> tuple[list[Asked], list[float]]:
    jobs, free = half_full(fabric, state)
    count = min(HOSTS, len(free) // 2)
    flows = sum(len(flows_of_job(job, fabric)) for job in jobs)
    options = ("--calls-per-second=0", "--client-streams=0")
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder:
        async with Controller(Path(folder), *options) as controller:
            async with Client(controller.api, NAME) as client:
                await client.put_fabric(fabric)
                for job in jobs:
                    await client.submit(job)
                await client.committed_plan(flows, PATIENCE)
            async with (
                AsyncClient(controller.api, fabric="bench") as asking,
                AsyncClient(controller.api, fabric="bench") as other,
            ):
                await _quiet(controller.pid)
                idle: list[float] = []
                reader = asyncio.create_task(_read(other, jobs[0].name, idle))
                await asyncio.sleep(IDLE_SECONDS)
                await _cancelled(reader)
                found = [
                    await _shape(asking, other, controller.pid, jobs[0].name, (shape, count, runs))
                    for shape in SHAPES
                ]
    return found, idle


async def _shape(
    asking: AsyncClient, other: AsyncClient, pid: int, name: str, what: tuple[str, int, int]
) -> Asked:
    shape, count, runs = what
    found = Asked(f"{shape} of {count} hosts")
    gpus = (await other.get_job(name)).spec.gpus_per_host
    pp, ep = 2 if shape == "pp" and count % 2 == 0 else 1, count if shape == "moe" else 1
    ep = next((part for part in (8, 4, 2) if ep % part == 0), 1)
    spec = JobSpec(gpus_per_host=gpus, parallelism=Parallelism(tp=gpus, pp=pp, ep=ep))
    reader = asyncio.create_task(_read(other, name, found.others))
    for _ in range(runs):
        before, begin = _processor(pid), time.perf_counter()
        answer = await asking.recommend_placement(spec, count, count=CHOICES)
        found.walls.append(time.perf_counter() - begin)
        found.processor.append(_processor(pid) - before)
        assert answer.placements
    await _cancelled(reader)
    return found


async def _read(client: AsyncClient, name: str, seconds: list[float]) -> None:
    """Ask for a job again and again, forever."""
    while True:
        begin = time.perf_counter()
        await client.get_job(name)
        seconds.append(time.perf_counter() - begin)
        await asyncio.sleep(PAUSE)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


async def _quiet(pid: int) -> None:
    """Wait until the controller is quiet, once the last plan has been compared and proven."""
    used, begun = -1.0, time.monotonic()
    while (now := _processor(pid)) - used > LOOK_SECONDS * QUIET_SHARE:
        if time.monotonic() - begun > PATIENCE:
            message = "the controller does not become quiet"
            raise OSError(message)
        used = now
        await asyncio.sleep(LOOK_SECONDS)


def _processor(pid: int) -> float:
    """Return the processor seconds of a process and its descendants."""
    process = psutil.Process(pid)
    times = [one.cpu_times() for one in (process, *process.children(recursive=True))]
    return sum(one.user + one.system for one in times)
