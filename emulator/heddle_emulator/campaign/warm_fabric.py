"""A warm fabric: a controller, an agent for every switch and a plan, which outlive single trials.

A trial breaks something and repairs it again. It evaluates where packets go, by walking packets of
all flows through the tables: once agents have repaired on their own, once BGP has converged, once
every switch has acknowledged the controller's new plan, and once every switch has acknowledged the
plan after the repair. The last evaluation is also the first one of the next trial. So the paths of
flows may differ from trial to trial, but no link slows flows more than at first. Links below line
rate may be fuller: repairs leave less room for later repairs than a plan from scratch does.

A trial's plan is complete when the controller knows exactly the links that are down, the newest
plan was made for these, and every switch holds it.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import numpy as np

from heddle.v1 import common_pb2, plan_pb2
from heddle_controller.model.arrays import Bools
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.graphs import joined_parts
from heddle_controller.model.plan import IDLE, arc_loads, utilization
from heddle_emulator.campaign.campaign import Campaign
from heddle_emulator.campaign.results import NEEDLESS, Result, begun
from heddle_emulator.campaign.trials import FaultKind, Trial
from heddle_emulator.client import Client, ControllerView, Watcher
from heddle_emulator.drill.live import LiveFabric
from heddle_emulator.drill.scenario import Step
from heddle_emulator.drill.steps import StepRunner
from heddle_emulator.fleet import Controller, Fleet
from heddle_emulator.fleet.agents import InstantNoticeFleet, agent_logs
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.hosts import told_hosts
from heddle_emulator.walk import Forwarding, Walk, crossing, moved, walk


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Where the packets of all flows go at one moment, and what follows."""

    walk: Walk
    joined: Bools
    """Whether the ends of each flow are connected, shape (flows,)."""
    worst: float
    """Greatest utilisation of a link between switches."""
    slowest: float
    """Least max-min fair rate over demand of a flow whose ends are connected."""

    @property
    def stranded(self) -> int:
        """Number of QPs whose packets get lost although their ends are connected."""
        lost = self.walk.lost
        return int(np.count_nonzero(self.joined[self.walk.flow[lost]]))

    @property
    def cut_off(self) -> int:
        """Number of flows whose ends are not connected."""
        return int(np.count_nonzero(~self.joined))


def evaluate(fabric: Fabric, flows: Flows, forwarding: Forwarding) -> Evaluation:
    """Walk a packet of every QP through the tables, and evaluate the result."""
    walked = walk(fabric, flows, forwarding)
    paths = walked.paths()
    used = utilization(fabric, arc_loads(2 * fabric.link_count, flows, paths))
    ratios = flow_ratios(fabric.structure.capacity, flows, paths)
    joined = _joined(fabric, flows) if len(walked.lost) else np.ones(len(flows), dtype=np.bool_)
    return Evaluation(
        walked,
        joined,
        float(used[_between_switches(fabric)].max(initial=0.0)),
        float(ratios[joined].min(initial=1.0)),
    )


def _between_switches(fabric: Fabric) -> Bools:
    structure = fabric.structure
    nic = structure.nodes.kind == NodeKind.NIC
    return np.asarray(~nic[structure.tail] & ~nic[structure.head])


def _joined(fabric: Fabric, flows: Flows) -> Bools:
    """Return whether links that carry connect the ends of each flow, shape (flows,).

    No packet goes through a NIC, so only its own flows use the links of a NIC.
    """
    structure, carries = fabric.structure, fabric.carries
    inner = np.flatnonzero(carries & _between_switches(fabric))
    part = joined_parts(structure.tail[inner], structure.head[inner], fabric.node_count)
    nic = structure.nodes.kind == NodeKind.NIC
    own = np.flatnonzero(carries & nic[structure.tail])
    _, column = np.unique(part[structure.head[own]], return_inverse=True)
    reached = np.zeros((fabric.node_count, int(column.max(initial=-1)) + 1), dtype=np.bool_)
    reached[structure.tail[own], column] = True
    return np.asarray((reached[flows.source] & reached[flows.destination]).any(axis=1))


_FABRIC, _DEMANDS = "fabrics/campaign", "flows"
_PATIENCE_SECONDS = 60.0
_POLL_SECONDS = 0.005
_ASK_SECONDS = 0.05
_OPTIONS = ("--counter-interval-seconds=0", "--compare-after-seconds=86400")
"""A trial measures the plan of the repair. Comparing is off for a day, because on a slow machine a
better plan could otherwise follow before the first one is measured."""
FLAPS = 3
FLAP_SECONDS = 0.01


class WarmFabric:
    """Plays trials on one fabric. Its ``async with`` is entered when all switches hold a plan."""

    def __init__(self, campaign: Campaign) -> None:
        self.campaign = campaign
        self.fleet: Fleet
        self._client: Client
        self._stack = AsyncExitStack()
        self._rows: dict[tuple[str, str, str], int] = {}
        self._view = ControllerView()
        self._seen: Evaluation
        self._first: Evaluation
        self._plan: plan_pb2.Plan
        self._repairs: list[Step] = []
        """The steps that repair the trial under way, in order."""
        self._steps: StepRunner

    async def __aenter__(self) -> Self:
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _open(self) -> None:
        enter, told = self._stack.enter_async_context, self.campaign
        folder = Path(
            self._stack.enter_context(tempfile.TemporaryDirectory(prefix="heddle-campaign-"))
        )
        self._stack.enter_context(agent_logs(folder))
        controller = await enter(Controller(folder, *_OPTIONS))
        self._client = client = await enter(Client(controller.api, _FABRIC))
        await client.put_fabric(told.fabric)
        kind = Fleet if told.datagrams else InstantNoticeFleet
        fleet = kind(told.fabric, [controller.api], name=_FABRIC, notices=told.datagrams)
        self.fleet = await enter(fleet)
        await fleet.connected(_PATIENCE_SECONDS)
        await client.put_demands(_DEMANDS, told.fabric, told.flows)
        plan = await client.committed_plan(len(told.flows), _PATIENCE_SECONDS)
        self._plan = await client.programmed_plan(plan.generation - 1, _PATIENCE_SECONDS)
        self.fleet.switches.hosts = await told_hosts(told.fabric, client)
        self._steps = StepRunner(LiveFabric(self.fleet))
        await enter(Watcher(client, self._view, plans=False))
        self._index_links()
        self._first = self._seen = self._evaluate()

    def _index_links(self) -> None:
        """Index the rows of links by the controller's names for them, from either end."""
        ids, links = self.campaign.fabric.structure.nodes.ids, self.campaign.fabric.structure.links
        ends = zip(links.a.tolist(), links.b.tolist(), links.key, strict=True)
        for row, (a, b, key) in enumerate(ends):
            self._rows[ids[a], ids[b], str(key)] = self._rows[ids[b], ids[a], str(key)] = row

    async def run(self, trial: Trial) -> Result:
        """Play one trial.

        Raises:
            HeddleError, TimeoutError: the controller did not answer, or no plan was held in time.
                The state of the fabric is then unknown.
        """
        start = time.monotonic()
        await self.fleet.connected(_PATIENCE_SECONDS)
        self._view.forget()
        result = begun(trial, self.campaign.fabric)
        for measure in (self._broken, self._mended):
            result = await measure(trial, result)
        return replace(result, seconds=time.monotonic() - start)

    async def _broken(self, trial: Trial, result: Result) -> Result:
        """Break the fabric, and measure up to the plan that takes the failure into account."""
        before, healthy = self._plan.generation, self._seen.walk
        struck = time.time()
        local = await self._strike(trial)
        lost = np.flatnonzero(~self.fleet.world.carries[::2]).tolist()
        flapped = [event.row for event in trial.events if event.kind is FaultKind.FLAP]
        self.fleet.converge()
        converged = self._evaluate() if local.stranded else local
        await self._settled(before + 1 if lost else before)
        self._seen = seen = self._evaluate()
        certificate = self._plan.certificate
        return replace(
            result,
            affected=len(crossing(healthy, [*lost, *flapped])),
            cut_off=seen.cut_off,
            stranded_local=local.stranded,
            slowest_local=local.slowest,
            stranded_bgp=converged.stranded,
            stranded=seen.stranded,
            worst=seen.worst,
            slowest=seen.slowest,
            gap=_gap(certificate),
            moved=len(moved(healthy, seen.walk)),
            acked_seconds=self._acked(struck),
        )

    async def _mended(self, trial: Trial, result: Result) -> Result:
        """Repair the fabric, and measure up to the plan of the whole fabric."""
        before, start = self._plan.generation, time.time()
        lasting = [event for event in trial.events if event.kind is not FaultKind.FLAP]
        for repair in self._repairs:
            await self._steps.do(repair)
        self.fleet.converge()
        await self.fleet.connected(_PATIENCE_SECONDS)
        await self._settled(before + 1 if lasting else before)
        self._seen = seen = self._evaluate()
        fuller = seen.worst > max(self._first.worst, IDLE) * (1 + NEEDLESS)
        return replace(
            result,
            mended_seconds=self._acked(start) if lasting else 0.0,
            regained=not fuller and not seen.stranded,
        )

    async def _strike(self, trial: Trial) -> Evaluation:
        """Break everything, and return the evaluation after the local repair by agents."""
        fabric = self.campaign.fabric
        flaps = [event.steps(fabric) for event in trial.events if event.kind is FaultKind.FLAP]
        lasting = [
            event.steps(fabric) for event in trial.events if event.kind is not FaultKind.FLAP
        ]
        self._repairs = [repair for _, repair in reversed(lasting)]
        for fault, _ in (*lasting, *flaps):
            await self._steps.do(fault)
        local = self._evaluate()
        for turn in range(2 * FLAPS - 1 if flaps else 0):
            await asyncio.sleep(FLAP_SECONDS)
            for fault, repair in flaps:
                await self._steps.do(fault if turn % 2 else repair)
        return local

    async def _settled(self, least: int) -> None:
        """Wait until every switch holds the plan of the present fabric, of generation ``least`` on.

        Raises:
            TimeoutError: this took too long.
        """
        async with asyncio.timeout(_PATIENCE_SECONDS):
            while not self._informed():
                self._view.news.clear()
                await self._view.news.wait()
            self._plan = await self._programmed(least)
            self.fleet.switches.hosts = await told_hosts(self.campaign.fabric, self._client)

    def _informed(self) -> bool:
        """Whether the controller knows just the down links that a running agent can see."""
        links, world = self.fleet.world.structure.links, self.fleet.world
        down = np.flatnonzero(~world.carries[::2])
        ends = zip(down.tolist(), links.a[down].tolist(), links.b[down].tolist(), strict=True)
        running = self.fleet.running
        return {self._rows[name] for name in self._view.down} == {
            row for row, a, b in ends if a in running or b in running
        }

    async def _programmed(self, least: int) -> plan_pb2.Plan:
        """Wait until all switches hold a plan of at least this generation, and return it.

        Agents are checked first, because asking the controller costs time in both processes. An
        agent whose entries do not change is not told of a plan, so the controller is also asked
        now and then.
        """
        asked = time.monotonic()
        agents = [self.fleet.agents[row] for row in self.fleet.running]
        while True:
            pushed = all(agent.held.generation >= least for agent in agents)
            if pushed or time.monotonic() - asked > _ASK_SECONDS:
                plan = await self._client.plan()
                current = plan.generation >= least and plan.links_current
                if current and plan.HasField("programmed_time"):
                    return plan
                asked = time.monotonic()
            await asyncio.sleep(_POLL_SECONDS)

    def _acked(self, since: float) -> float:
        """Seconds from a moment to the last FIB ack of the plan, by this machine's clock."""
        return max(self._plan.programmed_time.ToNanoseconds() / 1e9 - since, 0.0)

    def _evaluate(self) -> Evaluation:
        return evaluate(self.fleet.world, self.campaign.flows, self.fleet.switches)


def _gap(certificate: common_pb2.Certificate) -> float:
    """Return the relative gap of a certificate; 0 means proven optimal, or no bound."""
    if certificate.lower_bound <= 0:
        return 0.0
    gap = certificate.max_utilization / certificate.lower_bound - 1
    return float(gap) if gap > NEEDLESS else 0.0
