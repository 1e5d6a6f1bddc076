"""The server's certificate, key and authorities, read again when the files change.

gRPC asks at every handshake. New files that do not belong together, as when one is
written and the other not yet, change nothing: the old ones serve until both are there.
Connections that stand go on under the certificate they began with, at most for as long
as a connection may grow old.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import structlog

from heddle_controller.model.errors import InputError, refuse

log = structlog.stdlib.get_logger(__name__)

_Stamp = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files. With ``client_ca`` only clients that it signed are let in."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def stamp(self) -> _Stamp:
        """Changes with the files."""
        return tuple(_stamp(path) for path in (self.cert, self.key, self.client_ca))


def credentials(tls: Tls) -> grpc.ServerCredentials:
    """Credentials that follow the files.

    Raises:
        InputError: the files cannot be used as they are now.
    """
    keys = TlsKeys(tls)
    newer: Any = keys.newer  # may also give None, which the types do not know
    return grpc.dynamic_ssl_server_credentials(
        keys.first, newer, require_client_authentication=tls.client_ca is not None
    )


class TlsKeys:
    """The files as they were last found good."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._stamp = tls.stamp()
        self.first = configuration(tls)

    def newer(self) -> grpc.ServerCertificateConfiguration | None:
        """What the files hold now; None while that is what it was, or cannot be used."""
        stamp = self._tls.stamp()
        if stamp == self._stamp:
            return None
        try:
            found = configuration(self._tls)
        except InputError as error:
            log.warning("certificate not changed", why=str(error))
            return None
        self._stamp = stamp
        log.info("certificate read again", file=str(self._tls.cert))
        return found


def server_context(tls: Tls) -> ssl.SSLContext:
    """What Python's own TLS takes, for HTTP/2; it asks for no certificate.

    Raises:
        InputError: names the files and the reason.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["h2"])
    try:
        context.load_cert_chain(tls.cert, tls.key, password=lambda: "")
        if tls.client_ca is not None:
            context.load_verify_locations(tls.client_ca)
    except OSError as error:
        raise _unusable(tls, error) from None
    return context


def configuration(tls: Tls) -> grpc.ServerCertificateConfiguration:
    """What gRPC takes, checked first: it would only fail at a handshake.

    Raises:
        InputError: names the files and the reason.
    """
    server_context(tls)
    try:
        authorities = tls.client_ca.read_bytes() if tls.client_ca else None
        pair = (tls.key.read_bytes(), tls.cert.read_bytes())
    except OSError as error:
        raise _unusable(tls, error) from None
    return grpc.ssl_server_certificate_configuration([pair], authorities)


def _unusable(tls: Tls, error: OSError) -> InputError:
    files = ", ".join(str(path) for path in (tls.cert, tls.key, tls.client_ca) if path)
    reason = f"cannot be used ({error.strerror or error}): give PEM files that belong together"
    return refuse("settings", files, reason)


def _stamp(path: Path | None) -> tuple[int, int, int] | None:
    try:
        stat = path.stat() if path else None
    except OSError:
        return None
    return (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat else None
