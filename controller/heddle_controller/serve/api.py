"""All gRPC services put together: what each of them gets, and how all of them stop.

``app.py`` gives what other packages make (store, gateway, meter). This module makes the rest.
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
from heddle_controller.planner.port import Advisor
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
from heddle_controller.serve.interceptors.around import CallMeter
from heddle_controller.serve.placement import PlacementService
from heddle_controller.serve.plan import PlanService
from heddle_controller.serve.rates import RateBook
from heddle_controller.serve.server import ApiServer, ServerTerms, Service
from heddle_controller.serve.watch import Changes
from heddle_controller.store.store import Store


class Meter(AgentMeter, CallMeter, LinkMeter, OverlayMeter, Protocol):
    """All measurements of this package."""


@dataclass(frozen=True, slots=True)
class Rooms:
    """What other packages make and the services use."""

    store: Store
    gateway: Gateway
    observations: Observations
    meter: Meter
    advisor: Advisor
    """Computes plans for questions such as what-if; nothing is committed."""


class Api:
    """The gRPC API of one controller process; the web page shows answers of its services."""

    def __init__(self, rooms: Rooms, server: ServerTerms, sessions: SessionTerms) -> None:
        """Make all services and bind the port.

        Raises:
            InputError: as for ``ApiServer``.
        """
        self.store = store = rooms.store
        self.gateway = gateway = rooms.gateway
        self.observations = seen = rooms.observations
        self.rates = RateBook()
        links = LinkBook(rooms.meter)
        self.unwell = links.unwell
        """Function from a fabric's id to its links that agents report as unwell."""
        self._changes = changes = Changes(store, seen)
        self._indexes = indexes = FlowIndexes(store)
        self._overlays = OverlayBook(
            store, lambda: gateway.guard.leading, rooms.meter, changes.notice
        )
        gateway.on_lead.append(self._overlays.lead)
        self.fabric = FabricService(
            store, changes, seen, unwell=links.unwell, aside=gateway.held_aside
        )
        self.placement = PlacementService(store, changes, rooms.advisor, seen)
        self.plan = PlanService(
            store,
            changes,
            indexes,
            rooms.advisor,
            observations=seen,
            withdrawn=self._overlays.any_withdrawn,
        )
        tls = server.tls
        self.doctor = DoctorService(
            store,
            gateway,
            indexes,
            self.rates,
            seen,
            unwell=links.unwell,
            files=(tls.cert, tls.client_ca) if tls is not None else (),
            tokens=server.admission.tokens,
        )
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
        """The port that the API listens on."""
        return self._server.port

    @property
    def token_port(self) -> int:
        """The second port, for clients with tokens; 0 if there is none."""
        return self._server.token_port

    async def start(self) -> None:
        """Begin to answer calls; health is NOT_SERVING until ``set_serving``."""
        self._tasks = [
            asyncio.create_task(self._changes.run(), name="serve changes"),
            asyncio.create_task(self._indexes.run(), name="index plans"),
            asyncio.create_task(self._introductions.run(), name="introduce agents"),
            asyncio.create_task(self._overlays.run(), name="overlay"),
            asyncio.create_task(log_marks(self.store), name="audit marks"),
        ]
        await self._server.start()

    def set_serving(self, *, serving: bool) -> None:
        """Set whether health reports SERVING."""
        self._server.set_serving(serving=serving)

    async def stop(self, grace: float) -> None:
        """Set health to NOT_SERVING, end the streams, finish running calls, and free the port.

        Running calls have ``grace`` seconds.
        """
        self._server.close_health()
        self.gateway.close()
        self._changes.close()
        self.rates.close()
        await self._server.stop(grace)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _service(module: object, name: str, add: Callable[..., None], servicer: object) -> Service:
    """Return a service under its full name."""
    descriptor = module.DESCRIPTOR.services_by_name[name]  # type: ignore[attr-defined] # modules
    return Service(descriptor.full_name, partial(add, servicer))
