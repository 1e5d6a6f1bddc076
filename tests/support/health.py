"""Asks a controller for its health."""

from __future__ import annotations

from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from heddle.client import AsyncClient


async def is_healthy(client: AsyncClient) -> bool:
    """Return whether the controller says that it serves."""
    channel: Any = client.calls
    stub: Any = health_pb2_grpc.HealthStub(channel)  # the stubs have no types
    answer = await stub.Check(health_pb2.HealthCheckRequest())
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
