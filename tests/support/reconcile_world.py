"""A controller without a network: real store, real planner, switches in memory."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.model.flows import Flows, concatenate
from heddle_controller.model.job import Collective, Group, Job, Operation, Parallelism
from heddle_controller.plan.programs import entries_after
from heddle_controller.plan.verify import verify_plan
from heddle_controller.planner.planning import Engine
from heddle_controller.reconcile.loop import Reconciler
from heddle_controller.reconcile.observations import Observations
from heddle_controller.reconcile.ports import AgentGateway, Metric, SystemClock
from heddle_controller.reconcile.rollout.driver import RolloutSettings
from heddle_controller.reconcile.worker import Dependencies, ReconcileSettings
from heddle_controller.solve import (
    better_backups,
    improvements,
    plan_anew,
    prove,
    repairer_of,
    screen_of,
    with_losses,
)
from heddle_controller.state.records import Committed, JobRecord, JobState
from heddle_controller.store.embedded import open_embedded
from heddle_controller.store.store import Store
from heddle_controller.traffic.jobs import flows_of_job
from tests.support.direct_planner import DirectPlanner
from tests.support.reconcile_gateway import MemoryGateway, all_switches
from tests.support.reconcile_network import Network
from tests.support.waiting import PATIENCE

ENGINE = Engine(
    flows_of_job=flows_of_job,
    solve=plan_anew,
    repairer=repairer_of,
    improvements=improvements,
    screen=screen_of,
    back=better_backups,
    certify=partial(with_losses, thorough=False),
    prove=prove,
    verify=verify_plan,
    entries_of=entries_after,
)

SETTINGS = ReconcileSettings(
    holder="test",
    debounce=0.001,
    debounce_most=0.01,
    retry_first=0.02,
    retry_last=0.1,
    compare_after=3600.0,
    rollout=RolloutSettings(patience=10 * PATIENCE, linger=0.005, retry_first=0.02, retry_last=0.1),
)
"""Very patient, so that a switch that answers late on a busy machine is waited for."""

IMPATIENT = replace(SETTINGS, rollout=replace(SETTINGS.rollout, patience=0.2))
"""For tests of switches that do not answer: the rollout continues without them."""


class Figures:
    """Metrics that can be read back."""

    def __init__(self) -> None:
        self.counts: defaultdict[Metric, float] = defaultdict(float)
        self.values: defaultdict[Metric, list[float]] = defaultdict(list)

    def count(self, metric: Metric, fabric: str, amount: float = 1.0) -> None:
        """Add to a count."""
        assert fabric
        self.counts[metric] += amount

    def observe(self, metric: Metric, fabric: str, value: float) -> None:
        """Add a value."""
        assert fabric
        self.values[metric].append(value)

    def set(self, metric: Metric, fabric: str, value: float) -> None:
        """Replace a value."""
        assert fabric
        self.values[metric] = [value]


def three_tiers(zones: int = 2, leaves: int = 2, spines: int = 2, cores: int = 2) -> Fabric:
    """Return zones of leaves and spines, joined by cores in planes.

    Each leaf has two hosts with one NIC each.
    """
    nodes: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []
    for plane in range(spines):
        nodes += [{"id": f"c{plane}.{core}", "kind": "core"} for core in range(cores)]
    for zone in range(zones):
        for spine in range(spines):
            name = f"s{zone}.{spine}"
            nodes.append({"id": name, "kind": "spine", "zone": f"z{zone}", "plane": spine})
            edges += [_edge(name, f"c{spine}.{core}") for core in range(cores)]
        for leaf in range(leaves):
            name = f"l{zone}.{leaf}"
            nodes.append({"id": name, "kind": "leaf", "zone": f"z{zone}"})
            edges += [_edge(name, f"s{zone}.{spine}") for spine in range(spines)]
            for host in range(2):
                nic = f"n{zone}.{leaf}.{host}"
                nodes.append({"id": nic, "kind": "nic", "host": f"h{zone}.{leaf}.{host}"})
                edges.append(_edge(nic, name))
    return parse_fabric({"nodes": nodes, "edges": edges}, "sample")


def _edge(source: str, target: str) -> dict[str, Any]:
    return {"source": source, "target": target, "gbps": 400}


def ring(name: str, *hosts: str) -> Job:
    """Return a job whose hosts send round in a ring."""
    return Job(
        name=name,
        hosts=hosts,
        gpus_per_host=1,
        parallelism=Parallelism(dp=len(hosts)),
        collectives=(Collective(Operation.ALL_REDUCE, Group.DP, 1_000_000),),
    )


class House:
    """Controller processes, one after another, on one store file, and the switches they lead."""

    def __init__(self, folder: Path, fabric: Fabric) -> None:
        self.path = folder / "store.db"
        self.fabric = fabric
        self.figures = Figures()
        self.engine = ENGINE
        self.settings = SETTINGS
        self.gateway = MemoryGateway("f1", all_switches(fabric))
        self.observations = Observations()
        self.reconciler: Reconciler | None = None
        self.store: Store

    def fresh_observations(self) -> Observations:
        """Return what a new controller process knows of links and traffic."""
        return Observations()

    def dependencies(self, store: Store, gateway: AgentGateway) -> Dependencies:
        """Return what the controller is given."""
        planner = DirectPlanner(self.engine)
        return Dependencies(
            store,
            gateway,
            self.observations,
            SystemClock(),
            self.figures,
            planner,
            planner,
            planner,
            self.settings,
        )

    @asynccontextmanager
    async def running(
        self,
        *,
        through: Callable[[Any], Any] = lambda port: port,
        connected: bool = True,
    ) -> AsyncIterator[None]:
        """Run a controller; ``through`` may put something between it and its store and gateway."""
        raw = await open_embedded(self.path)
        self.store, self.observations = raw, self.fresh_observations()
        gateway = MemoryGateway("f1", self.gateway.switches)
        gateway.watch, self.gateway = self.gateway.watch, gateway
        if connected:
            gateway.connect(*gateway.switches)
        self.reconciler = Reconciler(self.dependencies(through(raw), through(gateway)))
        task = asyncio.create_task(self.reconciler.run())
        try:
            yield
        finally:
            while not task.done():  # a single cancel may be lost
                task.cancel()
                await asyncio.wait([task], timeout=0.05)
            await raw.close()

    async def until(self, reached: Callable[[], Any], what: str) -> None:
        """Wait until a condition holds, which may be a coroutine function."""
        end = time.monotonic() + PATIENCE
        while not await _value(reached()):
            if time.monotonic() > end:
                raise AssertionError(f"not reached: {what}; {await self._where()}")
            await asyncio.sleep(0.005)

    async def _where(self) -> str:
        jobs = [(r.job.name, r.facts) for r in await self.store.list_jobs("f1")]
        return f"{jobs}"

    async def job(self, name: str) -> JobRecord:
        """Return a job as stored."""
        return await self.store.get_job("f1", name)

    async def programmed(self, *names: str) -> None:
        """Wait until jobs are PROGRAMMED."""
        await self.in_state(JobState.PROGRAMMED, *names)

    async def in_state(self, state: JobState, *names: str) -> None:
        """Wait until jobs are in a state."""

        async def reached() -> bool:
            return all([(await self.job(name)).facts.state == state for name in names])

        await self.until(reached, f"{names} {state.name}")

    async def degraded(self, name: str, why: str) -> None:
        """Wait until a job is DEGRADED for a reason; other reasons may come first.

        On a busy machine any switch may have failed to answer in time, which is then the reason.
        """

        async def reached() -> bool:
            facts = (await self.job(name)).facts
            return facts.state == JobState.DEGRADED and why in facts.reason

        await self.until(reached, f"{name} DEGRADED: {why}")

    async def settled(self) -> None:
        """Wait until every switch holds the newest plan and the store knows it."""

        async def reached() -> bool:
            versions = await self.store.versions("f1")
            done = await self.store.committed("f1")
            return (
                done is not None
                and done.generation == versions.generation
                and not done.lacking()
                and self.network(done.plan.fabric).holds(done.program.entries)
                and all(s.table.whole for s in self.gateway.switches.values())
            )

        await self.until(reached, "every switch holds the plan")

    def network(self, fabric: Fabric) -> Network:
        """Return the switches as a network over a fabric in some state."""
        return Network(fabric, {n: s.table for n, s in self.gateway.switches.items()})

    def trouble(self, fabric: Fabric, flows: Flows) -> list[str]:
        """List what goes wrong for packets of flows."""
        network, ports = self.network(fabric), flows.source_ports()
        found = (
            network.trouble(int(flows.source[row]), int(flows.destination[row]), int(ports[row]))
            for row in range(len(flows))
        )
        return [trouble for trouble in found if trouble]

    def watch_packets(self, fabric: Fabric, *jobs: Job) -> list[str]:
        """From now on, walk packets of jobs after every operation; the list gets all troubles."""
        found: list[str] = []
        flows = concatenate([flows_of_job(job, fabric) for job in jobs])
        self.gateway.watch = lambda: found.extend(self.trouble(fabric, flows))
        return found

    async def committed(self) -> Committed:
        """Return the newest plan."""
        done = await self.store.committed("f1")
        assert done is not None
        return done

    def push_count(self) -> int:
        """Return how many pushes the switches have taken so far."""
        return sum(len(switch.pushes) for switch in self.gateway.switches.values())

    def change_count(self) -> int:
        """Return how many entries the switches were told to set or remove so far."""
        switches = self.gateway.switches.values()
        return sum(push.operation_count for switch in switches for push in switch.pushes)


async def _value(found: Any) -> Any:
    return await found if asyncio.iscoroutine(found) else found
