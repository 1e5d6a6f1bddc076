"""What a client of the API leaves behind at the server: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import pytest
from google.protobuf.message import Message

from heddle.v1 import placement_pb2, plan_pb2
from heddle_emulator.client import Client

SECONDS = 20.0
LONG = 10 * SECONDS


def _plan() -> plan_pb2.Plan:
    plan = plan_pb2.Plan(generation=1, routed_count=3)
    plan.programmed_time.GetCurrentTime()
    return plan


def _job() -> placement_pb2.JobEvent:
    job = placement_pb2.Job(name="fabrics/f/jobs/j", state=placement_pb2.JOB_STATE_PROGRAMMED)
    return placement_pb2.JobEvent(job=job)


class Watched:
    """Tells what is waited for, and goes on until the client leaves."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    def handler(
        self, service: str, method: str, tell: Callable[[], Message]
    ) -> grpc.GenericRpcHandler:
        """Answers one method of a service."""

        async def watch(_: bytes, __: object) -> AsyncIterator[bytes]:
            try:
                yield tell().SerializeToString()
                await asyncio.Event().wait()
            finally:
                self.left.set()

        answers: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(watch)
        return grpc.method_handlers_generic_handler(f"heddle.v1.{service}", {method: answers})


@pytest.mark.parametrize("wanted", ["programmed", "committed", "jobs"])
async def test_a_watch_ends_once_it_has_shown_what_was_waited_for(wanted: str) -> None:
    """The server is told at once, and not left to look at every change until the deadline."""
    watched, server = Watched(), grpc.aio.server()
    plans = watched.handler("PlanService", "WatchPlan", _plan)
    jobs = watched.handler("PlacementService", "WatchJobs", _job)
    server.add_generic_rpc_handlers((plans, jobs))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with Client(f"127.0.0.1:{port}", "fabrics/f") as client:
            if wanted == "programmed":
                assert (await client.programmed_plan(0, LONG)).generation == 1
            elif wanted == "committed":
                assert (await client.committed_plan(3, LONG)).generation == 1
            else:
                await client.programmed_jobs(["j"], LONG)
            async with asyncio.timeout(SECONDS):
                await watched.left.wait()
    finally:
        await server.stop(None)
