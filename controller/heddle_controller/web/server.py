"""The web page's own port: uvicorn in the event loop of the controller process.

The number of connections is bounded, and a connection that sends no request for a while is closed,
so that strangers cannot take the resources that agents and clients need. Changed TLS files are read
again, as in the API.
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

from heddle_controller.model.errors import refuse
from heddle_controller.serve.api import Api
from heddle_controller.serve.interceptors.auth import Admission, Allowance, Budget, is_loopback
from heddle_controller.serve.security.certificates import FollowedTls, Tls, server_context
from heddle_controller.web.access import CERTIFICATE, Access, peer_certificate
from heddle_controller.web.app import Pages
from heddle_controller.web.audience import CONNECTION

log = structlog.stdlib.get_logger(__name__)

CONNECTIONS_EACH = 4
"""Connections for each possible viewer: one for the stream, the others to fetch data."""
SPARE_CONNECTIONS = 32
"""Connections beyond those of viewers."""
FIRST_SECONDS = 10.0
"""Interval of the checks that close a connection without a request, or with a stuck client."""
KEEP_SECONDS = 30
"""Seconds without a further request after which a connection is closed."""
MOST_HEAD = 16_384
"""Most bytes of a request's line and headers."""


@dataclass(frozen=True, slots=True)
class WebTerms:
    """Settings of the web page."""

    host: str
    port: int
    """0 takes a free port."""
    tls: Tls | None = None
    insecure: bool = False
    """Whether plain text may be served to other hosts."""
    admission: Admission = field(default_factory=Admission)
    allowance: Allowance = field(default_factory=Allowance)
    viewers: int = 200
    """Most streams at the same time."""
    reports: Path | None = None
    """Folder with the emulator's reports; None for none."""


class WebServer:
    """The web page of one controller."""

    def __init__(self, api: Api, terms: WebTerms) -> None:
        """Bind the port.

        Raises:
            InputError: the address cannot be used, plain text would leave this host, a TLS file
                cannot be used, or the reports' folder is a file or cannot be read.
        """
        if terms.tls is None and not terms.insecure and not is_loopback(terms.host):
            cure = "give --tls-cert and --tls-key, or say --insecure to serve plain text to others"
            raise refuse("settings", "web_host", f"{terms.host} is reachable by others: {cure}")
        if terms.reports is not None:
            _check_reports(terms.reports)
        access = Access(terms.admission, Budget(terms.allowance))
        self._tls = terms.tls
        if terms.tls is not None:
            server_context(terms.tls)  # fails now rather than at the first handshake
        self._pages = Pages(api, access, terms.viewers, terms.reports)
        self._socket = _bound(terms)
        self._server = uvicorn.Server(_config(self._pages.app(), terms))
        self._looking: asyncio.Task[None] | None = None

    @property
    def port(self) -> int:
        """The port that the page listens on."""
        port: int = self._socket.getsockname()[1]
        return port

    async def start(self) -> None:
        """Begin to answer requests, and to look at fabrics."""
        self._looking = asyncio.create_task(self._pages.feed.run(), name="web feed")
        config = self._server.config
        config.load()
        config.ssl = _tls_context(self._tls) if self._tls else None
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[self._socket])

    async def stop(self) -> None:
        """End the streams, close all connections, and free the port."""
        self._pages.feed.close()
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._server.started:
            await self._server.shutdown(sockets=[self._socket])
        self._socket.close()


class BoundedConnection(H11Protocol):
    """A connection that is closed if it is idle, stuck or one too many.

    It gives its requests the client's certificate and the transport.
    """

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
        """Close the connection if it had no request, or its client read nothing, since last time.

        ``before`` is the last request, and ``stuck`` whether writing was paused, at the last look.
        """
        if self.transport.is_closing():
            return
        asked: RequestResponseCycle | None = self.cycle  # the library's type lacks None
        idle = asked is None or asked.response_complete
        if idle and self.cycle is before:
            self.transport.close()
        elif stuck and self.flow.write_paused:
            self.transport.abort()
        else:
            self.loop.call_later(FIRST_SECONDS, self._look, self.cycle, self.flow.write_paused)


class _Connected:
    """Adds what is known of a connection to the state of each of its requests."""

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
    """Return a TLS context for browsers, which follows changes of the files.

    With a ``client_ca`` a certificate is requested but not required, because tokens may be used.
    """
    kept = FollowedTls(tls, _one_context)

    def follow(connection: Any, _name: str | None, _context: ssl.SSLContext) -> None:  # noqa: ANN401
        connection.context = kept.newer() or kept.made

    first = _one_context(tls)
    first.sni_callback = follow  # called in every handshake, also without a server name
    return first


def _one_context(tls: Tls) -> ssl.SSLContext:
    context = server_context(tls)
    context.set_alpn_protocols(["http/1.1"])
    if tls.client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
    return context


def _check_reports(folder: Path) -> None:
    """Raise ``InputError`` if the folder of reports cannot be read; it may not be there yet."""
    try:
        next(folder.iterdir(), None)
    except FileNotFoundError:
        pass
    except NotADirectoryError:
        cure = "name the folder that heddle-emulator drill --report writes"
        raise refuse("settings", "web_reports", f"{folder} is no folder: {cure}") from None
    except OSError as error:
        reason = f"{folder} cannot be read: {error.strerror}; let the controller's user read it"
        raise refuse("settings", "web_reports", reason) from None


def _bound(terms: WebTerms) -> socket.socket:
    try:
        kind, _, _, _, address = socket.getaddrinfo(
            terms.host, terms.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=kind, backlog=128)
    except OSError as error:
        cure = "stop what listens there, or choose another with --web-port (0 takes a free one,"
        cure += " and one below 1024 needs root)"
        reason = f"cannot serve the page on {terms.host}:{terms.port}: {error.strerror or error}"
        raise refuse("settings", "web_port", f"{reason}; {cure}") from None
