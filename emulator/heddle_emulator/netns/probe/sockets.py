"""Sockets of a probe, made in the namespaces of its flows and used from one thread."""

from __future__ import annotations

import socket
from collections.abc import Callable

from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.probe.spec import ProbeFlow

BUFFER = 8 << 20
SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
IP_RECVTTL = 12


def made(space: str, kind: int, adjust: Callable[[socket.socket], None]) -> socket.socket:
    """A socket in a namespace, not blocking, adjusted before anything reaches it."""

    def make() -> socket.socket:
        new = socket.socket(socket.AF_INET, kind)
        new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        adjust(new)
        new.setblocking(False)
        return new

    return inside(space, make)


def udp_sender(flow: ProbeFlow) -> socket.socket:
    """Bound to the flow's source, connected to its destination."""

    def adjust(new: socket.socket) -> None:
        new.bind((flow.source, flow.source_port))
        new.connect((flow.destination, flow.destination_port))

    return made(flow.source_space, socket.SOCK_DGRAM, adjust)


def udp_receiver(flow: ProbeFlow) -> socket.socket:
    """Bound to the flow's destination; packets come with a time stamp and their TTL."""

    def adjust(new: socket.socket) -> None:
        new.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
        new.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        new.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
        new.bind((flow.destination, flow.destination_port))

    return made(flow.destination_space, socket.SOCK_DGRAM, adjust)


def tcp_listener(flow: ProbeFlow) -> socket.socket:
    """Listens at the flow's destination."""

    def adjust(new: socket.socket) -> None:
        new.bind((flow.destination, flow.destination_port))
        new.listen(64)

    return made(flow.destination_space, socket.SOCK_STREAM, adjust)


def tcp_sender(flow: ProbeFlow) -> socket.socket:
    """Bound to the flow's source, and on its way to the destination."""

    def adjust(new: socket.socket) -> None:
        new.bind((flow.source, flow.source_port))
        new.settimeout(5.0)
        new.connect((flow.destination, flow.destination_port))

    return made(flow.source_space, socket.SOCK_STREAM, adjust)
