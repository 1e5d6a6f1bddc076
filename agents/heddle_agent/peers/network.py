"""Carries the datagrams of peer notices: UDP on the management network, or memory.

A received datagram goes straight to the table. There is no queue between the kernel's and the
table, so a notice waits for nothing but the callback that handles it.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol, TypeAlias

Receive: TypeAlias = Callable[[bytes, str], None]
"""Takes a datagram and the address that it comes from; never raises."""

_PORTS = range(65536)
_BUFFER_BYTES = 4 << 20
_AT_ONCE = 256  # datagrams read before the event loop may run something else
_LARGEST = 65_536


class Attachment(Protocol):
    """The access of one agent to a network."""

    @property
    def address(self) -> str:
        """Where other agents reach this one, ``host:port``."""

    def open(self, receive: Receive) -> None:
        """Begin to hand over received datagrams."""

    def send(self, address: str, datagram: bytes) -> bool:
        """Send a datagram without waiting and without raising; return whether it left."""

    def close(self) -> None:
        """Stop receiving."""


def parse_address(text: str) -> tuple[str, int]:
    """Return IP address and port of "10.0.0.1:7402" or "[fd00::1]:7402"; else ValueError.

    Names are refused, because looking one up may take too long during a failure.
    """
    host, colon, port = text.strip().rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    try:
        address = str(ipaddress.ip_address(bare))
    except ValueError:
        address = ""
    if not (address and colon and port.isascii() and port.isdigit() and int(port) in _PORTS):
        raise ValueError(f"{text!r} is not an IP address and a port, such as 10.0.0.1:7402")
    return address, int(port)


def _written(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class UdpNetwork:
    """A UDP socket, read by the event loop."""

    def __init__(self, listen: str) -> None:
        """Bind; ValueError if the address is unavailable, unspecified or malformed."""
        host, port = parse_address(listen)
        if ipaddress.ip_address(host).is_unspecified:
            raise ValueError(
                f"--peer-notices {listen}: give the address of this switch that peers send to"
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            with contextlib.suppress(OSError):  # a smaller buffer is acceptable
                self._socket.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        try:
            self._socket.bind((host, port))
        except OSError as error:
            self._socket.close()
            raise ValueError(f"--peer-notices {listen}: {error.strerror or error}") from error
        self.address = _written(host, int(self._socket.getsockname()[1]))
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receive: Receive = _nobody
        self._known: dict[str, tuple[str, int]] = {}

    def open(self, receive: Receive) -> None:
        """Make the running event loop read the socket."""
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._readable)

    def send(self, address: str, datagram: bytes) -> bool:
        """Send now; return False if that is not possible. Later digests make up for it."""
        try:
            where = self._known.get(address) or self._parsed(address)
            self._socket.sendto(datagram, where)
        except (OSError, ValueError):
            return False
        return True

    def close(self) -> None:
        """Close the socket."""
        if self._loop is not None and self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
        self._socket.close()

    def _parsed(self, address: str) -> tuple[str, int]:
        if len(self._known) > _AT_ONCE * 16:
            self._known.clear()
        where = self._known[address] = parse_address(address)
        return where

    def _readable(self) -> None:
        for _ in range(_AT_ONCE):
            try:
                datagram, where = self._socket.recvfrom(_LARGEST)
            except BlockingIOError:
                return
            except OSError:  # an ICMP error about a datagram sent earlier
                continue
            self._receive(datagram, _written(where[0], where[1]))


def _nobody(_datagram: bytes, _address: str) -> None:
    """Ignore datagrams while the network is closed."""


class MemoryNetwork:
    """A network within one process, without loss or delay."""

    def __init__(self) -> None:
        self._open: dict[str, Receive] = {}
        self._waiting: deque[tuple[str, str, bytes]] = deque()
        self._pumping: asyncio.Handle | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()

    def attach(self, address: str) -> MemoryAttachment:
        """Return access to the network at this address."""
        return MemoryAttachment(self, address)

    async def quiet(self) -> None:
        """Wait until everything sent has arrived, including what was sent in response."""
        await self._quiet.wait()

    def put(self, source: str, target: str, datagram: bytes) -> None:
        """Deliver a datagram as soon as the event loop runs again."""
        self._waiting.append((source, target, datagram))
        if self._pumping is None:
            self._quiet.clear()
            self._pumping = asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        self._pumping = None
        for _ in range(_AT_ONCE):
            if not self._waiting:
                break
            source, target, datagram = self._waiting.popleft()
            if target in self._open:
                self._open[target](datagram, source)
        if not self._waiting:
            self._quiet.set()
        elif self._pumping is None:
            self._pumping = asyncio.get_running_loop().call_soon(self._pump)

    def listen(self, address: str, receive: Receive | None) -> None:
        """Deliver datagrams for this address to ``receive``; None stops that."""
        if receive is None:
            self._open.pop(address, None)
        else:
            self._open[address] = receive


class MemoryAttachment:
    """The access of one agent to a network in memory."""

    def __init__(self, network: MemoryNetwork, address: str) -> None:
        self.address = address
        self._network = network

    def open(self, receive: Receive) -> None:
        """Begin to hand over received datagrams."""
        self._network.listen(self.address, receive)

    def send(self, address: str, datagram: bytes) -> bool:
        """Send a datagram to an address; it is dropped if nobody listens there."""
        self._network.put(self.address, address, datagram)
        return True

    def close(self) -> None:
        """Stop receiving."""
        self._network.listen(self.address, None)
