"""What a client of the API leaves behind at the server: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from heddle.v1 import plan_pb2 as pb
from heddle_emulator.client import Client

SECONDS = 20.0


class Watched:
    """Tells a plan that all switches hold, and goes on until the client leaves."""

    def __init__(self) -> None:
        self.left = asyncio.Event()

    async def watch(self, _: pb.WatchPlanRequest, __: object) -> AsyncIterator[pb.Plan]:
        """Answer ``WatchPlan``."""
        plan = pb.Plan(generation=1, routed_count=3)
        plan.programmed_time.GetCurrentTime()
        try:
            yield plan
            await asyncio.Event().wait()
        finally:
            self.left.set()

    def handler(self) -> grpc.GenericRpcHandler:
        """For a server."""
        method = grpc.unary_stream_rpc_method_handler(
            self.watch, pb.WatchPlanRequest.FromString, pb.Plan.SerializeToString
        )
        return grpc.method_handlers_generic_handler("heddle.v1.PlanService", {"WatchPlan": method})


@pytest.mark.parametrize("wanted", ["programmed", "committed"])
async def test_a_watch_ends_once_it_has_shown_what_was_waited_for(wanted: str) -> None:
    """The server is told at once, and not left to look at every change until the deadline."""
    watched, server = Watched(), grpc.aio.server()
    server.add_generic_rpc_handlers((watched.handler(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with Client(f"127.0.0.1:{port}", "fabrics/f") as client:
            if wanted == "programmed":
                plan = await client.programmed_plan(0, 10 * SECONDS)
            else:
                plan = await client.committed_plan(3, 10 * SECONDS)
            assert plan.generation == 1
            async with asyncio.timeout(SECONDS):
                await watched.left.wait()
    finally:
        await server.stop(None)
