"""A message that is too large costs the server no more than reading its size."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from grpc import aio

from heddle.v1 import demand_pb2, fabric_pb2
from heddle.v1.demand_pb2_grpc import DemandServiceStub
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from tests.support.serving import LOOPBACK, refusal, serving

MOST = 1 << 16
NAME = "fabrics/f1/demands/d1"


async def test_messages_are_as_large_as_is_said(tmp_path: Path) -> None:
    """A message over the limit is refused, alone or within a stream, and later calls are served."""
    async with (
        serving(tmp_path, replace(LOOPBACK, message_bytes=MOST)) as s,
        aio.insecure_channel(f"127.0.0.1:{s.api.port}") as channel,
    ):
        await s.put_fabric()
        fabrics, demands = FabricServiceStub(channel), DemandServiceStub(channel)
        large = fabric_pb2.Fabric(name="fabrics/f2", title="x" * MOST)
        error = await refusal(fabrics.PutFabric(fabric_pb2.PutFabricRequest(fabric=large)))
        assert error.code().name == "RESOURCE_EXHAUSTED"
        flows = [demand_pb2.FlowDemand(flow="f" * MOST, source="h0", destination="h1", gbps=1)]
        parts = [
            demand_pb2.PutDemandsRequest(name=NAME, request_id="r1", flow_count=1),
            demand_pb2.PutDemandsRequest(demands=flows),
        ]
        error = await refusal(demands.PutDemands(iter(parts)))
        assert error.code().name == "RESOURCE_EXHAUSTED"
        answer = await fabrics.ListFabrics(fabric_pb2.ListFabricsRequest())
        assert [fabric.name for fabric in answer.fabrics] == ["fabrics/f1"]
        assert not (await s.store.intent("f1")).demands
