"""The HTTP server of a process's metrics, in threads of its own.

Anyone who reaches the port may connect. So the number of connections is bounded, and each is cut
off after a while, whatever it does. Strangers can then neither take the file descriptors that the
process needs nor hold threads for ever.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from socketserver import ThreadingMixIn
from threading import Lock, Thread
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

if TYPE_CHECKING:
    from wsgiref.types import WSGIApplication

MOST_CONNECTIONS = 32
"""Further connections are closed at once."""
MOST_SECONDS = 10.0
"""Time from the start of a connection to its end; it serves one request."""


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """Serves one WSGI application on a port until ``stop``."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(
        self, app: WSGIApplication, host: str, port: int, *, most_seconds: float = MOST_SECONDS
    ) -> None:
        """Start to serve; port 0 takes a free port.

        Raises:
            OSError: the address or port cannot be used.
        """
        self.address_family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        super().__init__((str(address[0]), int(address[1])), _QuietHandler)
        self.set_app(app)
        self._most_seconds = most_seconds
        self._ends: dict[Any, float] = {}
        """When each open connection is cut off, by the monotonic clock."""
        self._lock = Lock()
        self._thread = Thread(target=self.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401 - the library's
        """Return whether there is room for one more connection."""
        del client_address
        with self._lock:
            if len(self._ends) >= MOST_CONNECTIONS:
                return False
            self._ends[request] = time.monotonic() + self._most_seconds
        return True

    def service_actions(self) -> None:
        """Cut off connections that have lasted too long; called twice a second, and when busy."""
        now = time.monotonic()
        with self._lock:
            for request, end in self._ends.items():
                if now >= end:
                    with suppress(OSError):  # it is closing anyway
                        request.shutdown(socket.SHUT_RDWR)

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - the library's
        """Close a connection, and give its place to another."""
        with self._lock:
            self._ends.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - the library's
        """Say nothing of clients that went away: by default this prints a traceback."""

    def stop(self) -> None:
        """Stop serving and free the port."""
        self.shutdown()
        self.server_close()
        self._thread.join()


class _QuietHandler(WSGIRequestHandler):
    """Does not log requests."""

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Log nothing."""
