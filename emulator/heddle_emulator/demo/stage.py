"""What all steps of the demo share: the running parts, and what was measured so far."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from heddle.v1 import plan_pb2
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Job
from heddle_emulator.client import Client, Routed, routed
from heddle_emulator.demo.checks import disagreements, strays
from heddle_emulator.demo.screen import Screen
from heddle_emulator.fleet import Controller, Fleet
from heddle_emulator.hosts import Hosts
from heddle_emulator.walk import Measurement, measure

FABRIC = "fabrics/demo"
PATIENCE = 45.0
"""Seconds that any one step may take; all together take a fraction of it."""


@dataclass(slots=True)
class DemoStage:
    """The parts in play, and the newest plan with what packets made of it."""

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
        """Walk packets through the agents' tables, in the world as it is."""
        return measure(
            self.fleet.world, self.flows if flows is None else flows, self.fleet.switches
        )

    async def settle(self, plan: plan_pb2.Plan) -> Measurement:
        """Measure a plan that is programmed, and hold it against what the controller says."""
        generation, routes = await self.client.routes()
        while generation != plan.generation:
            plan = await self.client.programmed_plan(generation - 1, PATIENCE)
            generation, routes = await self.client.routes()
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
    """What to add to a claim that does not hold: how many faults, and one of them."""
    return f": {len(faults)} not, first {faults[0]}" if faults else ""


def seconds_since(start: float, plan: plan_pb2.Plan) -> float:
    """Seconds from a moment (``time.time``) to the last FIB ack of a plan."""
    return plan.programmed_time.ToNanoseconds() / 1e9 - start


def now() -> float:
    """Seconds by the clock that the controller stamps its acks with: it runs on this machine."""
    return time.time()
