"""How a client identifies itself, and which controllers it trusts."""

from __future__ import annotations

import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

import grpc

from heddle.text import split_address

BY_OPTION = {
    "ca": "--tls-ca",
    "cert": "--tls-cert",
    "key": "--tls-key",
    "token": "--token-file",
}
"""The option by which programs take each part of ``Credentials``."""


class CredentialsError(ValueError):
    """A file cannot be used, or a token must not be sent; the message names it."""


SOCKET = "unix:"
"""Prefix of the address of a Unix socket on this machine."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """Files for TLS (PEM), and a token.

    Without ``ca``, ``cert`` and ``key``, calls are plain text.
    """

    ca: Path | None = None
    """Certificate authority of the controllers; turns TLS on."""
    cert: Path | None = None
    """Certificate of this client."""
    key: Path | None = None
    token: Path | None = None
    """File with a bearer token, used instead of a certificate; ``heddle token new`` prints one."""
    options: bool = False
    """Whether options of a program give the files. Errors then name these options."""

    def name_of(self, part: str) -> str:
        """Return what errors call a part."""
        return BY_OPTION[part] if self.options else part

    @property
    def secure(self) -> bool:
        """Whether TLS is used."""
        return bool(self.ca or self.cert or self.key)

    def contents(self) -> tuple[bytes | None, ...]:
        """Return what the files hold; None for one that is not given or cannot be read."""
        found: list[bytes | None] = []
        for file in (self.ca, self.cert, self.key, self.token):
            try:
                found.append(Path(file).read_bytes() if file else None)
            except OSError:
                found.append(None)
        return tuple(found)

    def of_channel(self) -> grpc.ChannelCredentials | None:
        """Return the credentials of a TLS channel; None for plain text.

        Raises:
            CredentialsError: A file cannot be used.
        """
        if not self.secure:
            return None
        self._check()
        files = (("ca", self.ca), ("key", self.key), ("cert", self.cert))
        return grpc.ssl_channel_credentials(*(self._content(part, file) for part, file in files))

    def metadata(self, addresses: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
        """Return the metadata to send with every call to these controllers.

        Raises:
            CredentialsError: The token cannot be read, or would cross a network in plain text.
        """
        if self.token is None:
            return ()
        remote = [one for one in addresses if not one.startswith(SOCKET)]
        for host, _ in map(split_address, remote):
            if not self.secure and not _is_local(host):
                cure = f"is not sent to {host} in plain text: give {self.name_of('ca')}"
                raise CredentialsError(f"{self.name_of('token')}: {cure}")
        text = (self._content("token", self.token) or b"").decode(errors="replace").strip()
        if not text.isascii() or not text.isprintable() or " " in text or not text:
            cure = "holds no token: give what 'heddle token new' printed"
            raise self._unusable("token", self.token, cure)
        return (("authorization", f"Bearer {text}"),)

    def _check(self) -> None:
        """Check the files before connecting; gRPC says little about what is wrong with them."""
        if (self.cert is None) != (self.key is None):
            cure = "certificate and key belong together: give both"
            raise CredentialsError(f"{self.name_of('cert')}: {cure}")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if self.ca is not None:
                context.load_verify_locations(self.ca)
        except OSError as error:  # ssl.SSLError is one too
            raise self._unusable("ca", self.ca, f"{_why(error)}: give a PEM file") from None
        try:
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key, password="")  # asks nobody for one
        except OSError as error:
            cure = "give PEM files that belong together, the key without a password"
            text = f"with {self.key}: {_why(error)}: {cure}"
            raise self._unusable("cert", self.cert, text) from None

    def _content(self, part: str, file: Path | None) -> bytes | None:
        try:
            return Path(file).read_bytes() if file else None
        except OSError as error:
            raise self._unusable(part, file, f"{error.strerror}: give a readable file") from None

    def _unusable(self, part: str, file: Path | None, why: str) -> CredentialsError:
        return CredentialsError(f"{self.name_of(part)} {file}: {why}")


def _why(error: OSError) -> str:
    return getattr(error, "reason", None) or error.strerror or str(error)


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
