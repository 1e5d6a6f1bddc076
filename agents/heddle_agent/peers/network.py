"""What carries the datagrams of peer notices: UDP on the management network, or memory.

Receiving calls straight through to the table: there is no queue between the kernel's and ours, so a
notice waits for nothing but the callback that runs when it comes.
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
"""Takes a datagram and the address it comes from; never raises."""

_PORTS = range(65536)
_BUFFER_BYTES = 4 << 20
_AT_ONCE = 256  # datagrams taken before others in the loop have their turn
_LARGEST = 65_536


class Attachment(Protocol):
    """One agent's place in a network."""

    @property
    def address(self) -> str:
        """Where others reach it, ``host:port``."""

    @property
    def unsent(self) -> int:
        """Datagrams that could not be sent."""

    def open(self, receive: Receive) -> None:
        """Hand over what comes, from now on."""

    def send(self, address: str, datagram: bytes) -> None:
        """Send without waiting and without raising."""

    def close(self) -> None:
        """Take no more."""


def parse_address(text: str) -> tuple[str, int]:
    """IP address and port of "10.0.0.1:7402" or "[fd00::1]:7402"; ValueError if it is neither.

    Names are refused: to look one up may take longer than a failure may last.
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
        """Bind; ValueError if the address cannot be had, or is none that peers could send to."""
        host, port = parse_address(listen)
        if ipaddress.ip_address(host).is_unspecified:
            raise ValueError(
                f"--peer-notices {listen}: give the address of this switch that peers send to"
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.unsent = 0
        self._family = family
        self._socket = socket.socket(family, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        for option in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            with contextlib.suppress(OSError):  # less will do
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
        """Have the running loop read the socket."""
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._readable)

    def send(self, address: str, datagram: bytes) -> None:
        """Send now, or count it as unsent: the next digest makes up for it."""
        try:
            where = self._known.get(address) or self._parsed(address)
            self._socket.sendto(datagram, where)
        except (OSError, ValueError):
            self.unsent += 1

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
            except OSError:  # what ICMP said of an earlier datagram of ours
                continue
            self._receive(datagram, _written(where[0], where[1]))


def _nobody(_datagram: bytes, _address: str) -> None:
    """Takes datagrams while the network is closed."""


class MemoryNetwork:
    """A network within one process: nothing is lost, and nothing takes time."""

    def __init__(self) -> None:
        self._open: dict[str, Receive] = {}
        self._waiting: deque[tuple[str, str, bytes]] = deque()
        self._pumping: asyncio.Handle | None = None
        self._quiet = asyncio.Event()
        self._quiet.set()

    def attach(self, address: str) -> MemoryAttachment:
        """A place in the network."""
        return MemoryAttachment(self, address)

    async def quiet(self) -> None:
        """Wait until everything that was sent has arrived, and what came of it."""
        await self._quiet.wait()

    def put(self, source: str, target: str, datagram: bytes) -> None:
        """Have a datagram arrive as soon as the event loop comes to it."""
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
        """Deliver what is sent there; None for not any more."""
        if receive is None:
            self._open.pop(address, None)
        else:
            self._open[address] = receive


class MemoryAttachment:
    """One agent's place in a network in memory."""

    unsent = 0

    def __init__(self, network: MemoryNetwork, address: str) -> None:
        self.address = address
        self._network = network

    def open(self, receive: Receive) -> None:
        """Hand over what comes, from now on."""
        self._network.listen(self.address, receive)

    def send(self, address: str, datagram: bytes) -> None:
        """Send."""
        self._network.put(self.address, address, datagram)

    def close(self) -> None:
        """Take no more."""
        self._network.listen(self.address, None)
