"""gRPC channels by address, with keepalive on, plain text only where nobody listens in.

Agents of one process share them: a hundred streams need one connection, not a hundred. gRPC's own
reconnect delay is kept short, since the session has a back-off of its own.

A controller that is away is looked for with a bare TCP connection. gRPC's own attempt costs several
times as much, and a channel that has failed once goes on trying by itself, every second, whether or
not anybody wants a stream. So no channel is asked before somebody listens, and one that nobody uses
forgets its connection.

Certificates are read again when their files change: the next session is under the new one. A
session that stands goes on until the controller closes its connection for its age.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import structlog

from heddle_agent.session.address import Address
from heddle_agent.session.resolve import Endpoint

_log = structlog.get_logger()

PROXIES = ("grpc_proxy", "https_proxy", "http_proxy")
"""Variables of the environment by which gRPC goes through a proxy."""
IDLE_MS = 1_000
"""Milliseconds after which a channel without a stream lets go of its connection, and seeks none."""


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: whom to trust, and who we are, if asked."""

    ca: Path
    cert: Path | None = None
    key: Path | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Read the files; ValueError that names the one that cannot be used."""
        if (self.cert is None) != (self.key is None):
            raise ValueError("a client certificate needs both its file and its key's: give both")
        own = [None if path is None else _pem(path) for path in (self.key, self.cert)]
        return grpc.ssl_channel_credentials(_pem(self.ca), *own)

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Changes with the files."""
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
    """Open channels of one event loop; ``close`` closes them all."""

    def __init__(
        self,
        tls: Tls | None = None,
        *,
        insecure: bool = False,
        keepalive: tuple[float, float] = (6.0, 4.0),
    ) -> None:
        """``keepalive`` is after how many silent seconds to probe, and then to give up."""
        self._tls = tls
        self._stamp = tls.stamp() if tls is not None else ()
        self._credentials = tls.credentials() if tls is not None else None
        self._insecure = insecure
        self._keepalive = keepalive
        self._open: dict[Endpoint, grpc.aio.Channel] = {}
        self._retired: list[grpc.aio.Channel] = []  # under certificates of before, maybe in use

    def check(self, address: Address) -> None:
        """ValueError where plain text would leave this machine unasked."""
        if self._credentials is None and not self._insecure and not address.loopback:
            raise ValueError(
                f"controller {address} is not on this machine: give --tls-ca (and --tls-cert,"
                " --tls-key), or say --insecure to speak plain text to it"
            )

    def get(self, endpoint: Endpoint) -> grpc.aio.Channel:
        """The channel to a controller; ValueError as in ``check``."""
        self._refresh()
        channel = self._open.get(endpoint)
        if channel is None:
            self.check(endpoint.address)
            channel = self._open[endpoint] = self._new(endpoint)
        return channel

    async def reach(self, endpoint: Endpoint) -> None:
        """Return once somebody listens where a controller should; OSError that says why not.

        Where a channel is connected, or a proxy is set, nothing is tried here. ValueError as in
        ``check``.
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
        """Take up files that changed; those that cannot be used change nothing."""
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
            ("grpc.http2.ping_timeout_ms", give_up),  # else a ping under way has a minute
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
