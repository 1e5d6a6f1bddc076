"""The gRPC server: its ports, its settings, health, and how it starts and stops.

A start binds the port first (so a port in use is reported before anything else happens), then
serves with health NOT_SERVING, and reports SERVING once ``set_serving`` is called. A stop reports
NOT_SERVING, ends the streams, lets running calls finish within the grace period, and closes.

``Health`` implements grpc.health.v1 for the whole server and for each service by name. The
library's own servicer is not used: its Watch forgets all watchers of a service when one of them
leaves, and keeps a stream open during a shutdown.
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
from heddle_controller.serve.interceptors.around import (
    Around,
    CallMeter,
    CallMetrics,
    CallSpans,
    CallTrace,
    Errors,
    StaleMarks,
)
from heddle_controller.serve.interceptors.auth import (
    Admission,
    Allowance,
    Auth,
    Budget,
    Limits,
    is_loopback,
)
from heddle_controller.serve.security.certificates import Tls, credentials
from heddle_controller.serve.watch import shutting_down

LAST_WORD_SECONDS = 0.2
"""Seconds between NOT_SERVING and the end of a watch at shutdown."""

_Context = aio.ServicerContext[Any, Any]


class Health(HealthServicer):
    """Health of the server: NOT_SERVING until ``set_serving``, and the same for all services."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = {"", *services}
        self._serving = False
        self._closed = False
        self._watchers: set[asyncio.Event] = set()

    def set_serving(self, *, serving: bool) -> None:
        """Set whether health is SERVING, and tell all watchers."""
        self._serving = serving
        self._wake()

    def close(self) -> None:
        """Set health to NOT_SERVING for good, tell all watchers, and end their streams."""
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
                    # A client drops messages that it has not read when a stream ends with an
                    # error, so give it time to read the last one.
                    await asyncio.sleep(LAST_WORD_SECONDS)
                    raise shutting_down()
                await wake.wait()
        finally:
            self._watchers.discard(wake)


MAX_STREAMS = 10_000
"""Most streams of one connection, a limit that applies before authentication; one process may run
thousands of agents."""
MAX_WAITING = 1 << 20
"""Calls that may wait inside gRPC until a handler takes them. With its default of 1,000, gRPC would
end any calls beyond that with CANCELLED, so one client's flood would end the calls of others."""
LONGEST_WAIT = 86_400
"""Seconds that a call may wait inside gRPC. With its default of 30, gRPC would end the call with
CANCELLED, as if the caller had gone. Callers set by their deadlines how long they wait."""
HEALTH_SERVICE = "grpc.health.v1.Health"


@dataclass(frozen=True, slots=True)
class ServerTerms:
    """Settings of the server: where to listen, and limits."""

    host: str
    port: int
    """0 takes a free port."""
    tls: Tls | None = None
    insecure: bool = False
    """Whether plain text may be served to other hosts."""
    connection_age: float = 3600.0
    """Seconds after which a connection is closed, so that clients spread over replicas."""
    connection_age_grace: float = 60.0
    """Seconds that streams may go on after their connection reached this age."""
    unary_limit: float = 60.0
    """Seconds that a call with one request and one answer may take."""
    admission: Admission = field(default_factory=Admission)
    """Decides who a caller is."""
    allowance: Allowance = field(default_factory=Allowance)
    """Limits on the calls of each client."""
    message_bytes: int = 64 << 20
    """Size of the largest message, in either direction."""
    token_address: tuple[str, int] | None = None
    """Host and port of a second address, over TLS, for clients with a token and no certificate."""
    spans: CallSpans | None = None
    """Takes the spans of calls; None for no traces."""


@dataclass(frozen=True, slots=True)
class Service:
    """One service: its full name, and a function that adds it to a server."""

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
        """Bind the ports; ``stale_for`` is ``Store.stale_for``.

        Raises:
            InputError: the address cannot be used, plain text would leave this host, or a TLS file
                cannot be used.
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
        """Begin to answer calls, with health NOT_SERVING."""
        self._asking = asyncio.create_task(self._standing.run(), name="standing streams")
        await self._server.start()
        for door in self._doors:
            door.start()

    def set_serving(self, *, serving: bool) -> None:
        """Set whether health is SERVING."""
        self._health.set_serving(serving=serving)

    def close_health(self) -> None:
        """Set health to NOT_SERVING for good."""
        self._health.close()

    async def stop(self, grace: float) -> None:
        """Refuse new calls, and wait for running calls for at most ``grace`` seconds."""
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
        """Bind a port and return it; with TLS but no ``client_ca``, a ``Door`` listens on it."""
        if terms.tls is None or terms.tls.client_ca is not None:
            return _bind(self._server, terms)
        if self._inner is None:
            self._inner = Path(tempfile.mkdtemp(prefix="heddle-")) / "grpc"
            self._server.add_insecure_port(f"unix:{self._inner}")
        self._doors.append(Door(_socket(terms), terms.tls, self._inner))
        return self._doors[-1].port

    def _bind_tokens(self, terms: ServerTerms) -> int:
        """Bind the second port and return it; 0 if there is none."""
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
    """Return whether there is a TLS port that does not require a client certificate."""
    return terms.tls is not None and (
        terms.tls.client_ca is None or terms.token_address is not None
    )


def _check_plain_text(terms: ServerTerms) -> None:
    if terms.tls is None and not terms.insecure and not is_loopback(terms.host):
        cure = "give --tls-cert and --tls-key, or say --insecure to serve plain text to others"
        raise refuse("settings", "listen", f"{terms.host} is reachable by other hosts: {cure}")


def _options(terms: ServerTerms) -> list[tuple[str, int]]:
    """Return gRPC's options.

    With its defaults, idle streams would be closed, and two servers could share a port unnoticed.
    """
    return [
        ("grpc.max_receive_message_length", terms.message_bytes),
        ("grpc.max_send_message_length", terms.message_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.http2.ping_timeout_ms", 10_000),  # its default is a minute
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
    """Return a socket that is bound to the address; raises ``InputError`` if that fails."""
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
    """Bind gRPC to the address and return the port.

    The address is first bound without gRPC, because gRPC does not say why a bind fails.
    """
    _socket(terms).close()
    host = f"[{terms.host}]" if ":" in terms.host else terms.host
    try:
        if terms.tls is None:
            return server.add_insecure_port(f"{host}:{terms.port}")
        return server.add_secure_port(f"{host}:{terms.port}", credentials(terms.tls))
    except RuntimeError:
        raise _no_address(terms, "it was taken just now") from None


def _no_address(terms: ServerTerms, why: str) -> Exception:
    cure = "stop what listens there, or choose another with --listen (port 0 takes a free one,"
    cure += " and one below 1024 needs root)"
    return refuse(
        "settings", "listen", f"cannot listen on {terms.host}:{terms.port}: {why}; {cure}"
    )
