"""The kernel's interfaces, read over netlink: their present state, and every change."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import struct
from collections.abc import Iterator
from typing import NamedTuple

_NEW_LINK, _DELETED_LINK, _GET_LINK = 16, 17, 18
_NEW_ADDRESS, _GET_ADDRESS = 20, 22
_NEW_QUEUE, _GET_QUEUE = 36, 38
_NEW_ROUTE, _GET_ROUTE = 24, 26
_ERROR, _DONE = 2, 3
_REQUEST, _DUMP = 0x1, 0x300
_LINK_GROUP = 1
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
_HEADER = struct.Struct("=IHHII")
_LINK = struct.Struct("=BxHiII")
_ADDRESS_HEAD = struct.Struct("=BBBBi")
_ATTRIBUTE = struct.Struct("=HH")
_TYPE_MASK = 0x3FFF
_READ = 1 << 18
_BUFFER_BYTES = 4 << 20
_NARROW = 4  # addresses in a /30, the largest network with only one other end
_SO_RCVBUFFORCE = 33
_SOL_NETLINK, _GET_STRICT = 270, 12


class InterfaceState(NamedTuple):
    """One interface at one time."""

    number: int
    """Index of the interface."""
    name: str
    alias: str
    carries: bool
    """Whether it is set up and has carrier."""
    gone: bool = False


class LinkSocket:
    """Reports every change to an interface of this network namespace."""

    def __init__(self) -> None:
        """Open the socket; OSError if there is no netlink."""
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._socket.setblocking(False)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER_BYTES)
        except PermissionError:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER_BYTES)
        self._socket.bind((0, _LINK_GROUP))

    def fileno(self) -> int:
        """Return the file descriptor, for event loops."""
        return self._socket.fileno()

    def read(self) -> list[InterfaceState] | None:
        """Return changes since the last call, in order; None if some were lost."""
        found: list[InterfaceState] = []
        while True:
            try:
                data = self._socket.recv(_READ)
            except BlockingIOError:
                return found
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    return None
                raise
            found += (_interface(*message) for message in _messages(data) if _tells(*message))

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def interface_states() -> list[InterfaceState]:
    """Return all interfaces of this network namespace."""
    body = _LINK.pack(0, 0, 0, 0, 0)
    return [_interface(*message) for message in _dump(_GET_LINK, body) if _tells(*message)]


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
    for message in _dump(_GET_LINK, _LINK.pack(0, 0, 0, 0, 0)):
        if _tells(*message):
            _, body = message
            told = dict(_attributes(body[_LINK.size :])).get(_STATISTICS, b"")
            if len(told) >= _COUNTS.size:
                packets, sent, errors = _COUNTS.unpack_from(told)
                found[int(_LINK.unpack_from(body)[2])] = Counts(packets, errors, sent)
    return found


def waiting() -> set[int]:
    """Return indices of interfaces with packets in the kernel's send queue."""
    found = set()
    for kind, body in _dump(_GET_QUEUE, _QUEUE.pack(0, 0, 0, 0, 0, 0)):
        if kind != _NEW_QUEUE or len(body) < _QUEUE.size:
            continue
        _, _, index, _, parent, _ = _QUEUE.unpack_from(body)
        told = dict(_attributes(body[_QUEUE.size :])).get(_QUEUE_STATISTICS, b"")
        length = dict(_attributes(told)).get(_LENGTH, b"")
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
    body = _ROUTE.pack(family, 0, 0, 0, 0, 0, 0, 0, 0)
    body += _ATTRIBUTE.pack(8, _OUT) + struct.pack("=i", index)
    body += _ATTRIBUTE.pack(8, _TABLE) + struct.pack("=I", _MAIN)
    try:
        return any(_leads_on(*message) for message in _dump(_GET_ROUTE, body, strict=True))
    except FileNotFoundError:  # no main table: there never was a route
        return False
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP and family == socket.AF_INET6:  # a kernel without IPv6
            return False
        raise


def _leads_on(kind: int, body: bytes) -> bool:
    if kind != _NEW_ROUTE or len(body) < _ROUTE.size:
        return False
    *_, protocol, scope, what, flags = _ROUTE.unpack_from(body)
    chosen = protocol != _BY_KERNEL and scope == _UNIVERSE and what == _UNICAST
    return chosen and not flags & (_DEAD | _LINK_DOWN)


def neighbours() -> dict[int, str]:
    """Return the address of the only possible other end, by interface index.

    Interfaces with more than one possible other end are missing. IPv4 is preferred over IPv6.
    """
    found: dict[int, str] = {}
    for family in _FAMILIES:
        for kind, body in _dump(_GET_ADDRESS, _ADDRESS_HEAD.pack(family, 0, 0, 0, 0)):
            if kind == _NEW_ADDRESS and _ADDRESS_HEAD.unpack_from(body)[0] == family:
                other = _only_other(body)
                if other is not None:
                    found.setdefault(_ADDRESS_HEAD.unpack_from(body)[4], str(other))
    return found


def _only_other(body: bytes) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the other end of an address's network, if there is only one."""
    bits = _ADDRESS_HEAD.unpack_from(body)[1]
    told = dict(_attributes(body[_ADDRESS_HEAD.size :]))
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


def _dump(kind: int, body: bytes, *, strict: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield everything of a kind; ``strict`` makes the kernel apply the filters in the request."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as asking:
        if strict:
            asking.setsockopt(_SOL_NETLINK, _GET_STRICT, 1)
        asking.bind((0, 0))
        length = _HEADER.size + len(body)
        asking.send(_HEADER.pack(length, kind, _REQUEST | _DUMP, 1, 0) + body)
        while True:
            for seen, content in _messages(asking.recv(_READ)):
                if seen == _DONE:
                    return
                if seen == _ERROR:
                    number = -struct.unpack_from("=i", content)[0]
                    raise OSError(number, os.strerror(number))
                yield seen, content


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _HEADER.size <= len(data):
        length, kind, _, _, _ = _HEADER.unpack_from(data, at)
        if length < _HEADER.size:
            return
        yield kind, data[at + _HEADER.size : at + length]
        at += (length + 3) & ~3


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    at = 0
    while at + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, at)
        if length < _ATTRIBUTE.size:
            return
        yield kind & _TYPE_MASK, data[at + _ATTRIBUTE.size : at + length]
        at += (length + 3) & ~3


def _tells(kind: int, body: bytes) -> bool:
    """Whether a message is about an interface itself, and not about its role in a bridge."""
    about_links = kind in (_NEW_LINK, _DELETED_LINK) and len(body) >= _LINK.size
    return about_links and _LINK.unpack_from(body)[0] == socket.AF_UNSPEC


def _interface(kind: int, body: bytes) -> InterfaceState:
    _, _, index, flags, _ = _LINK.unpack_from(body)
    told = dict(_attributes(body[_LINK.size :]))
    name, alias = (_text(told.get(key, b"")) for key in (_NAME, _ALIAS))
    carries = bool(flags & _UP and flags & _LOWER_UP) and kind == _NEW_LINK
    return InterfaceState(index, name, alias, carries, kind == _DELETED_LINK)


def _text(value: bytes) -> str:
    return value.rstrip(b"\0").decode(errors="replace")
