"""Clients that are hostile or broken: each one leaves with its work half done."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Awaitable, Callable

from grpc import aio

from heddle.v1 import agent_pb2, demand_pb2, fabric_pb2, placement_pb2, plan_pb2
from heddle.v1.agent_pb2_grpc import AgentServiceStub
from heddle.v1.demand_pb2_grpc import DemandServiceStub
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle.v1.placement_pb2_grpc import PlacementServiceStub
from heddle.v1.plan_pb2_grpc import PlanServiceStub
from tests.support.serving import OPTIONS, Serving
from tests.support.store_samples import job

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\x04\0\0\0\0\0"
CONNECTIONS = 250
STREAMS = 12
"""Streams of one visitor, fewer than one client is allowed."""
SESSION = agent_pb2.AgentMessage(
    session_parameters=agent_pb2.SessionParameters(fabric="fabrics/f1", switch="l0")
)
ALONE = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
"""Options of a channel that shares its connection with no other channel."""


def visitor(serving: Serving) -> aio.Channel:
    """Open a channel with a connection of its own."""
    return aio.insecure_channel(f"127.0.0.1:{serving.api.port}", ALONE)


def watches(channel: aio.Channel) -> list[aio.UnaryStreamCall]:  # type: ignore[type-arg] # any
    """Start every kind of watch that the API has, one call each."""
    return [
        PlacementServiceStub(channel).WatchJobs(
            placement_pb2.WatchJobsRequest(parent="fabrics/f1")
        ),
        PlanServiceStub(channel).WatchPlan(plan_pb2.WatchPlanRequest(name="fabrics/f1/plan")),
        FabricServiceStub(channel).WatchFabric(fabric_pb2.WatchFabricRequest(name="fabrics/f1")),
        DemandServiceStub(channel).WatchRates(demand_pb2.WatchRatesRequest(fabric="fabrics/f1")),
    ]


async def drop_connections(serving: Serving) -> None:
    """Make hundreds of connections that end after nothing, half a preface, or nonsense."""
    chance = random.Random(1)
    said = [b"", PREFACE[:7], PREFACE, PREFACE + SETTINGS, b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 999]
    for _ in range(CONNECTIONS):
        with socket.create_connection(("127.0.0.1", serving.api.port)) as connection:
            with contextlib.suppress(OSError):  # the server may have closed it already
                connection.sendall(chance.choice(said))
            if chance.random() < 0.5:  # end with a reset
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        if chance.random() < 0.2:
            await asyncio.sleep(0)


async def never_read(serving: Serving) -> None:
    """Open watches that read nothing while much changes, and go away without closing them."""
    async with visitor(serving) as channel:
        held = [watch for _ in range(STREAMS // 4) for watch in watches(channel)]
        for number in range(40):
            name = f"j{number}"
            await serving.store.submit_job("f1", job(name))
            await serving.store.delete_job("f1", name)
        del held


async def read_slowly(serving: Serving) -> None:
    """Open watches that read an event now and then; cancel half of them in the middle of it."""
    reads: list[asyncio.Future[object]] = []
    async with visitor(serving) as channel:
        held = [watch for _ in range(STREAMS // 4) for watch in watches(channel)]
        for number in range(10):
            await serving.store.submit_job("f1", job(f"j{number}"))
            reads.append(asyncio.ensure_future(held[number].read()))
            await asyncio.wait(reads[-1:], timeout=0.01)
            await serving.store.delete_job("f1", f"j{number}")
        for watch in held[::2]:
            watch.cancel()
    await asyncio.gather(*reads, return_exceptions=True)


async def introduce_nobody(serving: Serving) -> None:
    """Open agent sessions and never send a message; half-close every second one."""
    async with visitor(serving) as channel:
        agents = AgentServiceStub(channel)
        held = [agents.Session() for _ in range(STREAMS)]
        for call in held[::2]:
            await call.done_writing()
        await asyncio.gather(*(_ended(call) for call in held[::2]))


async def half_close_sessions(serving: Serving) -> None:
    """Introduce agents, then half-close, cancel or abandon their sessions; read nothing."""
    async with visitor(serving) as channel:
        agents = AgentServiceStub(channel)
        for number in range(STREAMS):
            call = agents.Session()
            await call.write(SESSION)
            if number % 3 == 0:
                await call.done_writing()
            elif number % 3 == 1:
                call.cancel()


async def never_finish_uploads(serving: Serving) -> None:
    """Begin uploads and never end them; every second one sends a first message."""
    async with visitor(serving) as channel:
        demands = DemandServiceStub(channel)
        part = demand_pb2.PutDemandsRequest(name="fabrics/f1/demands/d")
        batch = demand_pb2.ReportRatesRequest(fabric="fabrics/f1")
        for number in range(STREAMS):
            put, told = demands.PutDemands(), demands.ReportRates()
            if number % 2:
                await put.write(part)
                with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
                    await told.write(batch)


async def _ended(call: Awaitable[object] | aio.StreamStreamCall) -> None:  # type: ignore[type-arg]
    with contextlib.suppress(aio.AioRpcError, asyncio.CancelledError):
        async for _ in call:  # type: ignore[union-attr]
            pass


Act = Callable[[Serving], Awaitable[None]]
ACTS: list[Act] = [
    drop_connections,
    never_read,
    read_slowly,
    introduce_nobody,
    half_close_sessions,
    never_finish_uploads,
]
