"""The gRPC server: what listens, under which terms, and how it stops.

Order of a start: bind (a port in use is told before anything else happens), serve
NOT_SERVING, and SERVING once the wiring says so. Order of a stop: NOT_SERVING, end
the streams, let calls under way finish within the grace, close.

grpc.health.v1 for the whole server and each service by name.

Not the library's own servicer: its Watch forgets all watchers of a service when one
of them leaves, and keeps a stream open through a shutdown.
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from grpc import aio
from grpc_health.v1 import health_pb2 as pb
from grpc_health.v1.health_pb2_grpc import HealthServicer, add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection
from typing_extensions import override

from heddle_controller.model.errors import refuse
from heddle_controller.serve.door.door import Door
from heddle_controller.serve.errors import not_found
from heddle_controller.serve.interceptors.around import Around
from heddle_controller.serve.interceptors.auth import Admission, Auth, is_loopback
from heddle_controller.serve.interceptors.limits import Allowance, Budget, Limits
from heddle_controller.serve.interceptors.outcomes import (
    CallMeter,
    CallMetrics,
    CallSpans,
    CallTrace,
    Errors,
    StaleMarks,
)
from heddle_controller.serve.security.certificates import Tls, credentials
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


MAX_STREAMS = 10_000
"""Of one connection, before it is asked whose; one process may hold agents by the thousand."""
MAX_WAITING = 1 << 20
"""Calls that gRPC may hold until they are looked at. Beyond its own 1,000 it ends any of them with
CANCELLED, whosever they are: one client's flood would end the calls of others."""
LONGEST_WAIT = 86_400
"""Seconds that gRPC may hold them: after its own 30 it would end them with CANCELLED, as if the
caller had gone. How long is waited is for callers to say, by their deadlines."""
HEALTH_SERVICE = "grpc.health.v1.Health"


@dataclass(frozen=True, slots=True)
class ServerTerms:
    """Where and how to listen."""

    host: str
    port: int
    """0 takes a free one."""
    tls: Tls | None = None
    insecure: bool = False
    """Plain text to other hosts too."""
    connection_age: float = 3600.0
    """Seconds after which a connection is closed, so that clients spread over replicas."""
    connection_age_grace: float = 60.0
    """Seconds that streams on a connection so closed may go on."""
    unary_limit: float = 60.0
    """Seconds a call with one question and one answer may take."""
    admission: Admission = field(default_factory=Admission)
    """By what callers are known."""
    allowance: Allowance = field(default_factory=Allowance)
    """How much each may ask for."""
    message_bytes: int = 64 << 20
    """Largest message, in either direction."""
    token_address: tuple[str, int] | None = None
    """A second port, over TLS, for clients with a token and no certificate."""
    spans: CallSpans | None = None
    """Where calls are told as spans."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service: its full name, and what adds it to a server."""

    name: str
    add: Callable[[aio.Server], None]


class ApiServer:
    """All services on one port, with health and reflection."""

    def __init__(
        self,
        services: Sequence[Service],
        terms: ServerTerms,
        meter: CallMeter,
        stale_for: Callable[[], float] = float,
    ) -> None:
        """Bind; ``stale_for`` says how old answers are, see ``Store.stale_for``.

        Raises:
            InputError: the address cannot be had, plain text would leave this host,
                or a TLS file cannot be used.
        """
        _check_plain_text(terms)
        names = [service.name for service in services]
        self._health = Health(names)
        origin = self._origin if _strangers(terms) else None
        auth = Auth(replace(terms.admission, insecure=terms.insecure, origin=origin))
        self._standing = auth.standing
        self._asking: asyncio.Task[None] | None = None
        self._server = aio.server(
            interceptors=[
                Around(
                    CallTrace(terms.spans),
                    CallMetrics(meter),
                    auth,
                    Limits(Budget(terms.allowance)),
                    Errors(terms.unary_limit),
                    StaleMarks(stale_for),
                )
            ],
            options=_options(terms),
        )
        for service in services:
            service.add(self._server)
        add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            [*names, HEALTH_SERVICE, reflection.SERVICE_NAME], self._server
        )
        self._inner: Path | None = None
        self._doors: list[Door] = []
        self.port = self._bind(terms)
        self.token_port = self._bind_tokens(terms)

    async def start(self) -> None:
        """Answer calls, with health NOT_SERVING."""
        self._asking = asyncio.create_task(self._standing.run(), name="standing streams")
        await self._server.start()
        for door in self._doors:
            door.start()

    def set_serving(self, *, serving: bool) -> None:
        """What health tells."""
        self._health.set_serving(serving=serving)

    def close_health(self) -> None:
        """NOT_SERVING for good."""
        self._health.close()

    async def stop(self, grace: float) -> None:
        """Refuse new calls, wait for those under way for at most ``grace`` seconds."""
        self._health.close()
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.gather(self._asking, return_exceptions=True)
        await self._server.stop(grace)
        for door in self._doors:
            await asyncio.to_thread(door.stop)
        if self._inner is not None:
            await asyncio.to_thread(shutil.rmtree, self._inner.parent, ignore_errors=True)

    def _bind(self, terms: ServerTerms) -> int:
        """Take the port: gRPC's own, or a door before it where strangers may connect."""
        if terms.tls is None or terms.tls.client_ca is not None:
            return _bind(self._server, terms)
        if self._inner is None:
            self._inner = Path(tempfile.mkdtemp(prefix="heddle-")) / "grpc"
            self._server.add_insecure_port(f"unix:{self._inner}")
        self._doors.append(Door(_socket(terms), terms.tls, self._inner))
        return self._doors[-1].port

    def _bind_tokens(self, terms: ServerTerms) -> int:
        """The second port; 0 where there is none."""
        if terms.token_address is None or terms.tls is None:
            return 0
        host, port = terms.token_address
        return self._bind(
            replace(terms, host=host, port=port, tls=replace(terms.tls, client_ca=None))
        )

    def _origin(self, name: str) -> str | None:
        found = (door.origin(name) for door in self._doors)
        return next((host for host in found if host is not None), None)


def _strangers(terms: ServerTerms) -> bool:
    """Whether there is a port that asks for no certificate."""
    return terms.tls is not None and (
        terms.tls.client_ca is None or terms.token_address is not None
    )


def _check_plain_text(terms: ServerTerms) -> None:
    if terms.tls is None and not terms.insecure and not is_loopback(terms.host):
        cure = "give --tls-cert and --tls-key, or say --insecure to serve plain text to others"
        raise refuse("settings", "listen", f"{terms.host} is reachable by other hosts: {cure}")


def _options(terms: ServerTerms) -> list[tuple[str, int]]:
    """Idle streams die on gRPC's defaults; and two servers could share a port unnoticed."""
    return [
        ("grpc.max_receive_message_length", terms.message_bytes),
        ("grpc.max_send_message_length", terms.message_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),  # else a ping under way has a minute
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.server.max_pending_requests", MAX_WAITING),
        ("grpc.server.max_pending_requests_hard_limit", MAX_WAITING),
        ("grpc.server_max_unrequested_time_in_server", LONGEST_WAIT),
        ("grpc.max_connection_age_ms", int(terms.connection_age * 1000)),
        ("grpc.max_connection_age_grace_ms", int(terms.connection_age_grace * 1000)),
    ]


def _socket(terms: ServerTerms) -> socket.socket:
    """One that is bound to the address."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(
            terms.host, terms.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(kind, socket.SOCK_STREAM)
        try:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if kind == socket.AF_INET6:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            bound.bind(address)
        except OSError:
            bound.close()
            raise
    except OSError as error:
        raise _no_address(terms, error.strerror or str(error)) from None
    return bound


def _bind(server: aio.Server, terms: ServerTerms) -> int:
    """Take the port; gRPC does not say why it cannot, so ask the system first."""
    _socket(terms).close()
    host = f"[{terms.host}]" if ":" in terms.host else terms.host
    try:
        if terms.tls is None:
            return server.add_insecure_port(f"{host}:{terms.port}")
        return server.add_secure_port(f"{host}:{terms.port}", credentials(terms.tls))
    except RuntimeError:
        raise _no_address(terms, "it was taken just now") from None


def _no_address(terms: ServerTerms, why: str) -> Exception:
    cure = "stop what listens there, or choose another with --listen (port 0 takes a free one)"
    return refuse(
        "settings", "listen", f"cannot listen on {terms.host}:{terms.port}: {why}; {cure}"
    )
