"""Who may call.

Over TLS the handshake has decided already: with a client CA only certificates it
signed get this far. Plain text is for this host alone, unless the operator said
otherwise in plain words; the server refuses to listen elsewhere, and here every
call is held to the same rule, so that no forwarded port opens a way round it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from ipaddress import ip_address
from urllib.parse import unquote

import grpc
import structlog
from grpc_status import rpc_status

from heddle_controller.serve import errors
from heddle_controller.serve.interceptors.around import Around, Context, Method

PLAIN_TEXT = errors.Refusal(
    grpc.StatusCode.UNAUTHENTICATED,
    "PLAIN_TEXT",
    "plain text is served to this host only: set up TLS, or start the controller with --insecure",
)


def peer_host(peer: str) -> str:
    """The host of gRPC's ``ipv4:127.0.0.1:4711`` or ``ipv6:%5B::1%5D:4711``."""
    _, _, address = unquote(peer).partition(":")
    return address.rpartition(":")[0].removeprefix("[").removesuffix("]")


def is_loopback(host: str) -> bool:
    """Whether an address, or the name localhost, is this host's own."""
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


class Auth(Around):
    """Turns away plain text from other hosts unless ``insecure``."""

    def __init__(self, *, tls: bool, insecure: bool) -> None:
        self._any_peer = tls or insecure

    def around(self, method: Method, context: Context) -> AbstractAsyncContextManager[None]:
        """Check the peer, and name the certificate's subject in the call's log lines."""
        return self._admit(method, context)

    @asynccontextmanager
    async def _admit(self, _method: Method, context: Context) -> AsyncIterator[None]:
        peer = context.peer()
        if not (self._any_peer or peer.startswith("unix:") or is_loopback(peer_host(peer))):
            await context.abort_with_status(rpc_status.to_status(errors.refused(PLAIN_TEXT)))
        with structlog.contextvars.bound_contextvars(peer=peer, client=_identity(context)):
            yield


def _identity(context: Context) -> str:
    """Subject of the client's certificate; empty without one."""
    return ", ".join(
        identity.decode(errors="replace") for identity in context.peer_identities() or ()
    )
