"""Targets: every method of every service, behind the wire, with the real code below it.

Requests go to the servicers of an API over a real store. What they raise must become a status that
blames the client or the state of things, never the server. Each method sees what others left:
fabrics are put, jobs come and go, plans are committed.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing, suppress
from types import ModuleType
from typing import Any

import structlog
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from heddle.v1 import (
    audit_pb2,
    common_pb2,
    demand_pb2,
    doctor_pb2,
    fabric_pb2,
    overlay_pb2,
    placement_pb2,
    plan_pb2,
)
from heddle_controller.model.files.fabric_file import fabric_document, parse_fabric
from heddle_controller.planner.core import planning_engine
from heddle_controller.reconcile.observations import Observations
from heddle_controller.serve.agents.gateway import Gateway, SetAside
from heddle_controller.serve.agents.link_book import LinkBook
from heddle_controller.serve.agents.overlays import OverlayBook, OverlayService
from heddle_controller.serve.audit import AuditService
from heddle_controller.serve.codec import fabric as fabric_codec
from heddle_controller.serve.codec import job as job_codec
from heddle_controller.serve.demand import DemandService
from heddle_controller.serve.doctor.service import DoctorService
from heddle_controller.serve.fabric import FabricService
from heddle_controller.serve.flow_index import FlowIndexes
from heddle_controller.serve.interceptors.around import status_of
from heddle_controller.serve.placement import PlacementService
from heddle_controller.serve.plan import PlanService
from heddle_controller.serve.rates import RateBook
from heddle_controller.serve.watch import Changes
from heddle_controller.state.audit import verify
from heddle_controller.state.errors import PortError
from heddle_controller.state.records import PlanFacts
from heddle_controller.store.embedded import EmbeddedStore, open_embedded
from heddle_controller.telemetry.metrics import Telemetry
from tests.fuzz.target import Target, check, scratch
from tests.fuzz.wires import disturbed, framed, message, parts_of, varied
from tests.support.direct_planner import DirectPlanner
from tests.support.store_samples import clos, demands, job, plan_of, program_of

PROTOS: tuple[ModuleType, ...] = (
    audit_pb2,
    demand_pb2,
    doctor_pb2,
    fabric_pb2,
    overlay_pb2,
    placement_pb2,
    plan_pb2,
)
PLANS = re.compile("fabrics/([^/]+)/plan")
PATIENCE = 240.0
"""Seconds after which a call hangs."""


F1, PLAN = "fabrics/f1", "fabrics/f1/plan"
LINK = common_pb2.LinkRef(source="l0", target="s0", key="0")
SPEC = job_codec.job_to_pb(job("new", ("h0.1", "h1.1")))
FLOW = demand_pb2.FlowDemand(flow="f", source="n0.0", destination="n1.1", gbps=10, job="x", qps=2)
GOOD: dict[str, Callable[[], Message]] = {
    "ListAuditRecords": lambda: audit_pb2.ListAuditRecordsRequest(after=1, page_size=2),
    "PutDemands": lambda: demand_pb2.PutDemandsRequest(
        name=f"{F1}/demands/d2", demands=[FLOW], flow_count=1
    ),
    "ListDemandSets": lambda: demand_pb2.ListDemandSetsRequest(parent=F1, page_size=1),
    "ListDemands": lambda: demand_pb2.ListDemandsRequest(name=f"{F1}/demands/d1", page_size=1),
    "DeleteDemands": lambda: demand_pb2.DeleteDemandsRequest(name=f"{F1}/demands/d2"),
    "ReportRates": lambda: demand_pb2.ReportRatesRequest(
        fabric=F1, batch=demand_pb2.RateBatch(interval_seconds=1, flows=["a"], rates_gbps=[2.0])
    ),
    "WatchRates": lambda: demand_pb2.WatchRatesRequest(fabric=F1),
    "PutFabric": lambda: fabric_pb2.PutFabricRequest(
        fabric=fabric_codec.fabric_to_pb("f1", clos())
    ),
    "DeleteFabric": lambda: fabric_pb2.DeleteFabricRequest(name="fabrics/f2"),
    "GetFabric": lambda: fabric_pb2.GetFabricRequest(name=F1),
    "ListFabrics": lambda: fabric_pb2.ListFabricsRequest(page_size=1),
    "ListLinks": lambda: fabric_pb2.ListLinksRequest(parent=F1, page_size=3),
    "SetLinkState": lambda: fabric_pb2.SetLinkStateRequest(
        fabric=F1, link=LINK, admin_state=common_pb2.STATE_UP
    ),
    "SetSwitchState": lambda: fabric_pb2.SetSwitchStateRequest(
        fabric=F1, node="s0", admin_state=common_pb2.STATE_DRAINED
    ),
    "WatchFabric": lambda: fabric_pb2.WatchFabricRequest(name=F1),
    "SetOverlay": lambda: overlay_pb2.SetOverlayRequest(
        name=f"{F1}/overlay", state=overlay_pb2.OVERLAY_STATE_WITHDRAWN
    ),
    "GetOverlay": lambda: overlay_pb2.GetOverlayRequest(name=f"{F1}/overlay"),
    "SubmitJob": lambda: placement_pb2.SubmitJobRequest(parent=F1, job_id="new", spec=SPEC),
    "GetJob": lambda: placement_pb2.GetJobRequest(name=f"{F1}/jobs/j1"),
    "ListJobs": lambda: placement_pb2.ListJobsRequest(parent=F1, page_size=1),
    "UpdateJob": lambda: placement_pb2.UpdateJobRequest(name=f"{F1}/jobs/j1", spec=SPEC),
    "DeleteJob": lambda: placement_pb2.DeleteJobRequest(name=f"{F1}/jobs/j1"),
    "WatchJobs": lambda: placement_pb2.WatchJobsRequest(parent=F1),
    "GetPlan": lambda: plan_pb2.GetPlanRequest(name=PLAN),
    "ListPlans": lambda: plan_pb2.ListPlansRequest(parent=PLAN, page_size=1),
    "ComparePlans": lambda: plan_pb2.ComparePlansRequest(plan=PLAN, before=1),
    "RollBackPlan": lambda: plan_pb2.RollBackPlanRequest(plan=PLAN, generation=1, seconds=60),
    "EndRollback": lambda: plan_pb2.EndRollbackRequest(plan=PLAN),
    "ListRoutes": lambda: plan_pb2.ListRoutesRequest(parent=PLAN, page_size=1, link=LINK),
    "WatchPlan": lambda: plan_pb2.WatchPlanRequest(name=PLAN),
    "ExplainFlow": lambda: plan_pb2.ExplainFlowRequest(plan=PLAN, flow="j1/f0"),
    "WhatIf": lambda: plan_pb2.WhatIfRequest(
        fabric=F1,
        links=[plan_pb2.LinkChange(link=LINK, admin_state=common_pb2.STATE_DOWN)],
        demands=[FLOW],
    ),
    "WatchDrain": lambda: plan_pb2.WatchDrainRequest(fabric=F1, links=[LINK], switches=["s1"]),
    "ExamineInstallation": lambda: doctor_pb2.ExamineInstallationRequest(fabric=F1),
    "ExamineJob": lambda: doctor_pb2.ExamineJobRequest(name=f"{F1}/jobs/j1"),
    "ReportPortPaths": lambda: plan_pb2.ReportPortPathsRequest(
        fabric=F1,
        host="h0.0",
        pairs=[
            plan_pb2.PortPaths(
                source="n0.0",
                destination="n1.0",
                paths=[plan_pb2.PortPath(hops=["10.9.0.1"], ports=[49152])],
            )
        ],
    ),
    "GetJobPorts": lambda: plan_pb2.GetJobPortsRequest(
        plan=PLAN, job="j1", hosts=["h0.0"], nics=["n1.0"], page_size=1
    ),
    "WatchJobPorts": lambda: plan_pb2.WatchJobPortsRequest(
        plan=PLAN, jobs=["j1"], hosts=["h0.0"], nics=["n1.0"]
    ),
}
"""By method: a request that is answered in the initial state. Some methods have none."""


class World:
    """The services of one controller, without a wire and without the reconcile loop."""

    def __init__(self) -> None:
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
        self.loop = asyncio.new_event_loop()
        self.store: EmbeddedStore = self.loop.run_until_complete(self._furnish())
        store, telemetry, observations = self.store, Telemetry(), Observations()
        changes = Changes(store, observations)
        indexes, advisor = FlowIndexes(store), DirectPlanner(planning_engine(1.0))
        gateway, rates, unwell = Gateway(telemetry, 64), RateBook(), LinkBook(telemetry).unwell
        overlays = OverlayBook(store, lambda: 1, telemetry, changes.notice)
        self.services: dict[str, Any] = {
            "FabricService": FabricService(
                store,
                changes,
                observations,
                unwell=unwell,
                aside=SetAside().of,
            ),
            "PlacementService": PlacementService(store, changes, advisor, observations),
            "DemandService": DemandService(store, indexes, rates, observations),
            "PlanService": PlanService(
                store,
                changes,
                indexes,
                advisor,
                observations=observations,
                withdrawn=overlays.any_withdrawn,
            ),
            "DoctorService": DoctorService(
                store, gateway, indexes, rates, observations, unwell=unwell, files=(), tokens=None
            ),
            "OverlayService": OverlayService(store, overlays),
            "AuditService": AuditService(store),
        }
        self.calls = 0

    def close(self) -> None:
        """Close the store and the loop."""
        self.loop.run_until_complete(self.store.close())
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        structlog.reset_defaults()

    async def _furnish(self) -> EmbeddedStore:
        store = await open_embedded(scratch() / "store.sqlite3", audit_kept=1000)
        for name in ("f1", "f2"):
            await store.put_fabric(name, clos())
        await store.submit_job("f1", job())
        await store.put_demands("f1", "d1", demands(("n0.1", "n1.1")))
        epoch = await store.acquire_leadership("fuzz")
        plan = plan_of((await store.get_fabric("f1")).fabric)
        program, facts = program_of(plan, epoch, 1), PlanFacts()
        await store.commit(
            "f1", epoch=epoch, expected_generation=0, plan=plan, program=program, facts=facts
        )
        return store

    def call(self, service: str, method: Any, requests: list[Message]) -> bool:
        """Make one call, and return whether it was answered."""
        self.calls += 1
        return self.loop.run_until_complete(self._call(service, method, requests))

    async def _call(self, service: str, method: Any, requests: list[Message]) -> bool:
        handler = getattr(self.services[service], method.name)
        before, quiet = await self._state(), False
        request: Any = _stream(requests) if method.client_streaming else requests[0]
        try:
            quiet = await self._quiet(method.name, request)
            async with asyncio.timeout(0.002 if quiet else PATIENCE):
                if method.server_streaming:
                    async with aclosing(handler(request, None)) as answers:
                        await anext(answers)
                    return True
                answer = await handler(request, None)
        except StopAsyncIteration:
            return False
        except TimeoutError:
            if quiet:
                return True
            raise
        except Exception as error:
            if status_of(error) is None:
                raise
            check(await self._state() == before, "what is refused changes nothing")
            return False
        await self._judge(method.name, requests[0], answer)
        return True

    async def _quiet(self, method: str, request: Any) -> bool:
        """Return whether a stream has nothing to tell: no rates, or no plan yet."""
        if method not in {"WatchPlan", "WatchJobPorts"}:
            return method == "WatchRates"
        found = PLANS.fullmatch(request.name if method == "WatchPlan" else request.plan)
        try:
            return found is not None and await self.store.committed(found[1]) is None
        except PortError:  # there is no such fabric
            return False

    async def _state(self) -> object:
        """Return a value that changes with every write."""
        page = await self.store.audit(after=2**62)
        return page.head, await self.store.versions("f1")

    async def _judge(self, method: str, request: Any, answer: Any) -> None:
        """Check that what was accepted is there, and that the audit trail is intact."""
        answer.SerializeToString()
        if method == "PutFabric":
            fabric = fabric_codec.fabric_from_pb(answer)
            again = parse_fabric(fabric_document(fabric), "again")
            check(again.link_count == len(request.fabric.links), "no link is lost")
            check(again.node_count == len(request.fabric.nodes), "no node is lost")
        if method == "DeleteFabric" and request.name == "fabrics/f2":
            await self.store.put_fabric("f2", clos())
        if method == "SubmitJob":
            check(answer.name == f"{request.parent}/jobs/{request.job_id}", "a job has its name")
            check(list(answer.spec.hosts) == list(request.spec.hosts), "and its hosts")
            if self.calls % 2:  # makes room for the next job
                with suppress(PortError):  # as below
                    await self.store.delete_job("f1", request.job_id)
        if method == "DeleteJob" and request.name == f"{F1}/jobs/j1":
            with suppress(PortError):  # the request was a repeated one
                await self.store.submit_job("f1", job())
        if self.calls % 500 == 0:
            page = await self.store.audit()
            check(verify(page.anchor, page.records) == page.head, "the audit trail holds")


async def _stream(requests: list[Message]) -> AsyncIterator[Message]:
    for request in requests:
        yield request


def _target(world: World, service: str, method: Any) -> Target:
    kind: Any = GetMessageClass(method.input_type)

    def run(content: bytes) -> bool:
        """Read the bytes as one request, or as several ones for a client stream (``framed``)."""
        parts = parts_of(content) if method.client_streaming else [content]
        requests = []
        for part in parts:
            request = kind()
            try:
                request.ParseFromString(part)
            except DecodeError:
                return False
            requests.append(request)
        return world.call(service, method, requests)

    good = GOOD.get(method.name)

    def one(chance: random.Random) -> Message:
        if good is not None and chance.random() < 0.7:
            return disturbed(good(), chance)
        return message(kind.DESCRIPTOR, chance)

    def make(chance: random.Random) -> bytes:
        count = chance.choice((0, 1, 1, 2, 3)) if method.client_streaming else 1
        made = [one(chance).SerializeToString() for _ in range(count)]
        return framed(made) if method.client_streaming else made[0]

    vary = None if method.client_streaming else varied(kind, make)
    return Target(f"{service}/{method.name}", run, [b""], make, vary, weight=0.35)


def _any_order(targets: Sequence[Target]) -> Target:
    """Return a target that calls a random method each time, so that calls meet what others left."""

    def run(content: bytes) -> bool:
        return bool(content) and targets[content[0] % len(targets)].run(content[1:])

    def make(chance: random.Random) -> bytes:
        which = chance.randrange(len(targets))
        one = targets[which].make
        return bytes([which]) + (one(chance) if one else b"")

    return Target("calls in any order", run, [b"\0"], make, weight=8)


def targets(world: World) -> list[Target]:
    """Return a target for each method, and one for calls in any order."""
    descriptors: list[Callable[[], Any]] = [
        service for module in PROTOS for service in module.DESCRIPTOR.services_by_name.values()
    ]
    found = [
        _target(world, service.name, method)  # type: ignore[attr-defined] # descriptors
        for service in descriptors
        for method in service.methods  # type: ignore[attr-defined] # descriptors
    ]
    return [*found, _any_order(found)]
