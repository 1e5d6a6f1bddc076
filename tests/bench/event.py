"""From a lost link to the last acknowledgement, with every switch's agent: the time of each part.

The controller (store on disk, API, loop) runs in this process, its planning processes beside it.
The agents of all switches run in one more process, with tables in memory. Traffic comes in through
the API. Either each zone has a job whose rings load every NIC and no link beyond its capacity, or
every NIC sends into another zone, at 1:7. Then links between switches go down and come back, one
after the other. An event begins when the agents at both ends of the link hear of it. It ends when
the store has recorded that every switch holds the plan made for it. Agents report their counters
all the while. What the controller uses for that alone is measured after the last event.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import structlog
from grpc import aio

from heddle.v1 import demand_pb2, placement_pb2
from heddle.v1.demand_pb2_grpc import DemandServiceStub
from heddle.v1.placement_pb2_grpc import PlacementServiceStub
from heddle_controller.model.demand import Demands
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_controller.model.job import Job, Parallelism
from heddle_controller.planner.process import PlanningProcess, processor_seconds
from heddle_controller.reconcile.loop import Reconciler
from heddle_controller.reconcile.observations import Observations
from heddle_controller.reconcile.ports import SystemClock
from heddle_controller.reconcile.worker import Dependencies, ReconcileSettings
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.serve.agents.service import SessionTerms
from heddle_controller.serve.api import Api, Rooms
from heddle_controller.serve.codec.demand import demand_to_pb
from heddle_controller.serve.codec.job import job_to_pb
from heddle_controller.serve.server import ServerTerms
from heddle_controller.settings import Settings
from heddle_controller.store.embedded import open_embedded
from heddle_controller.telemetry.metrics import Telemetry, follow_plans
from tests.bench.event_marks import (
    PARTS,
    Marks,
    time_planner,
    time_pushes,
    time_reports,
    time_store,
)
from tests.bench.rows import Row, Scale, quantile, spread
from tests.bench.screen import Screen
from tests.bench.workloads import GBPS, between_switches, published_zones, shuffled
from tests.support.serving import OPTIONS
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
MOST_SECONDS = 0.1
WARM = 2
"""The first links, not counted because modules and indexes are loaded for the first time."""
LIMIT = 120.0
QUIET = 0.5
"""Seconds between two events, so that work left over from one is no part of the next."""
IDLE = 10
"""Seconds after the last event that are measured, as long as each agent takes to report once."""
CHUNK = 4096


@dataclass(slots=True)
class House:
    """A controller, and the agents of all its switches."""

    fabric: Fabric
    api: Api
    telemetry: Telemetry
    channel: aio.Channel
    gateway: Gateway
    marks: Marks
    agents: asyncio.subprocess.Process
    planners: tuple[PlanningProcess, ...]

    def processor_seconds(self) -> float:
        """Return the processor seconds of all processes of the controller so far."""
        others = [processor_seconds(one.pid) for one in self.planners if one.pid]
        return time.process_time() + sum(others)


@dataclass(slots=True)
class Trials:
    """Results of some events."""

    seconds: list[float] = field(default_factory=list)
    parts: list[dict[str, float]] = field(default_factory=list)
    work: list[float] = field(default_factory=list)
    """Processor seconds of all processes of the controller."""
    pushes: list[int] = field(default_factory=list)
    idle: float = 0.0
    """Processor seconds of all processes of the controller for each second without an event."""


def measure(scale: Scale, screen: Screen) -> list[Row]:
    """Return rows for each kind of traffic: links that are lost, and links that come back."""
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    return asyncio.run(_measured(scale, screen))


async def _measured(scale: Scale, screen: Screen) -> list[Row]:
    rows: list[Row] = []
    for who, ask in (("jobs at 1:1", jobs), ("across zones at 1:7", across)):
        fabric = published_zones(scale)
        title = f"link event to all acknowledged, {len(fabric.rows_of_kind(NodeKind.NIC)):,} NICs"
        with screen.progress(f"{title}, {who}", scale.event_links) as advance:
            lost, back = await _events(fabric, ask, scale.event_links, advance)
        rows += [_row(title, f"{who}, lost", lost, scale), _row(title, f"{who}, back", back, scale)]
    return rows


async def _events(
    fabric: Fabric, ask: Callable[[House], Any], links: int, advance: Callable[[int], None]
) -> tuple[Trials, Trials]:
    """Take so many links down and up again."""
    rows = np.flatnonzero(between_switches(fabric))
    chosen = np.random.default_rng(1).permutation(rows)[: links + WARM].tolist()
    lost, back = Trials(), Trials()
    with tempfile.TemporaryDirectory(prefix="heddle-bench-") as folder:
        async with house(Path(folder), fabric) as h:
            await ask(h)
            await asyncio.wait_for(h.marks.whole.wait(), LIMIT)
            for done, link in enumerate(chosen):
                kept = (lost, back) if done >= WARM else (Trials(), Trials())
                await change(h, f"down {link}", kept[0])
                await change(h, f"up {link}", kept[1])
                advance(max(0, done + 1 - WARM))
            lost.idle = back.idle = await _idle(h)
    return lost, back


async def change(h: House, words: str, trials: Trials) -> None:
    """Change one link and wait until every switch holds the plan made for it."""
    await asyncio.sleep(QUIET)
    h.marks.clear()
    work = h.processor_seconds()
    heard = await order(h, words)
    await asyncio.wait_for(h.marks.whole.wait(), LIMIT)
    trials.work.append(h.processor_seconds() - work)
    trials.seconds.append(h.marks.end() - heard)
    trials.parts.append(h.marks.parts(heard))
    trials.pushes.append(len(h.marks.pushes))


async def _idle(h: House) -> float:
    """Return the processor seconds that the controller uses in the median second without an event.

    The first seconds may hold work that the last event left.
    """
    spent = []
    for _ in range(IDLE):
        work = h.processor_seconds()
        await asyncio.sleep(1.0)
        spent.append(h.processor_seconds() - work)
    return statistics.median(spent)


async def order(h: House, words: str) -> float:
    """Take a link down or up; return when its agents heard of it, on the monotonic clock."""
    assert h.agents.stdin is not None
    assert h.agents.stdout is not None
    h.agents.stdin.write(f"{words}\n".encode())
    return float(await h.agents.stdout.readline())


@asynccontextmanager
async def house(folder: Path, fabric: Fabric, *, metrics: bool = True) -> AsyncIterator[House]:
    """Run a controller wired as in ``app``, with timers around its parts and all agents connected.

    Without ``metrics``, no task follows the plans to update the metrics.
    """
    async with AsyncExitStack() as stack:
        store = await open_embedded(folder / "store.sqlite3")
        stack.push_async_callback(store.close)
        await store.put_fabric("f1", fabric)
        telemetry, marks, settings = Telemetry(), Marks(), Settings()
        gateway = Gateway(telemetry, settings.agent_queue)
        time_store(store, marks)
        time_pushes(gateway, marks)
        observations = Observations()
        time_reports(observations, marks)
        names = "plans", "questions", "proofs"
        planner, advisor, prover = planners = [PlanningProcess(name) for name in names]
        for process in planners:
            stack.push_async_callback(process.close)
        time_planner(planner, marks)
        pause = settings.debounce_seconds
        pace = ReconcileSettings(debounce=pause, debounce_most=max(20 * pause, 0.1))
        world = Dependencies(
            *(store, gateway, observations, SystemClock(), telemetry, planner, advisor, prover),
            pace,
        )
        reconciler = Reconciler(world)
        rooms = Rooms(store, gateway, observations, telemetry, advisor)
        api = Api(rooms, ServerTerms("127.0.0.1", 0), SessionTerms("bench", 10.0, 0.0))
        stack.push_async_callback(api.stop, 2.0)
        await api.start()
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        stack.callback(tasks.create_task(reconciler.run()).cancel)
        if metrics:
            stack.callback(tasks.create_task(follow_plans(store, telemetry)).cancel)
        await reconciler.known.wait()
        api.set_serving(serving=True)
        channel = await stack.enter_async_context(
            aio.insecure_channel(f"127.0.0.1:{api.port}", OPTIONS)
        )
        agents = await stack.enter_async_context(_agents(api.port, folder, fabric))
        count = int(np.count_nonzero(fabric.structure.nodes.kind != NodeKind.NIC))
        await until(lambda: len(gateway.sessions("f1")) == count, seconds=LIMIT)
        yield House(fabric, api, telemetry, channel, gateway, marks, agents, tuple(planners))
        agents.kill()
        await until(lambda: not gateway.sessions("f1"), seconds=LIMIT)


@asynccontextmanager
async def _agents(
    port: int, folder: Path, fabric: Fabric
) -> AsyncIterator[asyncio.subprocess.Process]:
    file = folder / "fabric.json"
    save_fabric_file(fabric, file)
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.bench.event_agents", f"127.0.0.1:{port}", str(file)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "GRPC_VERBOSITY": "ERROR"},
    )
    try:
        yield run
    finally:
        if run.returncode is None:
            run.kill()
        await run.wait()


async def jobs(h: House) -> None:
    """Submit a job for each zone, its hosts in random order.

    Each NIC sends to one of the same rail in another host.
    """
    random = np.random.default_rng(3)
    nodes = h.fabric.structure
    service = PlacementServiceStub(h.channel)
    for zone, name in enumerate(nodes.zone_names):
        mine = nodes.nodes.host[(nodes.nodes.zone == zone) & (nodes.nodes.kind == NodeKind.NIC)]
        hosts = tuple(nodes.host_names[row] for row in random.permutation(np.unique(mine)))
        gpus = len(nodes.nics_of_host[hosts[0]])
        job = Job(f"job-{name}", hosts, gpus, Parallelism(tp=gpus, dp=len(hosts)))
        spec = job_to_pb(job)
        h.marks.clear()
        await service.SubmitJob(
            placement_pb2.SubmitJobRequest(parent="fabrics/f1", job_id=job.name, spec=spec)
        )
        await asyncio.wait_for(h.marks.whole.wait(), LIMIT)


async def across(h: House, seed: int = 3) -> None:
    """Let every NIC send at line rate to a NIC of another zone, each being sent to once."""
    nics = h.fabric.rows_of_kind(NodeKind.NIC)
    zone, ids = h.fabric.structure.nodes.zone, h.fabric.structure.nodes.ids
    to = shuffled(nics, np.random.default_rng(seed), zone[nics])
    count = len(nics)
    demands = Demands(
        ids=tuple(f"x{row}" for row in range(count)),
        source=tuple(ids[row] for row in nics.tolist()),
        destination=tuple(ids[row] for row in to.tolist()),
        gbps=np.full(count, GBPS),
        job=("across",) * count,
        phase=("",) * count,
        qps=np.ones(count, dtype=np.int64),
        traffic_class=np.zeros(count, dtype=np.int64),
    )
    put = DemandServiceStub(h.channel).PutDemands()
    for begin in range(0, count, CHUNK):
        rows = range(begin, min(begin + CHUNK, count))
        some = [demand_to_pb(demands, row) for row in rows]
        name = "" if begin else "fabrics/f1/demands/across"
        told = 0 if begin else count
        await put.write(demand_pb2.PutDemandsRequest(name=name, demands=some, flow_count=told))
    await put.done_writing()
    await put


def _row(title: str, who: str, trials: Trials, scale: Scale) -> Row:
    p50, p99 = quantile(trials.seconds, 0.5), quantile(trials.seconds, 0.99)
    middle = {name: quantile([one[name] for one in trials.parts], 0.5) for name in PARTS}
    work = spread(trials.work)
    whole = scale.name != "quick"
    parts = ", ".join(f"{name} {seconds * 1e3:.1f}" for name, seconds in middle.items())
    return Row(
        title,
        who,
        f"median {p50 * 1e3:,.0f} ms, p99 {p99 * 1e3:,.0f} ms",
        f"p99 < {MOST_SECONDS * 1e3:.0f} ms" if whole else "",
        p99 < MOST_SECONDS if whole else None,
        f"{len(trials.seconds)} links, {quantile(trials.pushes, 0.5):.0f} pushes each;"
        f" processor {work['median'] * 1e3:,.0f} ms, and {trials.idle * 1e3:,.0f} ms in each second"
        f" without an event; medians in ms: {parts}",
        {
            "seconds": spread(trials.seconds),
            "processor_seconds": work,
            "idle_processor_seconds": trials.idle,
            "pushes": spread(trials.pushes),
            "parts": {name: spread([one[name] for one in trials.parts]) for name in PARTS},
        },
    )
