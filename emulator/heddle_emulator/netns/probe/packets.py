"""The two halves of a probe: sockets in the namespaces of its flows, a sender and a receiver."""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import select
import socket
import struct
import time
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from heddle_emulator.netns.kernel import inside
from heddle_emulator.netns.probe.spec import PACKET, TCP, NamedPort, ProbeFlow

BUFFER = 8 << 20
SO_TIMESTAMPNS = 35
SO_RCVBUFFORCE = 33
IP_RECVTTL = 12
IPV6_RECVHOPLIMIT = 51


def made(
    space: str, flow: ProbeFlow, kind: int, adjust: Callable[[socket.socket], None]
) -> socket.socket:
    """Return a non-blocking socket in a namespace, after ``adjust`` was called on it."""

    def make() -> socket.socket:
        new = socket.socket(flow.family, kind)
        new.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        adjust(new)
        new.setblocking(False)
        return new

    return inside(space, make)


def udp_sender(flow: ProbeFlow) -> socket.socket:
    """Return a UDP socket bound to the flow's source and connected to its destination."""

    def adjust(new: socket.socket) -> None:
        new.bind((flow.source, flow.source_port))
        new.connect((flow.destination, flow.destination_port))

    return made(flow.source_space, flow, socket.SOCK_DGRAM, adjust)


def udp_receiver(flow: ProbeFlow) -> socket.socket:
    """Return a UDP socket at the flow's destination that reports time stamps and TTLs."""

    def adjust(new: socket.socket) -> None:
        new.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
        new.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        if flow.family == socket.AF_INET6:
            new.setsockopt(socket.IPPROTO_IPV6, IPV6_RECVHOPLIMIT, 1)
        else:
            new.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
        new.bind((flow.destination, flow.destination_port))

    return made(flow.destination_space, flow, socket.SOCK_DGRAM, adjust)


def tcp_listener(flow: ProbeFlow) -> socket.socket:
    """Return a TCP socket that listens at the flow's destination."""

    def adjust(new: socket.socket) -> None:
        new.bind((flow.destination, flow.destination_port))
        new.listen(64)

    return made(flow.destination_space, flow, socket.SOCK_STREAM, adjust)


def tcp_sender(flow: ProbeFlow) -> socket.socket:
    """Return a TCP socket from the flow's source that is connected to its destination."""

    def adjust(new: socket.socket) -> None:
        new.bind((flow.source, flow.source_port))
        new.settimeout(5.0)
        new.connect((flow.destination, flow.destination_port))

    return made(flow.source_space, flow, socket.SOCK_STREAM, adjust)


class PortFiles:
    """Reads source ports from the files of hosts' agents. A file is read again if it changed."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], dict[str, list[int]]]] = {}

    def port(self, named: NamedPort) -> int:
        """Return the present port of a QP."""
        status = os.stat(named.file)  # noqa: PTH116 - for each packet
        stamp = status.st_mtime_ns, status.st_ino
        known = self._known.get(named.file)
        if known is None or known[0] != stamp:
            told = json.loads(Path(named.file).read_bytes())["flows"]
            known = stamp, {flow["flow"]: flow["ports"] for flow in told}
            self._known[named.file] = known
        return known[1][named.flow][named.place]


LONGEST_NAP = 0.05
CHUNK = b"\0" * 65536


class Sender:
    """Sends all flows until it is stopped, and notes when each packet left."""

    def __init__(self, flows: list[ProbeFlow], stopped: Callable[[], bool]) -> None:
        self._flows, self._stopped = flows, stopped
        self._udp = [row for row, flow in enumerate(flows) if flow.protocol != TCP]
        self._sockets = {row: udp_sender(flows[row]) for row in self._udp}
        self._named = {
            row: {port: udp_sender(replace(flow, source_port=port)) for port in flow.named.ports}
            for row, flow in enumerate(flows)
            if flow.named is not None
        }
        self._files = PortFiles()
        self._tcp = {
            row: tcp_sender(flow) for row, flow in enumerate(flows) if flow.protocol == TCP
        }
        self.sent = [array("q") for _ in flows]

    def run(self) -> None:
        """Send until stopped."""
        due = [(0.0, row) for row in self._udp]
        start = time.monotonic()
        while not self._stopped():
            wait = (start + due[0][0] - time.monotonic()) if due else LONGEST_NAP
            if self._tcp:
                self._pour(max(0.0, min(wait, LONGEST_NAP)))
            elif wait > 0:
                time.sleep(min(wait, LONGEST_NAP))
            while due and start + due[0][0] <= time.monotonic():
                instant, row = due[0]
                self._send(row)
                heapq.heapreplace(due, (instant + 1.0 / self._flows[row].rate, row))

    def _send(self, row: int) -> None:
        """Send a packet. One that the kernel refuses counts as sent, because it is lost too."""
        times = self.sent[row]
        payload = PACKET.pack(row, len(times)).ljust(self._flows[row].size, b"\0")
        times.append(time.time_ns())
        with contextlib.suppress(OSError):
            self._socket(row).send(payload)

    def _socket(self, row: int) -> socket.socket:
        named = self._flows[row].named
        return self._named[row][self._files.port(named)] if named else self._sockets[row]

    def _pour(self, seconds: float) -> None:
        """Send as much as every TCP connection takes, waiting at most ``seconds``."""
        _, ready, _ = select.select((), list(self._tcp.values()), (), seconds)
        for connection in ready:
            with contextlib.suppress(OSError):
                connection.send(CHUNK)

    def write(self, folder: Path) -> None:
        """Write one file per flow with the nanosecond at which each packet was sent."""
        for row, times in enumerate(self.sent):
            (folder / f"{row}.sent").write_bytes(times.tobytes())

    def close(self) -> None:
        """Shut down and close every socket."""
        named = (one for ports in self._named.values() for one in ports.values())
        for one in (*self._sockets.values(), *named, *self._tcp.values()):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


NAP = 0.05
CONTROL_BYTES = 128
TTL = struct.Struct("=i")
STAMP = struct.Struct("=qq")


class Receiver:
    """Receives all flows until it is stopped, and notes what came."""

    def __init__(self, flows: list[ProbeFlow], stopped: Callable[[], bool]) -> None:
        self._stopped = stopped
        self._poll = select.epoll()
        self._take: dict[int, Callable[[], None]] = {}
        self._open: list[socket.socket] = []
        self.got = [array("q") for _ in flows]
        """By flow: number, time in ns and TTL of each UDP packet, or 0, time and bytes of TCP."""
        self._row_of = {(flow.source, flow.source_port): row for row, flow in enumerate(flows)}
        ends = {(flow.protocol, flow.destination, flow.destination_port): flow for flow in flows}
        for (protocol, *_), flow in ends.items():
            if protocol == TCP:
                listener = tcp_listener(flow)
                self._watch(listener, lambda one=listener: self._accept(one))  # type: ignore[misc]
            else:
                end = udp_receiver(flow)
                self._watch(end, lambda one=end: self._packets(one))  # type: ignore[misc]

    def _watch(self, one: socket.socket, take: Callable[[], None]) -> None:
        self._open.append(one)
        self._take[one.fileno()] = take
        self._poll.register(one, select.EPOLLIN)

    def run(self) -> None:
        """Receive until stopped, and then whatever has arrived by then."""
        while not self._stopped():
            self._take_all(NAP)
        self._take_all(0.0)

    def _take_all(self, seconds: float) -> None:
        """Take what has arrived; if nothing has, wait for it at most so many seconds."""
        for handle, _ in self._poll.poll(seconds):
            self._take[handle]()

    def _packets(self, end: socket.socket) -> None:
        while True:
            try:
                payload, notes, _, _ = end.recvmsg(PACKET.size, CONTROL_BYTES)
            except OSError:
                return
            row, number = PACKET.unpack(payload)
            stamp, ttl = time.time_ns(), 0
            for _, kind, content in notes:
                if kind == SO_TIMESTAMPNS:
                    seconds, nanoseconds = STAMP.unpack(content)
                    stamp = seconds * 1_000_000_000 + nanoseconds
                else:
                    (ttl,) = TTL.unpack(content[: TTL.size])
            if row < len(self.got):
                self.got[row].extend((number, stamp, ttl))

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, peer = listener.accept()
            connection.setblocking(False)
            row = self._row_of[peer[0], peer[1]]
            self._watch(connection, lambda: self._bytes(connection, row))

    def _bytes(self, connection: socket.socket, row: int) -> None:
        try:
            count = len(connection.recv(1 << 20))
        except OSError:
            count = 0
        if count:
            self.got[row].extend((0, time.time_ns(), count))
        else:
            self._poll.unregister(connection)
            connection.close()

    def write(self, folder: Path) -> None:
        """Write one file per flow with the content of ``got``."""
        for row, notes in enumerate(self.got):
            (folder / f"{row}.got").write_bytes(notes.tobytes())

    def close(self) -> None:
        """Close every socket."""
        for one in self._open:
            one.close()
        self._poll.close()
