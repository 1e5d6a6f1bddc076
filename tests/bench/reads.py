"""How long small reads wait while a controller plans the largest fabric and rolls the plan out.

A real controller runs in a process of its own, on a Redis, with an agent for every switch in
another process. A client in a third process hands it the traffic of the whole fabric, several times
with other pairs. Meanwhile other clients ask for a job, a page of jobs, the plan's summary, one
flow's explanation, a page of links and the like, one call after the other over connections of their
own. Each answer counts for the phase in which it was asked for: planning, from the demands taken to
the plan committed, or rolling out, from then until the last switch has acknowledged it.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import grpc

from heddle.v1 import (
    fabric_pb2,
    fabric_pb2_grpc,
    overlay_pb2,
    overlay_pb2_grpc,
    placement_pb2,
    placement_pb2_grpc,
    plan_pb2,
    plan_pb2_grpc,
)
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_emulator.client import Client
from heddle_emulator.fleet import Controller
from tests.bench.planned import size_of
from tests.bench.rows import Row, Scale, spread
from tests.bench.screen import Screen
from tests.bench.workloads import published_zones
from tests.support.redis_server import EVERY_SECOND, RedisServer
from tests.support.store_samples import job

ROOT = Path(__file__).resolve().parents[2]
NAME = "fabrics/bench"
MOST_SECONDS = 0.020
"""Limit for 99 % of the answers during a plan."""
READERS = 4
PAUSE = 0.005
"""Seconds between an answer and the next question of a client."""
JOBS = 100
IDLE_SECONDS = 2.0
PATIENCE = 120.0
IDLE, TAKING, PLANNING, ROLLING = "idle", "taking demands", "full plan", "rollout"

Ask = Callable[[], Awaitable[object]]


@dataclass(slots=True)
class Answers:
    """Seconds that answers took, by phase and kind of question."""

    phase: str = IDLE
    seconds: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    """Keyed by phase, then by kind."""

    async def time(self, kind: str, ask: Ask) -> None:
        """Ask once; the answer counts for the phase in which it was asked for."""
        phase, begin = self.phase, time.perf_counter()
        await ask()
        took = time.perf_counter() - begin
        self.seconds.setdefault(phase, {}).setdefault(kind, []).append(took)

    def all(self, phase: str) -> list[float]:
        """Return the seconds of all answers of a phase."""
        return [value for values in self.seconds.get(phase, {}).values() for value in values]


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return one row each for reads during a plan, its rollout, and the taking of demands."""
    fabric = published_zones(scale)
    title = f"small reads from a controller, {size_of(fabric)}"
    with screen.progress(title, 1) as advance:
        answers = asyncio.run(_asked(fabric, scale.plan_runs))
        advance(1)
    return [_row(title, answers, phase) for phase in (PLANNING, ROLLING, TAKING)]


def _row(title: str, answers: Answers, phase: str) -> Row:
    busy, idle = spread(answers.all(phase)), spread(answers.all(IDLE))
    judged = phase == PLANNING
    kinds = {kind: spread(values) for kind, values in answers.seconds[phase].items()}
    worst = max(kinds, key=lambda kind: kinds[kind]["p99"])
    return Row(
        title,
        f"Heddle, {phase}",
        f"p50 {busy['median'] * 1e3:.1f} ms, p99 {busy['p99'] * 1e3:.1f} ms",
        f"p99 < {MOST_SECONDS * 1e3:.0f} ms" if judged else "",
        busy["p99"] < MOST_SECONDS if judged else None,
        f"{len(answers.all(phase)):,} answers to {READERS} clients; the slowest {worst}"
        f" ({busy['most'] * 1e3:.0f} ms); idle p99 {idle['p99'] * 1e3:.1f} ms",
        {"all": busy, "idle": idle, "kinds": kinds},
    )


async def _asked(fabric: Fabric, runs: int) -> Answers:
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as name:
        folder = Path(name)
        with RedisServer(folder / "redis", *EVERY_SECOND) as server:
            options = (f"--store={server.url}", "--calls-per-second=0", "--client-streams=0")
            async with Controller(folder, *options) as controller:
                return await _served(controller.api, fabric, folder, runs)


async def _served(api: str, fabric: Fabric, folder: Path, runs: int) -> Answers:
    file = folder / "fabric.json"
    save_fabric_file(fabric, file)
    async with Client(api, NAME) as client:
        await client.put_fabric(fabric)
        await client.committed_plan(0, PATIENCE)
        hosts = list(fabric.structure.host_names)
        async with aside("reads_agents", api, str(file), NAME) as agents:
            await agents.hears("connected")
            names = [f"j{number}" for number in range(min(JOBS, len(hosts) // 2))]
            for number, each in enumerate(names):
                await client.submit(job(each, (hosts[2 * number], hosts[2 * number + 1])))
            await client.programmed_jobs(names, PATIENCE)
            async with aside("reads_demands", api, str(file), NAME) as writer:
                return await _busy(client, writer, runs)


async def _busy(client: Client, writer: Aside, runs: int) -> Answers:
    answers, plan = Answers(), await client.plan()

    def seen(found: plan_pb2.Plan) -> None:
        if found.generation > plan.generation:
            answers.phase = ROLLING

    readers = [asyncio.create_task(_read(client.address, answers, turn)) for turn in range(READERS)]
    try:
        await asyncio.sleep(IDLE_SECONDS)
        for seed in range(runs):
            writer.say(str(seed))
            await writer.hears("ready")
            answers.phase = TAKING
            writer.say("put them")
            await writer.hears("taken")
            answers.phase = PLANNING
            plan = await client.programmed_plan(plan.generation, PATIENCE, seen)
            answers.phase = "between"
            await asyncio.sleep(IDLE_SECONDS)
    finally:
        for reader in readers:
            reader.cancel()
        ended = await asyncio.gather(*readers, return_exceptions=True)
    for error in ended:
        if isinstance(error, Exception):
            raise error
    return answers


async def _read(address: str, answers: Answers, turn: int) -> None:
    """Ask one question after the other, forever, over a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address, options) as channel:
        kinds = list(_questions(channel).items())
        for number in count(turn):
            kind, ask = kinds[number % len(kinds)]
            await answers.time(kind, ask)
            await asyncio.sleep(PAUSE)


def _questions(channel: grpc.aio.Channel) -> dict[str, Ask]:
    """Return the small reads by name. Each is answered with at most one page."""
    jobs = placement_pb2_grpc.PlacementServiceStub(channel)
    plans = plan_pb2_grpc.PlanServiceStub(channel)
    fabrics = fabric_pb2_grpc.FabricServiceStub(channel)
    overlays = overlay_pb2_grpc.OverlayServiceStub(channel)
    one = placement_pb2.GetJobRequest(name=f"{NAME}/jobs/j1")
    page = placement_pb2.ListJobsRequest(parent=NAME, page_size=20)
    plan = plan_pb2.GetPlanRequest(name=f"{NAME}/plan")
    watch = plan_pb2.WatchPlanRequest(name=f"{NAME}/plan")
    flow: list[str] = []

    async def explained() -> None:
        if not flow:
            first = await plans.ListRoutes(
                plan_pb2.ListRoutesRequest(parent=f"{NAME}/plan", job="j1", page_size=1)
            )
            flow.append(first.routes[0].flow)
        await plans.ExplainFlow(plan_pb2.ExplainFlowRequest(plan=f"{NAME}/plan", flow=flow[0]))

    async def watched() -> None:
        call = plans.WatchPlan(watch)
        await call.read()
        call.cancel()

    return {
        "GetJob": lambda: jobs.GetJob(one),
        "ListJobs": lambda: jobs.ListJobs(page),
        "GetPlan": lambda: plans.GetPlan(plan),
        "ListFabrics": lambda: fabrics.ListFabrics(fabric_pb2.ListFabricsRequest()),
        "ListLinks not up": lambda: fabrics.ListLinks(
            fabric_pb2.ListLinksRequest(parent=NAME, page_size=20, not_up_only=True)
        ),
        "ListLinks": lambda: fabrics.ListLinks(
            fabric_pb2.ListLinksRequest(parent=NAME, page_size=20)
        ),
        "ExplainFlow": explained,
        "WatchPlan, first": watched,
        "GetOverlay": lambda: overlays.GetOverlay(
            overlay_pb2.GetOverlayRequest(name=f"{NAME}/overlay")
        ),
    }


class Aside:
    """Another process of the bench, which exchanges lines with this one."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    def say(self, line: str) -> None:
        """Send it a line."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    async def hears(self, word: str) -> None:
        """Wait for its next line, which must be this word."""
        assert self._process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = await self._process.stdout.readline()
        assert line == f"{word}\n".encode(), f"{line!r} instead of {word}"


@asynccontextmanager
async def aside(module: str, *words: str) -> AsyncIterator[Aside]:
    """Run a module of the bench in a process of its own."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", f"tests.bench.{module}", *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "GRPC_VERBOSITY": "ERROR"},
    )
    try:
        yield Aside(process)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
