"""Calls of the public API with fabrics, flows and jobs of the model."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from contextlib import aclosing
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from heddle.client import PROGRAMMED, AsyncClient, TimedOut
from heddle.v1 import common_pb2, fabric_pb2, placement_pb2, plan_pb2
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Job
from heddle_emulator.client.convert import demands_to_pb, fabric_to_pb, job_to_pb

CALL_SECONDS = 30.0


class Client(AsyncClient):
    """Use as ``async with``. All methods raise ``HeddleError``."""

    def __init__(self, address: str, fabric: str, patience: float | None = None) -> None:
        """Make a client.

        Args:
            address: Of the controller.
            fabric: The fabric's name there: "fabrics/f1".
            patience: Seconds to look for a controller that answers; None: as long as a call takes.
        """
        super().__init__(address, fabric=fabric, timeout=CALL_SECONDS, patience=patience)
        self.address = address
        self.name = fabric
        channel: Any = self.calls
        self._health: Any = health_pb2_grpc.HealthStub(channel)  # its stubs know no methods

    async def put_fabric(self, fabric: Fabric) -> None:
        """Create or replace the fabric."""
        message = fabric_to_pb(self.name, fabric)
        await self.fabrics.PutFabric(fabric_pb2.PutFabricRequest(fabric=message))

    async def put_demands(self, name: str, fabric: Fabric, flows: Flows) -> None:
        """Set a set of demands; stored whole, or not at all."""
        full = f"{self.name}/demands/{name}"
        await self.demands.PutDemands(demands_to_pb(full, str(uuid.uuid4()), fabric, flows))

    async def is_healthy(self) -> bool:
        """Whether the controller says that it serves."""
        answer = await self._health.Check(health_pb2.HealthCheckRequest())
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def submit(self, job: Job) -> placement_pb2.Job:
        """Submit a job; the answer says that it is durably stored, no more."""
        return await self.submit_job(job.name, job_to_pb(job))

    async def programmed_jobs(self, names: Iterable[str], seconds: float) -> None:
        """Wait until every switch holds all that these jobs need, degraded or not meanwhile."""
        await self.wait_until(PROGRAMMED, tuple(names), seconds)

    async def programmed_plan(
        self,
        after: int,
        seconds: float,
        report: Callable[[plan_pb2.Plan], None] | None = None,
        such_that: Callable[[plan_pb2.Plan], bool] = lambda _: True,
    ) -> plan_pb2.Plan:
        """Wait for a plan of a generation after this one that all its switches hold.

        ``report`` hears of every plan until then; ``such_that`` is what it must be besides.
        """

        def held(plan: plan_pb2.Plan) -> bool:
            if report is not None:
                report(plan)
            programmed = plan.generation > after and plan.HasField("programmed_time")
            return programmed and such_that(plan)

        return await self._plan_such_that(held, seconds, f"programmed after generation {after}")

    async def committed_plan(self, flows: int, seconds: float) -> plan_pb2.Plan:
        """Wait for a plan of so many flows, routed or not, whoever holds it yet."""

        def whole(plan: plan_pb2.Plan) -> bool:
            return plan.routed_count + plan.unrouted_count == flows

        return await self._plan_such_that(whole, seconds, f"of {flows} flows")

    async def _plan_such_that(
        self, wanted: Callable[[plan_pb2.Plan], bool], seconds: float, what: str
    ) -> plan_pb2.Plan:
        async with aclosing(self.watch_plans(seconds)) as plans:
            async for plan in plans:
                if wanted(plan):
                    return plan
        raise TimedOut(f"no plan {what} in {seconds:g} s at {self.address}")

    async def plan(self) -> plan_pb2.Plan:
        """The newest plan, whoever holds it yet."""
        return await self.plans.GetPlan(plan_pb2.GetPlanRequest(name=f"{self.name}/plan"))

    async def set_switch(self, node: str, state: State) -> None:
        """Say how a switch shall stand."""
        wanted = common_pb2.State.Value(f"STATE_{state.name}")
        await self.fabrics.SetSwitchState(
            fabric_pb2.SetSwitchStateRequest(fabric=self.name, node=node, admin_state=wanted)
        )

    async def drained_switches(self) -> set[str]:
        """Switches that are wanted out of service."""
        fabric = await self.fabrics.GetFabric(fabric_pb2.GetFabricRequest(name=self.name))
        drained = common_pb2.STATE_DRAINED
        return {node.id for node in fabric.nodes if node.admin_state == drained}

    async def count_demands(self, name: str) -> int:
        """How many flows a set of demands has."""
        return len(await self.list_demands(name))
