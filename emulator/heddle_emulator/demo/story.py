"""The course of the demo: place jobs, measure, break a link, measure again.

Nothing is simulated: the controller is the installed program with its own store, the agents speak
to it over gRPC, and every number comes from packets that were walked through the agents' tables.
What the controller says is compared with the measurement, and any difference makes the demo fail.

The checks are plain functions of what was measured and what the controller said. Paths are compared
QP by QP: two sets of paths are equal only if every walked packet went exactly where the controller
says.
"""

from __future__ import annotations

import asyncio
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from heddle.client import TimedOut
from heddle.v1 import common_pb2, plan_pb2
from heddle_controller.model.arrays import Bools, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Job
from heddle_controller.model.plan import Paths, arc_loads, worst_by_tier
from heddle_controller.traffic.jobs import flows_of_jobs
from heddle_emulator.client import Client, Routed, routed
from heddle_emulator.client.api import qp_arcs
from heddle_emulator.demo.scene import scene_jobs
from heddle_emulator.demo.screen import (
    JOB_HEAD,
    MOVED_HEAD,
    TIER_HEAD,
    Screen,
    compare_rows,
    fabric_words,
    job_rows,
    moved_rows,
    tier_rows,
)
from heddle_emulator.drill.live import LiveFabric, cable_name
from heddle_emulator.drill.scenario import Step, StepKind
from heddle_emulator.drill.steps import StepRunner
from heddle_emulator.fleet import Controller, Fleet
from heddle_emulator.fleet.agents import agent_logs
from heddle_emulator.hosts import Hosts
from heddle_emulator.walk import Measurement, crossing, measure, moved

CLOSE = 1e-6
"""Relative tolerance within which utilisations and bounds count as equal."""


def strays(walked: Paths, told: Routed) -> Ints:
    """Return the flows with a QP whose path differs from the one that the controller lists."""
    went, said = qp_arcs(walked), qp_arcs(told.paths)
    flows = {flow for flow, _ in went.keys() | said.keys()}
    stray = {qp[0] for qp in went.keys() | said.keys() if went.get(qp) != said.get(qp)}
    return np.array(sorted(stray & flows), dtype=np.int64)


def needless(fabric: Fabric, flows: Flows, before: Paths, after: Paths, among: Ints) -> Ints:
    """Return flows that moved without need, among those that did not use the lost link.

    A flow needed to move if its old path would make the worst link of some tier worse than it is
    now.
    """
    worst = worst_by_tier(fabric, arc_loads(2 * fabric.link_count, flows, after))
    found = []
    for flow in among.tolist():
        back = _with(after, before, flow)
        would = worst_by_tier(fabric, arc_loads(2 * fabric.link_count, flows, back))
        if all(would[tier] <= worst[tier] * (1 + CLOSE) for tier in worst):
            found.append(flow)
    return np.array(found, dtype=np.int64)


def _with(paths: Paths, other: Paths, flow: int) -> Paths:
    """Return paths with one flow's taken from another set, in an order that loads do not need."""
    kept = paths.take(np.flatnonzero(paths.flow != flow))
    own = other.take(np.flatnonzero(other.flow == flow))
    return replace(
        kept,
        flow=np.concatenate([kept.flow, own.flow]),
        first_qp=np.concatenate([kept.first_qp, own.first_qp]),
        last_qp=np.concatenate([kept.last_qp, own.last_qp]),
        first=np.concatenate([kept.first, kept.first[-1] + own.first[1:]]),
        arcs=np.concatenate([kept.arcs, own.arcs]),
    )


def gap(certificate: common_pb2.Certificate, tier: str) -> float:
    """Return how far a tier's worst link is above its proven lower bound; 0 is optimal."""
    for row in certificate.tiers:
        if row.tier == tier and row.lower_bound > 0:
            return row.max_utilization / row.lower_bound - 1
    return 0.0


def disagreements(certificate: common_pb2.Certificate, worst: dict[str, float]) -> list[str]:
    """List the tiers whose measured worst link differs from the certificate."""
    said = {row.tier: row.max_utilization for row in certificate.tiers}
    return [
        f"{tier}: measured {worst[tier]:.4f}, certified {said.get(tier, 0.0):.4f}"
        for tier in worst
        if abs(worst[tier] - said.get(tier, 0.0)) > CLOSE * max(worst[tier], 1.0)
    ]


_FABRIC = "fabrics/demo"
_PATIENCE = 45.0
"""Most seconds for any one step; all steps together usually take a fraction of it."""
_CONTENDED = "leaf-spine"
"""The tier where hashing collides, and where the plan is proven optimal."""


@dataclass(slots=True)
class DemoStage:
    """The parts of the demo, the newest plan, and the measurement of that plan."""

    screen: Screen
    fabric: Fabric
    jobs: list[Job]
    flows: Flows
    seed: int
    controller: Controller
    client: Client
    fleet: Fleet
    plan: plan_pb2.Plan = field(default_factory=plan_pb2.Plan)
    heddle: Measurement | None = None

    def measure(self, flows: Flows | None = None) -> Measurement:
        """Walk packets through the agents' tables in the current state of the world."""
        return measure(
            self.fleet.world, self.flows if flows is None else flows, self.fleet.switches
        )

    async def settle(self, plan: plan_pb2.Plan) -> Measurement:
        """Measure a plan that is programmed, and compare it with what the controller says."""
        generation, routes = await self.client.list_routes()
        while generation != plan.generation:
            plan = await self.client.programmed_plan(generation - 1, _PATIENCE)
            generation, routes = await self.client.list_routes()
        self.fleet.switches.hosts = Hosts(self.fabric, routes)
        self.plan, told = plan, routed(self.fabric, self.flows, routes)
        self.heddle = found = self.measure()
        self._check_routes(told)
        self._check_walk(found, told)
        return found

    def _check_routes(self, told: Routed) -> None:
        reasons = [f"{flow}: {reason}" for flow, reason in told.unrouted.items()]
        self.screen.check(
            not reasons, f"every flow has a path ({len(self.flows):,} flows)" + first_of(reasons)
        )
        ports = self.flows.source_ports()
        other = [
            f"{self.flows.ids[row]}: {said}, packets carry {port}"
            for row, (said, port) in enumerate(zip(told.source_port, ports, strict=True))
            if said not in {0, port}
        ]
        if other:
            self.screen.check(
                False, "source ports of the plan are those of packets" + first_of(other)
            )

    def _check_walk(self, found: Measurement, told: Routed) -> None:
        walk, world = found.walk, self.fleet.world
        lost = [walk.story(world, self.flows, row) for row in walk.lost.tolist()]
        total = len(walk.flow)
        self.screen.check(
            not lost,
            f"every packet arrives ({total - len(lost):,} of {total:,} QPs)" + first_of(lost),
        )
        stray = [self.flows.ids[row] for row in strays(found.paths, told).tolist()]
        self.screen.check(
            not stray, "packets go where the plan says, QP by QP, hop by hop" + first_of(stray)
        )
        wrong = disagreements(self.plan.certificate, found.worst)
        self.screen.check(not wrong, "worst links are as certified" + first_of(wrong))


def first_of(faults: list[str]) -> str:
    """Return what to add to a failed claim: the number of faults, and the first of them."""
    return f": {len(faults)} not, first {faults[0]}" if faults else ""


def seconds_since(start: float, plan: plan_pb2.Plan) -> float:
    """Return the seconds from a moment (``time.time``) to the last FIB ack of a plan."""
    return plan.programmed_time.ToNanoseconds() / 1e9 - start


def now() -> float:
    """Return the time by the clock of the controller's time stamps; it runs on this machine."""
    return time.time()


QPS = 8
"""QPs of each flow: NCCL can be told to split a flow over several, and so can a plan."""

_SHOWN = 12
"""Number of moved flows that are listed."""


async def play_demo(screen: Screen, fabric: Fabric, *, seed: int, keep: bool) -> bool:
    """Run the demo on one of the scene's fabrics; return whether everything it claims held."""
    jobs = [replace(job, qps=QPS) for job in scene_jobs(fabric, seed)]
    flows = flows_of_jobs(jobs, fabric)
    screen.title("Fabric and jobs")
    screen.line(fabric_words(fabric))
    screen.table(JOB_HEAD, job_rows(jobs, flows), left=2)
    screen.line(f"{len(flows):,} flows of {QPS} QPs; hosts and hashes drawn from seed {seed}")
    with tempfile.TemporaryDirectory(prefix="heddle-demo-") as name, agent_logs(Path(name)):
        async with _parts(screen, fabric, Path(name), seed) as (controller, client, fleet):
            stage = DemoStage(screen, fabric, jobs, flows, seed, controller, client, fleet)
            hashed = _hash(stage)
            await _place(stage, hashed)
            await _break(stage)
            if keep:
                await _keep(stage)
    return screen.failed == 0


@asynccontextmanager
async def _parts(
    screen: Screen, fabric: Fabric, folder: Path, seed: int
) -> AsyncIterator[tuple[Controller, Client, Fleet]]:
    """Start a controller, a client and an agent for every switch; end them at exit."""
    screen.title("Controller and agents")
    async with (
        Controller(folder, "--web-port=0") as controller,
        Client(controller.api, _FABRIC) as client,
    ):
        screen.line(
            f"controller on {controller.api}, metrics on {controller.metrics},"
            f" page on {controller.page}"
        )
        await client.put_fabric(fabric)
        async with Fleet(fabric, [controller.api], name=_FABRIC, seed=seed, notices=True) as fleet:
            with screen.progress("agents connected over gRPC") as report:
                await fleet.connected(_PATIENCE, report)
            yield controller, client, fleet


def _hash(stage: DemoStage) -> dict[str, Measurement]:
    """Measure the traffic with hashing, while the agents' tables are still empty."""
    one = stage.measure(stage.flows.with_qps(1))
    return {"ECMP": one, f"E-ECMP-{QPS}": stage.measure()}


async def _place(stage: DemoStage, hashed: dict[str, Measurement]) -> None:
    """Submit all jobs at once, and measure when every switch holds the plan."""
    screen, client = stage.screen, stage.client
    screen.title("Jobs placed")
    start = now()
    await asyncio.gather(*(client.submit(job) for job in stage.jobs))
    screen.line(f"{len(stage.jobs)} jobs submitted at once, stored after {now() - start:.3f} s")
    with screen.progress("switches programmed") as report:

        async def follow() -> None:
            async for plan in client.watch_plans():
                report(*_programmed(plan))

        watch = asyncio.create_task(follow())
        try:
            await client.programmed_jobs([job.name for job in stage.jobs], _PATIENCE)
            plan = await client.programmed_plan(0, _PATIENCE)
            report(*_programmed(plan))
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
    screen.line(
        f"submit to last FIB ack {seconds_since(start, plan):.3f} s: plan {plan.generation},"
        f" {plan.entry_count:,} entries in {plan.switch_count} switches,"
        f" solved in {plan.solve_seconds:.3f} s"
    )
    found = await stage.settle(await _optimal(stage, plan, start))
    head, rows = compare_rows({**hashed, "Heddle": found})
    screen.table(head, rows, ours=True)
    _certificate(stage)
    over = gap(stage.plan.certificate, _CONTENDED)
    screen.check(over <= CLOSE, f"leaf-spine is proven optimal (gap {over:.1%})")
    worse = [name for name, one in hashed.items() if one.slowest < found.slowest]
    screen.check(len(worse) == len(hashed), "the slowest flow is faster than with any hashing")


async def _optimal(stage: DemoStage, plan: plan_pb2.Plan, start: float) -> plan_pb2.Plan:
    """Return the plan that is proven optimal; the newest one if there is none in time.

    Jobs that arrive one after the other are added to the current plan. What that costs is corrected
    by a new plan after some quiet time.
    """
    if _is_optimal(plan):
        return plan
    try:
        plan = await stage.client.programmed_plan(0, _PATIENCE, such_that=_is_optimal)
    except TimedOut:
        return await stage.client.programmed_plan(0, _PATIENCE)
    stage.screen.line(
        f"jobs came one by one; made anew after {seconds_since(start, plan):.3f} s:"
        f" plan {plan.generation}, solved in {plan.solve_seconds:.3f} s"
    )
    return plan


def _is_optimal(plan: plan_pb2.Plan) -> bool:
    return gap(plan.certificate, _CONTENDED) <= CLOSE


def _programmed(plan: plan_pb2.Plan) -> tuple[int, int]:
    return plan.programmed_switch_count, plan.switch_count


def _certificate(stage: DemoStage) -> None:
    certificate = stage.plan.certificate
    stage.screen.line(
        f"certificate of plan {stage.plan.generation}: worst link"
        f" {certificate.max_utilization:.3f}, proven least {certificate.lower_bound:.3f}"
        f" (by {certificate.proof})"
    )
    stage.screen.table(TIER_HEAD, tier_rows(certificate))


async def _break(stage: DemoStage) -> None:
    """Take a spine link down: local repair comes first, then a new plan."""
    screen, before = stage.screen, stage.heddle
    assert before is not None
    rows = np.flatnonzero(_shared_rack_links(stage, before))
    link = int(np.random.default_rng(stage.seed).choice(rows))
    screen.title(f"Spine link {stage.fabric.link_name(link)} down")
    generation, start = stage.plan.generation, now()
    cut = Step(0.0, StepKind.CUT, (cable_name(stage.fabric, link),))
    await StepRunner(LiveFabric(stage.fleet)).do(cut)
    first = stage.measure()
    on_it = crossing(before.walk, [link])
    gone = np.isin(before.paths.flow, on_it)
    screen.line(
        f"{len(on_it)} flows ({int(before.paths.qp_count[gone].sum())} QPs) were on it; once the"
        f" agents at its ends had told the others, {len(first.walk.lost)} QPs had no way"
    )
    lost = [
        first.walk.story(stage.fleet.world, stage.flows, row) for row in first.walk.lost.tolist()
    ]
    screen.check(
        not lost,
        "every packet arrives by its backup before the controller has said a word" + first_of(lost),
    )
    stage.fleet.converge()
    plan = await stage.client.programmed_plan(generation, _PATIENCE)
    screen.line(
        f"link down to last FIB ack {seconds_since(start, plan):.3f} s: plan {plan.generation},"
        f" solved in {plan.solve_seconds:.3f} s"
    )
    after = await stage.settle(plan)
    _moves(stage, before, after, on_it)
    _certificate(stage)


def _shared_rack_links(stage: DemoStage, found: Measurement) -> Bools:
    """Return which leaf-spine links are in use at leaves with several jobs, shape (links,)."""
    structure, paths = stage.fabric.structure, found.paths
    heads, tails = structure.head[paths.arcs], structure.tail[paths.arcs]
    leaves = np.concatenate([heads[paths.first[:-1]], tails[paths.first[1:] - 1]])
    pairs = np.unique(np.stack([leaves, np.tile(stage.flows.job[paths.flow], 2)]), axis=1)
    shared = np.bincount(pairs[0], minlength=stage.fabric.node_count) > 1
    used = np.zeros(stage.fabric.link_count, dtype=np.bool_)
    used[paths.arcs >> 1] = True
    a, b = structure.links.a, structure.links.b
    spine = structure.nodes.kind == NodeKind.SPINE
    return np.asarray(used & ((shared[a] & spine[b]) | (shared[b] & spine[a])))


def _moves(stage: DemoStage, before: Measurement, after: Measurement, on_it: Ints) -> None:
    """Show which flows moved, and check that none moved without need."""
    screen, flows = stage.screen, stage.flows
    which = moved(before.walk, after.walk)
    rows = moved_rows(stage.fabric, flows, before.paths, after.paths, which[:_SHOWN])
    screen.table(MOVED_HEAD, rows, left=4)
    if len(which) > _SHOWN:
        screen.line(f"and {len(which) - _SHOWN} more")
    displaced = np.setdiff1d(which, on_it)
    idle = needless(stage.fleet.world, flows, before.paths, after.paths, displaced)
    screen.check(
        not len(idle),
        f"{len(which)} flows moved: {len(which) - len(displaced)} that were on the link,"
        f" {len(displaced)} that had to make way; {len(flows) - len(which):,} stayed"
        + (f"; {len(idle)} moved without need, first {flows.ids[idle[0]]}" if len(idle) else ""),
    )
    still = np.setdiff1d(on_it, which)
    screen.check(not len(still), "no flow is left on the dead link")


async def _keep(stage: DemoStage) -> None:
    """Leave everything running until Ctrl-C."""
    screen, api = stage.screen, stage.controller.api
    screen.title("Still running: try it from another terminal, Ctrl-C ends it")
    flow, job = stage.flows.ids[0], stage.jobs[-1].name
    for words in (
        "job list",
        "fabric show",
        "show plan",
        f"show explain '{flow}'",
        f"job delete {job}",
    ):
        screen.line(f"  .venv/bin/heddle --server {api} {words}")
    screen.line(f"  curl {stage.controller.metrics}")
    screen.line(f"and in a browser: {stage.controller.page}")
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    while not ended.is_set():
        stage.controller.check()
        try:
            async with asyncio.timeout(0.5):
                await ended.wait()
        except TimeoutError:
            continue
    screen.line("ending")
