"""The page's own port: uvicorn within the loop of the process that talks.

Connections are bounded in number, and one that asks nothing for a while is closed, so that
strangers cannot take what agents and clients need. Certificates are followed as the API does.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from heddle_controller.model.errors import InputError, refuse
from heddle_controller.serve.api import Api
from heddle_controller.serve.interceptors.auth import Admission, is_loopback
from heddle_controller.serve.interceptors.limits import Allowance, Budget
from heddle_controller.serve.security.certificates import Tls, server_context
from heddle_controller.web.access import CERTIFICATE, Access, peer_certificate
from heddle_controller.web.app import Pages
from heddle_controller.web.audience import CONNECTION

log = structlog.stdlib.get_logger(__name__)

CONNECTIONS_EACH = 4
"""Connections for each viewer that there may be: the stream, and those that fetch."""
SPARE_CONNECTIONS = 32
FIRST_SECONDS = 10.0
"""A connection that has asked nothing after so long is closed."""
KEEP_SECONDS = 30
"""So is one that asks nothing more for so long."""
MOST_HEAD = 16_384
"""Bytes of a request's line and headers."""


@dataclass(frozen=True, slots=True)
class WebTerms:
    """Where and how the page is served."""

    host: str
    port: int
    """0 takes a free one."""
    tls: Tls | None = None
    insecure: bool = False
    """Plain text to other hosts too."""
    admission: Admission = field(default_factory=Admission)
    allowance: Allowance = field(default_factory=Allowance)
    viewers: int = 200
    """Streams at once."""
    reports: Path | None = None
    """Folder of pages that the emulator wrote."""


class WebServer:
    """The page of one controller."""

    def __init__(self, api: Api, terms: WebTerms) -> None:
        """Bind the port.

        Raises:
            InputError: the address cannot be had, plain text would leave this host, a TLS file
                cannot be used, or the reports' folder is a file.
        """
        if terms.tls is None and not terms.insecure and not is_loopback(terms.host):
            cure = "give --tls-cert and --tls-key, or say --insecure to serve plain text to others"
            raise refuse("settings", "web_host", f"{terms.host} is reachable by others: {cure}")
        if terms.reports is not None and terms.reports.exists() and not terms.reports.is_dir():
            cure = "name the folder that heddle-emulator drill --report writes"
            raise refuse("settings", "web_reports", f"{terms.reports} is no folder: {cure}")
        access = Access(terms.admission, Budget(terms.allowance))
        self._tls = terms.tls
        if terms.tls is not None:
            server_context(terms.tls)  # refused now rather than at the first handshake
        self._pages = Pages(api, access, terms.viewers, terms.reports)
        self._socket = _bound(terms)
        self._server = uvicorn.Server(_config(self._pages.app(), terms))
        self._looking: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that is listened on."""
        port: int = self._socket.getsockname()[1]
        return port

    async def start(self) -> None:
        """Answer."""
        self._looking = asyncio.create_task(self._pages.feed.run(), name="web feed")
        config = self._server.config
        config.load()
        config.ssl = _tls_context(self._tls) if self._tls else None
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._socket])

    async def stop(self) -> None:
        """End the streams, then all connections, and free the port."""
        self._pages.feed.close()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._server.started:
            await self._server.shutdown(sockets=[self._socket])
        self._socket.close()


class BoundedConnection(H11Protocol):
    """A connection that knows its certificate, and is closed where it only takes room."""

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > (self.limit_concurrency or 0):
            transport.abort()
            return
        shown = peer_certificate(transport.get_extra_info("ssl_object"))
        self.app: ASGIApp = _Connected(self.app, {CERTIFICATE: shown, CONNECTION: transport})
        self.loop.call_later(FIRST_SECONDS, self._look, None, False)

    def _look(self, before: object, stuck: bool) -> None:  # noqa: FBT001 - a timer's argument
        """Close a connection by which nothing was asked, or nothing taken, since the last look."""
        if self.transport.is_closing():
            return
        asked: RequestResponseCycle | None = self.cycle  # the library's type knows no None
        idle = asked is None or asked.response_complete
        if idle and self.cycle is before:
            self.transport.close()
        elif stuck and self.flow.write_paused:
            self.transport.abort()
        else:
            self.loop.call_later(FIRST_SECONDS, self._look, self.cycle, self.flow.write_paused)


class _Connected:
    """Adds what is known of a connection to the state of each request that comes by it."""

    def __init__(self, app: ASGIApp, known: Mapping[str, object]) -> None:
        self._app = app
        self._known = known

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"].update(self._known)
        await self._app(scope, receive, send)


def _config(app: ASGIApp, terms: WebTerms) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=BoundedConnection,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="error",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        limit_concurrency=CONNECTIONS_EACH * terms.viewers + SPARE_CONNECTIONS,
        timeout_keep_alive=KEEP_SECONDS,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=MOST_HEAD,
    )


def _tls_context(tls: Tls) -> ssl.SSLContext:
    """TLS for browsers: a certificate is asked for, and may be missing where there are tokens."""
    kept = {"stamp": tls.stamp(), "context": _one_context(tls)}

    def follow(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:  # noqa: ANN401
        stamp = tls.stamp()
        if stamp != kept["stamp"]:
            try:
                kept["context"] = _one_context(tls)
            except InputError as error:
                log.warning("certificate not changed", why=str(error))
                return
            kept["stamp"] = stamp
        connection.context = kept["context"]

    first = _one_context(tls)
    first.sni_callback = follow  # called in every handshake, also of those that name no server
    return first


def _one_context(tls: Tls) -> ssl.SSLContext:
    context = server_context(tls)
    context.set_alpn_protocols(["http/1.1"])
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _bound(terms: WebTerms) -> socket.socket:
    try:
        kind, _, _, _, address = socket.getaddrinfo(
            terms.host, terms.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=kind, backlog=128)
    except OSError as error:
        cure = "stop what listens there, or choose another with --web-port (0 takes a free one)"
        reason = f"cannot serve the page on {terms.host}:{terms.port}: {error.strerror or error}"
        raise refuse("settings", "web_port", f"{reason}; {cure}") from None
