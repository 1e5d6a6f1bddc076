"""What a controller says of its own health."""

from __future__ import annotations

from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from heddle.client import AsyncClient


async def is_healthy(client: AsyncClient) -> bool:
    """Whether the controller says that it serves."""
    channel: Any = client.calls
    stub: Any = health_pb2_grpc.HealthStub(channel)  # its stubs know no methods
    answer = await stub.Check(health_pb2.HealthCheckRequest())
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
