"""A real API on a free port over a real store file, for tests of the services alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc import aio
from grpc_status import rpc_status

from heddle.v1.agent_pb2_grpc import AgentServiceStub
from heddle.v1.demand_pb2_grpc import DemandServiceStub
from heddle.v1.doctor_pb2_grpc import DoctorServiceStub
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle.v1.placement_pb2_grpc import PlacementServiceStub
from heddle.v1.plan_pb2_grpc import PlanServiceStub
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.plan import Plan
from heddle_controller.planner.core import planning_engine
from heddle_controller.reconcile.observations import Observations
from heddle_controller.reconcile.ports import AgentSession, LinkObservation, LinkReport
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.serve.agents.service import SessionTerms
from heddle_controller.serve.api import Api, Rooms
from heddle_controller.serve.codec import fabric as fabric_codec
from heddle_controller.serve.server import ServerTerms
from heddle_controller.state.records import Committed, LinkName, PlanFacts
from heddle_controller.store.embedded import EmbeddedStore, open_embedded
from heddle_controller.telemetry.metrics import Telemetry
from tests.support.direct_planner import DirectPlanner
from tests.support.store_samples import clos, plan_of, program_of
from tests.support.waiting import PATIENCE

OPTIONS = [
    ("grpc.max_receive_message_length", 64 << 20),
    ("grpc.max_send_message_length", 65 << 20),
]
LOOPBACK = ServerTerms("127.0.0.1", 0)
M = TypeVar("M", bound=Message)


@dataclass
class Serving:
    """The parts of a running API, and a client of each service."""

    api: Api
    store: EmbeddedStore
    gateway: Gateway
    observations: Observations
    telemetry: Telemetry
    channel: aio.Channel
    epoch: int = 0

    def __post_init__(self) -> None:
        self.fabrics = FabricServiceStub(self.channel)
        self.jobs = PlacementServiceStub(self.channel)
        self.demands = DemandServiceStub(self.channel)
        self.plans = PlanServiceStub(self.channel)
        self.doctor = DoctorServiceStub(self.channel)
        self.agents = AgentServiceStub(self.channel)

    async def put_fabric(self, fabric: Fabric | None = None, name: str = "f1") -> None:
        """Put a fabric into the store, without the API."""
        await self.store.put_fabric(name, fabric or clos())

    async def commit_plan(self, plan: Plan | None = None) -> Committed:
        """Commit a plan, or the sample plan, as the next generation of f1."""
        if not self.epoch:
            self.epoch = await self.store.acquire_leadership("test")
        newest = (await self.store.versions("f1")).generation
        plan = plan or plan_of((await self.store.get_fabric("f1")).fabric)
        return await self.store.commit(
            "f1",
            epoch=self.epoch,
            expected_generation=newest,
            plan=plan,
            program=program_of(plan, self.epoch, newest + 1),
            facts=PlanFacts(changed_count=1, solve_seconds=0.25),
        )


def told_down(s: Serving, switch: str, other: str) -> None:
    """Report a link as down as a switch's agent would, without a session."""
    about = AgentSession(1, "f1", switch, "i", "", frozenset(), 0, 0, 0, b"")
    seen = LinkObservation(LinkName(switch, other), State.DOWN, 1.0, 1)
    s.observations.report(about, LinkReport((seen,)), 1.0)


@asynccontextmanager
async def serving(
    path: Path,
    server: ServerTerms = LOOPBACK,
    *,
    queue_limit: int = 64,
    interval: float = 0.0,
    introduction_limit: float = PATIENCE,
) -> AsyncIterator[Serving]:
    """Run an API over a store below ``path``, without the reconcile loop; it says SERVING.

    An agent that is only slow on a busy machine may introduce itself late.
    """
    await asyncio.to_thread(path.mkdir, exist_ok=True)
    store = await open_embedded(path / "store.sqlite3")
    telemetry = Telemetry()
    gateway = Gateway(telemetry, queue_limit)
    observations, planner = Observations(), DirectPlanner(planning_engine(None))
    rooms = Rooms(store, gateway, observations, telemetry, planner)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(store.close)
        api = Api(rooms, server, SessionTerms("test", interval, 0.0, introduction_limit))
        stack.push_async_callback(api.stop, 2.0)
        await api.start()
        gateway.lead(1)
        api.set_serving(serving=True)
        channel = aio.insecure_channel(f"127.0.0.1:{api.port}", OPTIONS)
        yield Serving(
            api, store, gateway, observations, telemetry, await stack.enter_async_context(channel)
        )


async def refusal(call: Awaitable[Any]) -> aio.AioRpcError:
    """Return the error in which a call ends; fail if it is answered."""
    try:
        answer = await call
    except aio.AioRpcError as error:
        return error
    raise AssertionError(f"was answered: {answer}")


def detail(error: grpc.RpcError, kind: type[M]) -> M:
    """Return the only detail of a kind in an error's status."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type] # an AioRpcError will do
    assert status is not None, error
    found = kind()
    (packed,) = [packed for packed in status.details if packed.Is(kind.DESCRIPTOR)]
    packed.Unpack(found)
    return found


def violations(error: grpc.RpcError) -> dict[str, str]:
    """Return the field violations of an error, by field."""
    bad = detail(error, error_details_pb2.BadRequest)
    return {violation.field: violation.description for violation in bad.field_violations}


def reason(error: grpc.RpcError) -> str:
    """Return ``ErrorInfo.reason`` of an error."""
    return detail(error, error_details_pb2.ErrorInfo).reason


def wire(fabric: Fabric, name: str = "f1") -> Any:
    """Return a fabric as a message that clients send."""
    return fabric_codec.fabric_to_pb(name, fabric)
