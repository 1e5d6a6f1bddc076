"""gRPC channels by address, with keepalive; plain text stays on this machine unless allowed.

The agents of one process share channels, because a hundred streams need only one connection. gRPC's
own reconnect delay is kept short, since the session has a back-off of its own.

A bare TCP connection first checks whether a controller listens. gRPC's own attempt costs several
times as much, and a channel that has failed once retries every second, even if nobody wants a
stream. So no channel is used before somebody listens, and an idle channel drops its connection.

Certificates are read again when their files change, and the next session uses the new ones. An
existing session continues until the controller closes its connection because of its age.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from heddle_agent.session.address import Address
from heddle_agent.session.resolve import Endpoint

_log = structlog.get_logger()

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Environment variables that make gRPC use a proxy."""
IDLE_MS = 1_000
"""Milliseconds after which a channel without a stream drops its connection and seeks no new one."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: the authorities to trust, and this agent's own certificate and key, if any."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files; ValueError names the one that cannot be used."""
        if (self.cert is None) != (self.key is None):
            raise ValueError("a client certificate needs both its file and its key's: give both")
        own = [None if path is None else _pem(path) for path in (self.key, self.cert)]
        if self.cert is not None:  # gRPC would fail only at the handshake, with no reason
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(
                    self.cert, self.key, password=""
                )
            except OSError as error:  # ssl.SSLError is one too
                why = getattr(error, "reason", None) or error.strerror or str(error)
                cure = "give PEM files that belong together, the key without a password"
                raise ValueError(f"{self.cert} with {self.key}: {why}: {cure}") from error
        return grpc.ssl_channel_credentials(_pem(self.ca), *own)

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Return a value that changes when the files change: mtime, size and inode of each."""
        return tuple(self._stamps())

    def _stamps(self) -> Iterator[tuple[int, int, int]]:
        for path in (self.ca, self.cert, self.key):
            try:
                stat = path.stat() if path is not None else None
            except OSError:
                stat = None
            yield (stat.st_mtime_ns, stat.st_size, stat.st_ino) if stat else (0, 0, 0)


def _pem(path: Path) -> bytes:
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if b"-----BEGIN " not in text:
        raise ValueError(f"{path} is not a PEM file: it has no line that begins -----BEGIN")
    return text


class Channels:
    """The open channels of one event loop; ``close`` closes them all."""

    def __init__(
        self,
        tls: Tls | None = None,
        *,
        insecure: bool = False,
        keepalive: tuple[float, float] = (6.0, 4.0),
    ) -> None:
        """Take ``keepalive``: seconds of silence before a probe, and seconds to await its answer.

        Raises ValueError if a file of ``tls`` cannot be used.
        """
        self._tls = tls
        self._stamp = tls.stamp() if tls is not None else ()
        self._credentials = tls.credentials() if tls is not None else None
        self._insecure = insecure
        self._keepalive = keepalive
        self._open: dict[Endpoint, grpc.aio.Channel] = {}
        self._retired: list[grpc.aio.Channel] = []  # with old certificates, maybe still in use

    def check(self, address: Address) -> None:
        """Raise ValueError if plain text would leave this machine without ``insecure``."""
        if self._credentials is None and not self._insecure and not address.loopback:
            raise ValueError(
                f"controller {address} is not on this machine: give --tls-ca (and --tls-cert,"
                " --tls-key), or say --insecure to speak plain text to it"
            )

    def get(self, endpoint: Endpoint) -> grpc.aio.Channel:
        """Return the channel to a controller; ValueError as in ``check``."""
        self._refresh()
        channel = self._open.get(endpoint)
        if channel is None:
            self.check(endpoint.address)
            channel = self._open[endpoint] = self._new(endpoint)
        return channel

    async def reach(self, endpoint: Endpoint) -> None:
        """Return once something listens at the endpoint; OSError says why it cannot be reached.

        If the channel is connected already, or a proxy is set, this tries nothing and returns at
        once. Raises ValueError as ``check`` does.
        """
        self.check(endpoint.address)
        channel = self._open.get(endpoint)
        if channel is not None and channel.get_state() is grpc.ChannelConnectivity.READY:
            return
        if any(os.environ.get(name) for name in PROXIES):
            return
        host, port = endpoint.address
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as attempt:
            attempt.setblocking(False)
            await asyncio.get_running_loop().sock_connect(attempt, (host, port))

    async def close(self) -> None:
        """Close every channel; sessions over them must have ended."""
        channels = [*self._open.values(), *self._retired]
        self._open, self._retired = {}, []
        await asyncio.gather(*(channel.close() for channel in channels))

    def _refresh(self) -> None:
        """Use files that have changed; if they cannot be used, keep the old credentials."""
        if self._tls is None or (stamp := self._tls.stamp()) == self._stamp:
            return
        try:
            self._credentials = self._tls.credentials()
        except ValueError as error:
            _log.warning("certificate not changed", why=str(error))
            return
        self._stamp = stamp
        self._retired += self._open.values()
        self._open = {}
        _log.info("certificate read again", file=str(self._tls.cert or self._tls.ca))

    def _new(self, endpoint: Endpoint) -> grpc.aio.Channel:
        probe, give_up = (round(seconds * 1000) for seconds in self._keepalive)
        options: list[tuple[str, int | str]] = [
            ("grpc.keepalive_time_ms", probe),
            ("grpc.keepalive_timeout_ms", give_up),
            ("grpc.http2.ping_timeout_ms", give_up),  # the default is one minute
            ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", 100),
            ("grpc.max_reconnect_backoff_ms", 1_000),
            ("grpc.client_idle_timeout_ms", IDLE_MS),
            ("grpc.max_receive_message_length", 256 << 20),  # a full sync is one message
        ]
        target = str(endpoint)
        if self._credentials is None:
            return grpc.aio.insecure_channel(target, options)
        if endpoint.name != endpoint.address.host:
            options.append(("grpc.ssl_target_name_override", endpoint.name))
        return grpc.aio.secure_channel(target, self._credentials, options)
