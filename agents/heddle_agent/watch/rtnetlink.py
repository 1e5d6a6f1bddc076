"""The kernel's interfaces, read over netlink: state and addresses now, and every change."""

from __future__ import annotations

import errno
import ipaddress
import socket
import struct
from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

from heddle_agent.netlink import (
    ROUTE,
    Netlink,
    attributes,
    messages,
    native,
    open_socket,
    string,
)

_NEW_LINK, _DELETED_LINK, _GET_LINK = 16, 17, 18
_NEW_ADDRESS, _DELETED_ADDRESS, _GET_ADDRESS, _GET_ROUTE, _GET_QUEUE = 20, 21, 22, 26, 38
_GROUPS = 0x1 | 0x10 | 0x100  # of links, of IPv4 addresses, of IPv6 addresses
_UP, _LOWER_UP = 0x1, 0x10000
_NAME, _ALIAS, _STATISTICS = 3, 20, 23
_COUNTS = struct.Struct("=Q16xQQ")  # packets received, bytes sent, packets received in error
_QUEUE = struct.Struct("=BxHiIII")  # among others interface and parent
_ROOT = 0xFFFFFFFF
_QUEUE_STATISTICS, _LENGTH = 7, 3
_ADDRESS, _LOCAL = 1, 2
_OUT, _TABLE = 4, 15
_ROUTE = struct.Struct("=BBBBBBBBI")
_MAIN = 254
_FAMILIES = (socket.AF_INET, socket.AF_INET6)
_BY_KERNEL, _UNIVERSE, _UNICAST = 2, 0, 1  # a route's protocol, scope and type
_DEAD, _LINK_DOWN = 0x1, 0x10
_LINK = struct.Struct("=BxHiII")
_ADDRESS_HEAD = struct.Struct("=BBBBi")
_READ = 1 << 18
_BUFFER_BYTES = 4 << 20
_NARROW = 4  # addresses in a /30, the largest network with only one other end
_SO_RCVBUFFORCE = 33


class InterfaceState(NamedTuple):
    """One interface at one time."""

    number: int
    """Index of the interface."""
    name: str
    alias: str
    carries: bool
    """Whether it is set up and has carrier."""
    gone: bool = False


class Announced(NamedTuple):
    """What the kernel has announced since the last call."""

    interfaces: list[InterfaceState]
    """Changes of interfaces, in order."""
    addresses: bool
    """Whether any interface has got or lost an address."""


class LinkSocket:
    """Reports every change to an interface of this network namespace, and to its addresses."""

    def __init__(self) -> None:
        """Open the socket; OSError if there is no netlink."""
        self._socket = open_socket(ROUTE)
        self._socket.setblocking(False)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.bind((0, _GROUPS))

    def fileno(self) -> int:
        """Return the file descriptor, for event loops."""
        return self._socket.fileno()

    def read(self) -> Announced | None:
        """Return changes since the last call; None if some were lost."""
        found: list[InterfaceState] = []
        addresses = False
        while True:
            try:
                data = self._socket.recv(_READ)
            except BlockingIOError:
                return Announced(found, addresses)
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    return None
                raise
            for kind, body in messages(data):
                if _tells(kind, body):
                    found.append(_interface(kind, body))
                addresses |= kind in (_NEW_ADDRESS, _DELETED_ADDRESS)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def interface_states() -> list[InterfaceState]:
    """Return all interfaces of this network namespace."""
    return [_interface(_NEW_LINK, body) for body in _links()]


class Counts(NamedTuple):
    """What an interface has counted since it exists."""

    packets: int
    """Packets received and not dropped for an error."""
    errors: int
    """Packets received with errors."""
    sent: int
    """Bytes sent."""


def counts() -> dict[int, Counts]:
    """Return what interfaces have counted, by index."""
    found = {}
    for body in _links():
        told = attributes(body[_LINK.size :]).get(_STATISTICS, b"")
        if len(told) >= _COUNTS.size:
            packets, sent, errors = _COUNTS.unpack_from(told)
            found[int(_LINK.unpack_from(body)[2])] = Counts(packets, errors, sent)
    return found


def _links() -> Iterator[bytes]:
    every = _dump(_GET_LINK, _LINK.pack(0, 0, 0, 0, 0))
    return (body for body in every if _tells(_NEW_LINK, body))


def waiting() -> set[int]:
    """Return indices of interfaces with packets in the kernel's send queue."""
    found = set()
    for body in _dump(_GET_QUEUE, _QUEUE.pack(0, 0, 0, 0, 0, 0)):
        _, _, index, _, parent, _ = _QUEUE.unpack_from(body)
        told = attributes(body[_QUEUE.size :]).get(_QUEUE_STATISTICS, b"")
        length = attributes(told).get(_LENGTH, b"")
        if parent == _ROOT and any(length[:4]):
            found.add(index)
    return found


def is_routed(index: int) -> bool:
    """Whether a route of the main table to beyond the neighbour uses an interface.

    Routes that the kernel adds by itself for addresses do not count, nor do routes within the link.
    Raises OSError if the kernel cannot be asked about a single interface.
    """
    return any(_is_routed(index, family) for family in _FAMILIES)


def _is_routed(index: int, family: socket.AddressFamily) -> bool:
    body = _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0) + native(_OUT, index) + native(_TABLE, _MAIN)
    try:
        return any(map(_leads_on, _dump(_GET_ROUTE, body)))
    except OSError as error:
        if error.errno == errno.ENOENT:  # no main table: there never was a route
            return False
        if error.errno == errno.EOPNOTSUPP and family == socket.AF_INET6:  # a kernel without IPv6
            return False
        raise


def _leads_on(body: bytes) -> bool:
    *_, protocol, scope, what, flags = _ROUTE.unpack_from(body)
    chosen = protocol != _BY_KERNEL and scope == _UNIVERSE and what == _UNICAST
    return chosen and not flags & (_DEAD | _LINK_DOWN)


def neighbours() -> dict[int, list[str]]:
    """Return the addresses of the other end of each interface, by index, those of IPv4 first.

    Only networks with room for one other end count. An interface without any is missing.
    """
    found: dict[int, list[str]] = {}
    for family in _FAMILIES:
        for body in _dump(_GET_ADDRESS, _ADDRESS_HEAD.pack(family, 0, 0, 0, 0)):
            if _ADDRESS_HEAD.unpack_from(body)[0] == family:
                other = _only_other(body)
                if other is not None:
                    found.setdefault(_ADDRESS_HEAD.unpack_from(body)[4], []).append(str(other))
    return found


def _only_other(body: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the other end of an address's network, if there is only one."""
    bits = _ADDRESS_HEAD.unpack_from(body)[1]
    told = attributes(body[_ADDRESS_HEAD.size :])
    peer = told.get(_ADDRESS)
    local = told.get(_LOCAL, peer)  # for IPv6 only given if it differs from the peer's
    if local is None or peer is None:
        return None
    if peer != local:
        return ipaddress.ip_address(peer)
    network = ipaddress.ip_interface((local, bits)).network
    if network.num_addresses > _NARROW:
        return None
    others = [host for host in network.hosts() if host.packed != local]
    return others[0] if len(others) == 1 else None


def _dump(kind: int, body: bytes) -> Iterator[bytes]:
    """Yield everything of a kind to which the filters in the request apply."""
    with closing(Netlink(ROUTE)) as kernel:
        yield from kernel.objects(kind, body)


def _tells(kind: int, body: bytes) -> bool:
    """Whether a message is about an interface itself, and not about its role in a bridge."""
    about_links = kind in (_NEW_LINK, _DELETED_LINK) and len(body) >= _LINK.size
    return about_links and _LINK.unpack_from(body)[0] == socket.AF_UNSPEC


def _interface(kind: int, body: bytes) -> InterfaceState:
    _, _, index, flags, _ = _LINK.unpack_from(body)
    told = attributes(body[_LINK.size :])
    name, alias = (string(told.get(key, b"")) for key in (_NAME, _ALIAS))
    carries = bool(flags & _UP and flags & _LOWER_UP) and kind == _NEW_LINK
    return InterfaceState(index, name, alias, carries, kind == _DELETED_LINK)
