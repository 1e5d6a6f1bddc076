"""The gRPC server: what listens, under which terms, and how it stops.

Order of a start: bind (a port in use is told before anything else happens), serve
NOT_SERVING, and SERVING once the wiring says so. Order of a stop: NOT_SERVING, end
the streams, let calls under way finish within the grace, close.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import grpc
from grpc import aio
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server
from grpc_reflection.v1alpha import reflection

from heddle_controller.model.errors import refuse
from heddle_controller.serve.health import Health
from heddle_controller.serve.interceptors.auth import Auth, is_loopback
from heddle_controller.serve.interceptors.errors import Errors
from heddle_controller.serve.interceptors.metrics import CallMeter, Metrics
from heddle_controller.serve.interceptors.parsing import Parsing
from heddle_controller.serve.interceptors.trace import Trace

MAX_MESSAGE_BYTES = 64 << 20
HEALTH_SERVICE = "grpc.health.v1.Health"


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files. With ``client_ca`` only clients it signed are let in."""

    cert: Path
    key: Path
    client_ca: Path | None = None


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


@dataclass(frozen=True, slots=True)
class Service:
    """One service: its full name, and what adds it to a server."""

    name: str
    add: Callable[[aio.Server], None]


class ApiServer:
    """All services on one port, with health and reflection."""

    def __init__(self, services: Sequence[Service], terms: ServerTerms, meter: CallMeter) -> None:
        """Bind.

        Raises:
            InputError: the address cannot be had, plain text would leave this host,
                or a TLS file cannot be used.
        """
        _check_plain_text(terms)
        names = [service.name for service in services]
        self._health = Health(names)
        self._server = aio.server(
            interceptors=[
                Auth(tls=terms.tls is not None, insecure=terms.insecure),
                Trace(),
                Metrics(meter),
                Errors(terms.unary_limit),
                Parsing(),
            ],
            options=_options(terms),
        )
        for service in services:
            service.add(self._server)
        add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            [*names, HEALTH_SERVICE, reflection.SERVICE_NAME], self._server
        )
        self.port = _bind(self._server, terms)

    async def start(self) -> None:
        """Answer calls, with health NOT_SERVING."""
        await self._server.start()

    def set_serving(self, *, serving: bool) -> None:
        """What health tells."""
        self._health.set_serving(serving=serving)

    def close_health(self) -> None:
        """NOT_SERVING for good."""
        self._health.close()

    async def stop(self, grace: float) -> None:
        """Refuse new calls, wait for those under way for at most ``grace`` seconds."""
        self._health.close()
        await self._server.stop(grace)


def _check_plain_text(terms: ServerTerms) -> None:
    if terms.tls is None and not terms.insecure and not is_loopback(terms.host):
        cure = "give --tls-cert and --tls-key, or say --insecure to serve plain text to others"
        raise refuse("settings", "listen", f"{terms.host} is reachable by other hosts: {cure}")


def _options(terms: ServerTerms) -> list[tuple[str, int]]:
    """Idle streams die on gRPC's defaults; and two servers could share a port unnoticed."""
    return [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.max_connection_age_ms", int(terms.connection_age * 1000)),
        ("grpc.max_connection_age_grace_ms", int(terms.connection_age_grace * 1000)),
    ]


def _bind(server: aio.Server, terms: ServerTerms) -> int:
    """Take the port; gRPC does not say why it cannot, so ask the system first."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(
            terms.host, terms.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with closing(socket.socket(kind, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        raise _no_address(terms, error.strerror or str(error)) from None
    host = f"[{terms.host}]" if ":" in terms.host else terms.host
    try:
        if terms.tls is None:
            return server.add_insecure_port(f"{host}:{terms.port}")
        return server.add_secure_port(f"{host}:{terms.port}", _credentials(terms.tls))
    except RuntimeError:
        raise _no_address(terms, "it was taken just now") from None


def _no_address(terms: ServerTerms, why: str) -> Exception:
    cure = "stop what listens there, or choose another with --listen (port 0 takes a free one)"
    return refuse(
        "settings", "listen", f"cannot listen on {terms.host}:{terms.port}: {why}; {cure}"
    )


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    """Credentials from the files, checked first: gRPC only fails at the first handshake."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
        authorities = tls.client_ca.read_bytes() if tls.client_ca else None
        pair = (tls.key.read_bytes(), tls.cert.read_bytes())
    except OSError as error:
        files = ", ".join(str(path) for path in (tls.cert, tls.key, tls.client_ca) if path)
        reason = f"cannot be used ({error.strerror or error}): give PEM files that belong together"
        raise refuse("settings", files, reason) from None
    return grpc.ssl_server_credentials(
        [pair], root_certificates=authorities, require_client_auth=authorities is not None
    )
