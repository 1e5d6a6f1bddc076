"""Calls of the public API, as a scheduler and an operator make them.

Every call has a deadline. What fails is told in one line, with the address and what
the server said; nothing of gRPC leaves this file.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Self, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from heddle.v1 import (
    common_pb2,
    demand_pb2,
    demand_pb2_grpc,
    fabric_pb2,
    fabric_pb2_grpc,
    placement_pb2,
    placement_pb2_grpc,
    plan_pb2,
    plan_pb2_grpc,
)
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.job import Job
from heddle_emulator.client.convert import demands_to_pb, fabric_to_pb, job_to_pb

CALL_SECONDS = 30.0
PAGE = 5000
MESSAGE_BYTES = 256 << 20
"""A fabric of 24,576 NICs is one message."""
RECONNECT_MS = 1000
"""A controller that was dead for minutes is called again as soon as one that just died."""


Message = TypeVar("Message")


class ClientError(RuntimeError):
    """A call that failed or did not end in time, in one line."""


class Client:
    """Use as ``async with``. ``fabric`` is the fabric's name at the controller: "fabrics/f1"."""

    def __init__(self, address: str, fabric: str) -> None:
        self.address = address
        self.fabric = fabric
        options = [
            ("grpc.max_send_message_length", MESSAGE_BYTES),
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_reconnect_backoff_ms", RECONNECT_MS),
        ]
        self._channel = grpc.aio.insecure_channel(address, options)
        self._fabrics = fabric_pb2_grpc.FabricServiceStub(self._channel)
        self._jobs = placement_pb2_grpc.PlacementServiceStub(self._channel)
        self._plans = plan_pb2_grpc.PlanServiceStub(self._channel)
        self._demands = demand_pb2_grpc.DemandServiceStub(self._channel)
        health: Any = health_pb2_grpc.HealthStub(self._channel)  # its stubs know no methods
        self._health = health

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._channel.close()

    async def put_fabric(self, fabric: Fabric) -> None:
        """Create or replace the fabric."""
        message = fabric_to_pb(self.fabric, fabric)
        request = fabric_pb2.PutFabricRequest(fabric=message, request_id=str(uuid.uuid4()))
        async with self._told("put the fabric"):
            await self._fabrics.PutFabric(request, timeout=CALL_SECONDS, wait_for_ready=True)

    async def put_demands(self, name: str, fabric: Fabric, flows: Flows) -> None:
        """Set a set of demands; stored whole, or not at all."""
        messages = demands_to_pb(f"{self.fabric}/demands/{name}", str(uuid.uuid4()), fabric, flows)
        async with self._told("put the demands"):
            await self._demands.PutDemands(
                iter(messages), timeout=CALL_SECONDS, wait_for_ready=True
            )

    async def is_healthy(self) -> bool:
        """Whether the controller says that it serves."""
        async with self._told("ask for its health"):
            request = health_pb2.HealthCheckRequest()
            answer = await self._health.Check(request, timeout=CALL_SECONDS)
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

    async def submit(self, job: Job) -> placement_pb2.Job:
        """Submit a job; the answer says that it is durably stored, no more."""
        request = placement_pb2.SubmitJobRequest(
            parent=self.fabric, job_id=job.name, spec=job_to_pb(job), request_id=str(uuid.uuid4())
        )
        async with self._told(f"submit job {job.name}"):
            return await self._jobs.SubmitJob(request, timeout=CALL_SECONDS)

    async def programmed_jobs(self, names: Iterable[str], seconds: float) -> None:
        """Wait until every switch holds all that these jobs need.

        That a job is degraded is waited out: a switch whose agent comes back later than others
        makes it so for a while.

        Raises:
            ClientError: it takes longer than so many seconds; it says what is degraded then.
        """
        waiting = {f"{self.fabric}/jobs/{name}" for name in names}
        degraded: dict[str, str] = {}
        request = placement_pb2.WatchJobsRequest(parent=self.fabric)
        try:
            with _cancelled(self._jobs.WatchJobs(request, timeout=seconds)) as events:
                async for event in events:
                    _note(event.job, waiting, degraded)
                    if not waiting:
                        return
        except grpc.aio.AioRpcError as error:
            what = "wait for the jobs to be programmed"
            if degraded and error.code() == grpc.StatusCode.DEADLINE_EXCEEDED:
                what += f" ({min(degraded)} is degraded: {degraded[min(degraded)]})"
            raise self._failed(what, error) from error
        raise ClientError(f"the controller at {self.address} ended the watch of jobs")

    async def programmed_plan(
        self,
        after: int,
        seconds: float,
        report: Callable[[plan_pb2.Plan], None] | None = None,
    ) -> plan_pb2.Plan:
        """Wait for a plan of a generation after this one that all its switches hold.

        Raises:
            ClientError: it takes longer than so many seconds.
        """
        request = plan_pb2.WatchPlanRequest(name=f"{self.fabric}/plan")
        async with self._told(f"wait for a plan after generation {after} to be programmed"):
            with _cancelled(self._plans.WatchPlan(request, timeout=seconds)) as plans:
                async for plan in plans:
                    if report is not None:
                        report(plan)
                    if plan.generation > after and plan.HasField("programmed_time"):
                        return plan
        raise ClientError(f"the controller at {self.address} ended the watch of plans")

    async def committed_plan(self, flows: int, seconds: float) -> plan_pb2.Plan:
        """Wait for a plan of so many flows, routed or not, whoever holds it yet.

        Raises:
            ClientError: it takes longer than so many seconds.
        """
        request = plan_pb2.WatchPlanRequest(name=f"{self.fabric}/plan")
        async with self._told(f"wait for a plan of {flows} flows"):
            with _cancelled(self._plans.WatchPlan(request, timeout=seconds)) as plans:
                async for plan in plans:
                    if plan.routed_count + plan.unrouted_count == flows:
                        return plan
        raise ClientError(f"the controller at {self.address} ended the watch of plans")

    async def plan(self) -> plan_pb2.Plan:
        """The newest plan, whoever holds it yet."""
        request = plan_pb2.GetPlanRequest(name=f"{self.fabric}/plan")
        async with self._told("get the plan"):
            return await self._plans.GetPlan(request, timeout=CALL_SECONDS)

    async def watch_plan(self, report: Callable[[plan_pb2.Plan], None]) -> None:
        """Report plans as they are committed and programmed, until cancelled."""
        request = plan_pb2.WatchPlanRequest(name=f"{self.fabric}/plan")
        async with self._told("watch the plan"):
            async for plan in self._plans.WatchPlan(request):
                report(plan)

    async def watch_links(self, report: Callable[[fabric_pb2.Link], None]) -> None:
        """Report links as they change their state, after those that are not up, until cancelled."""
        request = fabric_pb2.WatchFabricRequest(name=self.fabric)
        async with self._told("watch the fabric"):
            async for event in self._fabrics.WatchFabric(request):
                if event.HasField("link"):
                    report(event.link)

    async def set_switch(self, node: str, state: State) -> None:
        """Say how a switch shall stand."""
        request = fabric_pb2.SetSwitchStateRequest(
            fabric=self.fabric,
            node=node,
            admin_state=common_pb2.State.Value(f"STATE_{state.name}"),
            request_id=str(uuid.uuid4()),
        )
        async with self._told(f"set switch {node} to {state.name.lower()}"):
            await self._fabrics.SetSwitchState(request, timeout=CALL_SECONDS)

    async def drained_switches(self) -> set[str]:
        """Switches that are wanted out of service."""
        request = fabric_pb2.GetFabricRequest(name=self.fabric)
        async with self._told("get the fabric"):
            fabric = await self._fabrics.GetFabric(
                request, timeout=CALL_SECONDS, wait_for_ready=True
            )
        drained = common_pb2.STATE_DRAINED
        return {node.id for node in fabric.nodes if node.admin_state == drained}

    async def count_demands(self, name: str) -> int:
        """How many flows a set of demands has."""
        count, token = 0, ""
        while True:
            request = demand_pb2.ListDemandsRequest(
                name=f"{self.fabric}/demands/{name}", page_size=PAGE, page_token=token
            )
            async with self._told("list the demands"):
                page = await self._demands.ListDemands(
                    request, timeout=CALL_SECONDS, wait_for_ready=True
                )
            count, token = count + len(page.demands), page.next_page_token
            if not token:
                return count

    async def routes(self) -> tuple[int, list[plan_pb2.Route]]:
        """All routes of the newest plan, and its generation; read anew if it changes meanwhile."""
        while True:
            try:
                return await self._routes()
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.ABORTED:
                    raise self._failed("list the routes", error) from error

    async def _routes(self) -> tuple[int, list[plan_pb2.Route]]:
        routes: list[plan_pb2.Route] = []
        token = ""
        while True:
            request = plan_pb2.ListRoutesRequest(
                parent=f"{self.fabric}/plan", page_size=PAGE, page_token=token
            )
            page = await self._plans.ListRoutes(request, timeout=CALL_SECONDS)
            routes += page.routes
            token = page.next_page_token
            if not token:
                return page.generation, routes

    @asynccontextmanager
    async def _told(self, what: str) -> AsyncIterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise self._failed(what, error) from error

    def _failed(self, what: str, error: grpc.aio.AioRpcError) -> ClientError:
        said = " ".join((error.details() or "").split())
        return ClientError(f"could not {what} at {self.address}: {error.code().name}: {said}")


def _note(job: placement_pb2.Job, waiting: set[str], degraded: dict[str, str]) -> None:
    """Take in how a job stands that is waited for."""
    degraded.pop(job.name, None)
    if job.state == placement_pb2.JOB_STATE_DEGRADED and job.name in waiting:
        degraded[job.name] = job.reason
    if job.state == placement_pb2.JOB_STATE_PROGRAMMED:
        waiting.discard(job.name)


@contextmanager
def _cancelled(
    call: grpc.aio.UnaryStreamCall[Any, Message],
) -> Iterator[grpc.aio.UnaryStreamCall[Any, Message]]:
    """A watch that ends when it is left: else the server tells nobody until its deadline."""
    try:
        yield call
    finally:
        call.cancel()
