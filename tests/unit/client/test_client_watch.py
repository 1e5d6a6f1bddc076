"""What a client of the API waits for, and that it ends its watches at the server."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import grpc
import pytest
from google.protobuf.message import Message

from heddle.client import PROGRAMMED, AsyncClient, Closed, HeddleError, TimedOut
from heddle.client import Client as BlockingClient
from heddle.client.wire import BlockingWire
from heddle.v1 import placement_pb2, plan_pb2
from heddle_emulator.client import Client
from tests.support.waiting import LIMITS, PATIENCE

SECONDS = 240.0
LONG = 10 * SECONDS


def _plan() -> plan_pb2.Plan:
    plan = plan_pb2.Plan(generation=1, routed_count=3)
    plan.programmed_time.GetCurrentTime()
    return plan


def _job(
    state: placement_pb2.JobState.ValueType = placement_pb2.JOB_STATE_PROGRAMMED, reason: str = ""
) -> placement_pb2.JobEvent:
    job = placement_pb2.Job(name="fabrics/f/jobs/j", state=state, reason=reason)
    return placement_pb2.JobEvent(job=job)


def _degraded() -> placement_pb2.JobEvent:
    return _job(placement_pb2.JOB_STATE_DEGRADED, "switch s0 is not connected")


class Watched:
    """A server that sends the given messages and then waits until the client leaves."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    def handler(
        self, service: str, method: str, *tell: Callable[[], Message]
    ) -> grpc.GenericRpcHandler:
        """Return a handler for one method of a service, which sends these messages."""

        async def watch(_: bytes, __: object) -> AsyncIterator[bytes]:
            try:
                for each in tell:
                    yield each().SerializeToString()
                await asyncio.Event().wait()
            finally:
                self.left.set()

        answers: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(watch)
        return grpc.method_handlers_generic_handler(f"heddle.v1.{service}", {method: answers})


@asynccontextmanager
async def listening(*handlers: grpc.GenericRpcHandler) -> AsyncIterator[str]:
    """Run a server with these handlers and yield its address."""
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


@asynccontextmanager
async def served(*handlers: grpc.GenericRpcHandler) -> AsyncIterator[Client]:
    """Run a server with these handlers and yield a client of it."""
    async with listening(*handlers) as address, Client(address, "fabrics/f") as client:
        yield client


async def test_closing_a_client_ends_its_watches() -> None:
    """A watch in another task fails with ``Closed``, the server learns it, and so do later calls.

    The task does not look as if somebody had cancelled it.
    """
    watched, heard = Watched(), asyncio.Event()

    async def listen(client: AsyncClient) -> None:
        async for _ in client.watch_plans():
            heard.set()

    async with listening(watched.handler("PlanService", "WatchPlan", _plan)) as address:
        client = AsyncClient(address, fabric="f")
        task = asyncio.create_task(listen(client))
        await asyncio.wait_for(heard.wait(), PATIENCE)
        await client.close()
        with pytest.raises(Closed):
            await asyncio.wait_for(task, PATIENCE)
        await asyncio.wait_for(watched.left.wait(), PATIENCE)
        with pytest.raises(Closed):
            await client.list_jobs()


async def test_closing_a_client_ends_its_watches_in_other_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Watches of the blocking client fail with ``Closed``, and do not connect again.

    So do those of threads that all begin while the first of them still opens the connection.
    """
    watched, heard = Watched(), threading.Semaphore(0)
    real = BlockingWire.open

    def slowly(wire: BlockingWire, address: str, given: grpc.ChannelCredentials | None) -> object:
        time.sleep(0.1)  # as if it read the files of certificates
        return real(wire, address, given)

    def listen(client: BlockingClient) -> None:
        for _ in client.watch_plans():
            heard.release()

    monkeypatch.setattr(BlockingWire, "open", slowly)
    async with listening(watched.handler("PlanService", "WatchPlan", _plan)) as address:
        client = BlockingClient(address, fabric="f")
        tasks = [asyncio.create_task(asyncio.to_thread(listen, client)) for _ in range(3)]
        for _ in tasks:
            assert await asyncio.to_thread(heard.acquire, timeout=PATIENCE)
        await asyncio.to_thread(client.close)
        for task in tasks:
            with pytest.raises(Closed):
                await asyncio.wait_for(task, PATIENCE)
        await asyncio.wait_for(watched.left.wait(), PATIENCE)


async def test_a_watch_that_is_collected_while_a_connection_opens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A watch in a cycle of references may end at any moment, and no call waits for itself then."""
    watched, real = Watched(), BlockingWire.open

    def collecting(wire: BlockingWire, address: str, given: Any) -> object:
        gc.collect()
        return real(wire, address, given)

    def abandon(client: BlockingClient) -> None:
        cycle: list[object] = [client.watch_plans()]
        next(cast("Iterator[object]", cycle[0]))
        cycle.append(cycle)

    def call(address: str) -> None:
        with BlockingClient(f"{address},127.0.0.1:1", fabric="f", patience=0.0) as client:
            abandon(client)
            client.operations.calls.current = 1
            with pytest.raises(HeddleError):
                client.list_jobs()

    monkeypatch.setattr(BlockingWire, "open", collecting)
    async with listening(watched.handler("PlanService", "WatchPlan", _plan)) as address:
        called = threading.Thread(target=call, args=(address,), daemon=True)
        called.start()
        await asyncio.wait_for(watched.left.wait(), PATIENCE)
        await asyncio.to_thread(called.join, PATIENCE)
        assert not called.is_alive()


@pytest.mark.parametrize("wanted", ["programmed", "committed", "jobs"])
async def test_a_watch_ends_once_it_has_shown_what_was_waited_for(wanted: str) -> None:
    """The server learns at once that the client has left, long before the deadline."""
    watched = Watched()
    plans = watched.handler("PlanService", "WatchPlan", _plan)
    jobs = watched.handler("PlacementService", "WatchJobs", _job)
    async with served(plans, jobs) as client:
        if wanted == "programmed":
            assert (await client.programmed_plan(0, LONG)).generation == 1
        elif wanted == "committed":
            assert (await client.committed_plan(3, LONG)).generation == 1
        else:
            await client.programmed_jobs(["j"], LONG)
        async with asyncio.timeout(SECONDS):
            await watched.left.wait()


async def test_a_job_that_is_degraded_on_its_way_is_waited_for() -> None:
    """A job may be degraded for a while, as when one agent comes back later than others."""
    async with served(
        Watched().handler("PlacementService", "WatchJobs", _degraded, _job)
    ) as client:
        await client.programmed_jobs(["j"], LONG)


async def test_a_job_that_stays_degraded_is_told_with_its_reason() -> None:
    """The error comes when the time is up."""
    async with served(Watched().handler("PlacementService", "WatchJobs", _degraded)) as client:
        told = ""
        for seconds in LIMITS:
            with pytest.raises(HeddleError) as caught:
                await client.programmed_jobs(["j"], seconds)
            told = str(caught.value)
            if "j has not been heard of" not in told:
                break
        assert "j is degraded: switch s0 is not connected" in told


async def test_a_wait_without_time_does_not_say_that_a_job_is_unknown() -> None:
    """A wait of 0 s asks no controller, so it says only that it has not heard of the job."""
    jobs = Watched().handler("PlacementService", "WatchJobs", _job)
    async with listening(jobs) as address, AsyncClient(address, fabric="f") as client:
        with pytest.raises(TimedOut) as caught:
            await client.wait_until(PROGRAMMED, ["j"], timeout=0)
    assert str(caught.value) == "after 0 s jobs are not there yet: j has not been heard of yet"
