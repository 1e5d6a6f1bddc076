"""grpc.health.v1 for the whole server and each service by name.

Not the library's own servicer: its Watch forgets all watchers of a service when one
of them leaves, and keeps a stream open through a shutdown.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any

from grpc import aio
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1.health_pb2_grpc import HealthServicer
from typing_extensions import override

from heddle_controller.serve.errors import not_found
from heddle_controller.serve.watch import shutting_down

LAST_WORD_SECONDS = 0.2
"""Between NOT_SERVING and the end of a watch at shutdown."""

_Context = aio.ServicerContext[Any, Any]


class Health(HealthServicer):
    """NOT_SERVING until told otherwise; all services stand together."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = {"", *services}
        self._serving = False
        self._closed = False
        self._watchers: set[asyncio.Event] = set()

    def set_serving(self, *, serving: bool) -> None:
        """Tell everybody who asks or watches."""
        self._serving = serving
        self._wake()

    def close(self) -> None:
        """NOT_SERVING for good; watchers hear it and their streams end."""
        self._serving, self._closed = False, True
        self._wake()

    def _wake(self) -> None:
        for watcher in self._watchers:
            watcher.set()

    def _status(self, service: str) -> pb.HealthCheckResponse:
        if service not in self._services:
            return pb.HealthCheckResponse(status=pb.HealthCheckResponse.SERVICE_UNKNOWN)
        serving, not_serving = pb.HealthCheckResponse.SERVING, pb.HealthCheckResponse.NOT_SERVING
        return pb.HealthCheckResponse(status=serving if self._serving else not_serving)

    @override
    async def Check(
        self, request: pb.HealthCheckRequest, context: _Context
    ) -> pb.HealthCheckResponse:
        if request.service not in self._services:
            raise not_found("UNKNOWN_SERVICE", f"there is no service {request.service[:80]!r} here")
        return self._status(request.service)

    @override
    async def Watch(
        self, request: pb.HealthCheckRequest, context: _Context
    ) -> AsyncIterator[pb.HealthCheckResponse]:
        wake = asyncio.Event()
        self._watchers.add(wake)
        told: pb.HealthCheckResponse | None = None
        try:
            while True:
                wake.clear()
                status = self._status(request.service)
                if status != told:
                    yield status
                    told = status
                if self._closed:
                    # A client throws away what it has not read when a stream ends in
                    # error: let the last word be read first.
                    await asyncio.sleep(LAST_WORD_SECONDS)
                    raise shutting_down()
                await wake.wait()
        finally:
            self._watchers.discard(wake)
