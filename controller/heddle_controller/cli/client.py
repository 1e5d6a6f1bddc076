"""The options before a command: which controller to call, how, and about which fabric."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

import grpc

from heddle.client import Client, Credentials, CredentialsError, HeddleError
from heddle_controller.cli.failure import failure_of
from heddle_controller.cli.output import echo
from heddle_controller.model.errors import refuse

_START = "start it with 'heddle-controller serve', or name another with --server"
NOT_TRUSTED = (
    "give the authority of its certificate by --tls-ca, and by --server a name that it has"
)
OUT_OF_DATE = "renew the controller's certificate, or correct a clock"
NO_TLS = "it speaks no TLS there: leave --tls-ca and --tls-cert out, or name another port"
_TLS_CURES = {
    "WRONG_VERSION_NUMBER": NO_TLS,
    "certificate has expired": OUT_OF_DATE,
    "certificate is not yet valid": OUT_OF_DATE,
    "OPENSSL_internal:": NOT_TRUSTED,
    "Peer name": NOT_TRUSTED,
    "Hostname": NOT_TRUSTED,
}
"""What to do, by a mark in gRPC's text; the first one that is there counts."""
HUNG_UP = ("Socket closed", "Connection reset by peer", "Connection reset")


def connection_cure(text: str, *, secure: bool, known: bool) -> str:
    """Return what to do if no controller was reached.

    Args:
        text: gRPC's error text.
        secure: Whether TLS was used.
        known: Whether the client presented a certificate.
    """
    for mark, cure in _TLS_CURES.items():
        if mark in text:
            return cure
    if (text.splitlines() or [""])[0].rpartition(": ")[2] not in HUNG_UP:
        return _START
    if not secure:
        return "if it wants TLS, give --tls-ca, --tls-cert and --tls-key"
    if not known:
        return "it may want a certificate: give --tls-cert and --tls-key, or its port for tokens"
    return "it may not take the certificate: is it still valid, and of an authority it knows?"


OPTIONS = {"ca": "tls-ca", "cert": "tls-cert", "key": "tls-key", "token": "token-file"}
"""The option that names each part of the credentials."""


@dataclass(frozen=True)
class Terms:
    """The global options; ``api`` is the client that they describe."""

    server: str
    """Addresses, separated by commas."""
    timeout: float
    """Time limit of a call, in seconds."""
    json: bool
    named_fabric: str | None
    files: Credentials = field(default_factory=Credentials)
    told: list[str] = field(default_factory=list)
    """Kinds of notes that were already printed and are not repeated."""

    @cached_property
    def api(self) -> Client:
        """The client, which connects with the first call."""
        try:
            return Client(
                self.server,
                fabric=self.named_fabric or "",
                credentials=self.files,
                timeout=self.timeout,
                patience=0.0,
                note=self._note,
            )
        except ValueError as error:
            raise refuse("--server", "", str(error)) from None

    @contextmanager
    def failing(self) -> Iterator[None]:
        """Turn errors of calls into failures of the command."""
        try:
            yield
        except CredentialsError as error:
            file = f" {error.file}" if error.file else ""
            plain = error.part == "token" and error.file is None
            why = f"{error.why}: give --tls-ca" if plain else error.why
            raise refuse(f"--{OPTIONS[error.part]}{file}", "", why) from None
        except HeddleError as error:
            cause: object = error.__cause__
            text = (cause.details() or "") if isinstance(cause, grpc.Call) else ""
            known = self.files.cert is not None
            cure = connection_cure(text, secure=self.files.secure, known=known)
            raise failure_of(error, cure) from error

    @property
    def fabric(self) -> str:
        """Resource name of the fabric: the one that was named, or the only one.

        Raises:
            HeddleError: No fabric was named, and the controller has none or several.
        """
        return self.api.fabric()

    @property
    def plan(self) -> str:
        """Resource name of the fabric's plan."""
        return f"{self.fabric}/plan"

    def _note(self, kind: str, text: str) -> None:
        if kind not in self.told:
            self.told.append(kind)
            echo(f"note: {text}", err=True)
