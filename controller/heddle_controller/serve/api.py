"""The services put together: what each is handed, and how all end at once.

The wiring gives what other rooms make (store, gateway, meter); this is what
serve makes for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from heddle.v1 import (
    agent_pb2,
    audit_pb2,
    demand_pb2,
    doctor_pb2,
    fabric_pb2,
    overlay_pb2,
    placement_pb2,
    plan_pb2,
)
from heddle.v1.agent_pb2_grpc import add_AgentServiceServicer_to_server
from heddle.v1.audit_pb2_grpc import add_AuditServiceServicer_to_server
from heddle.v1.demand_pb2_grpc import add_DemandServiceServicer_to_server
from heddle.v1.doctor_pb2_grpc import add_DoctorServiceServicer_to_server
from heddle.v1.fabric_pb2_grpc import add_FabricServiceServicer_to_server
from heddle.v1.overlay_pb2_grpc import add_OverlayServiceServicer_to_server
from heddle.v1.placement_pb2_grpc import add_PlacementServiceServicer_to_server
from heddle.v1.plan_pb2_grpc import add_PlanServiceServicer_to_server
from heddle_controller.planner.port import Planner
from heddle_controller.reconcile.observations import Observations
from heddle_controller.serve.agents.counters import CounterBook
from heddle_controller.serve.agents.gateway import AgentMeter, Gateway
from heddle_controller.serve.agents.link_book import LinkBook, LinkMeter
from heddle_controller.serve.agents.overlays import OverlayBook, OverlayMeter, OverlayService
from heddle_controller.serve.agents.service import AgentService, SessionTerms
from heddle_controller.serve.audit import AuditService, log_marks
from heddle_controller.serve.demand import DemandService
from heddle_controller.serve.doctor.service import DoctorService
from heddle_controller.serve.fabric import FabricService
from heddle_controller.serve.flow_index import FlowIndexes
from heddle_controller.serve.interceptors.outcomes import CallMeter
from heddle_controller.serve.placement import PlacementService
from heddle_controller.serve.plan import PlanService
from heddle_controller.serve.rates import RateBook
from heddle_controller.serve.server import ApiServer, ServerTerms, Service
from heddle_controller.serve.watch import Changes
from heddle_controller.store.store import Store


class Meter(AgentMeter, CallMeter, LinkMeter, OverlayMeter, Protocol):
    """All that serve measures."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """What other rooms make and serve stands on."""

    store: Store
    gateway: Gateway
    observations: Observations
    meter: Meter
    advisor: Planner
    """Asked what would be planned if."""


class Api:
    """The gRPC API of one controller process; the web page shows what its parts answer."""

    def __init__(self, rooms: Rooms, server: ServerTerms, sessions: SessionTerms) -> None:
        """Bind the port.

        Raises:
            InputError: as ``ApiServer``.
        """
        self.store = store = rooms.store
        self.gateway = gateway = rooms.gateway
        self.observations = seen = rooms.observations
        self.rates = RateBook()
        links = LinkBook(rooms.meter)
        self.unwell = links.unwell
        """Links of a fabric that agents find something wrong with."""
        self._changes = changes = Changes(store, seen)
        self._indexes = indexes = FlowIndexes(store)
        self._overlays = OverlayBook(store, lambda: gateway.guard.leading, rooms.meter)
        gateway.on_lead.append(self._overlays.lead)
        self.fabric = FabricService(
            store, changes, seen, unwell=links.unwell, aside=gateway.held_aside
        )
        self.placement = PlacementService(store, changes, rooms.advisor, seen)
        self.plan = PlanService(store, changes, indexes, rooms.advisor, observations=seen)
        self.doctor = DoctorService(store, gateway, indexes, self.rates, seen, unwell=links.unwell)
        self.audit = AuditService(store)
        agent = AgentService(
            store,
            gateway,
            CounterBook(indexes, self.rates, rooms.meter, seen),
            sessions,
            lambda: gateway.guard.newest,
            observations=seen,
            links=links,
            overlays=self._overlays,
        )
        self._introductions = agent.introductions
        demand = DemandService(store, indexes, self.rates, seen)
        overlay = OverlayService(store, self._overlays)
        services = [
            _service(fabric_pb2, "FabricService", add_FabricServiceServicer_to_server, self.fabric),
            _service(
                placement_pb2,
                "PlacementService",
                add_PlacementServiceServicer_to_server,
                self.placement,
            ),
            _service(demand_pb2, "DemandService", add_DemandServiceServicer_to_server, demand),
            _service(plan_pb2, "PlanService", add_PlanServiceServicer_to_server, self.plan),
            _service(agent_pb2, "AgentService", add_AgentServiceServicer_to_server, agent),
            _service(overlay_pb2, "OverlayService", add_OverlayServiceServicer_to_server, overlay),
            _service(doctor_pb2, "DoctorService", add_DoctorServiceServicer_to_server, self.doctor),
            _service(audit_pb2, "AuditService", add_AuditServiceServicer_to_server, self.audit),
        ]
        self._server = ApiServer(services, server, rooms.meter, store.stale_for)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        """The port that is listened on."""
        return self._server.port

    @property
    def token_port(self) -> int:
        """The second port, for tokens; 0 where there is none."""
        return self._server.token_port

    async def start(self) -> None:
        """Answer calls; health is NOT_SERVING until ``set_serving``."""
        self._tasks = [
            asyncio.create_task(self._changes.run(), name="serve changes"),
            asyncio.create_task(self._indexes.run(), name="index plans"),
            asyncio.create_task(self._introductions.run(), name="introduce agents"),
            asyncio.create_task(self._overlays.run(), name="overlay"),
            asyncio.create_task(log_marks(self.store), name="audit marks"),
        ]
        await self._server.start()

    def set_serving(self, *, serving: bool) -> None:
        """What health tells."""
        self._server.set_serving(serving=serving)

    async def stop(self, grace: float) -> None:
        """Health NOT_SERVING, end the streams, finish calls under way, free the port."""
        self._server.close_health()
        self.gateway.close()
        self._changes.close()
        self.rates.close()
        await self._server.stop(grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _service(module: object, name: str, add: Callable[..., None], servicer: object) -> Service:
    """A service under its full name."""
    descriptor = module.DESCRIPTOR.services_by_name[name]  # type: ignore[attr-defined] # modules
    return Service(descriptor.full_name, partial(add, servicer))
