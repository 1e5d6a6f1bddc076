"""The receiving half of a probe."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from heddle_emulator.netns.probe import sockets
from heddle_emulator.netns.probe.spec import PACKET, TCP, ProbeFlow

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
        """UDP: number, nanosecond and TTL of each packet; TCP: 0, nanosecond and bytes."""
        self._row_of = {(flow.source, flow.source_port): row for row, flow in enumerate(flows)}
        ends = {(flow.protocol, flow.destination, flow.destination_port): flow for flow in flows}
        for (protocol, *_), flow in ends.items():
            if protocol == TCP:
                listener = sockets.tcp_listener(flow)
                self._watch(listener, lambda one=listener: self._accept(one))  # type: ignore[misc]
            else:
                end = sockets.udp_receiver(flow)
                self._watch(end, lambda one=end: self._packets(one))  # type: ignore[misc]

    def _watch(self, one: socket.socket, take: Callable[[], None]) -> None:
        self._open.append(one)
        self._take[one.fileno()] = take
        self._poll.register(one, select.EPOLLIN)

    def run(self) -> None:
        """Receive until stopped."""
        while not self._stopped():
            for handle, _ in self._poll.poll(NAP):
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
                if kind == sockets.SO_TIMESTAMPNS:
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
            row = self._row_of[peer]
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
        """One file a flow."""
        for row, notes in enumerate(self.got):
            (folder / f"{row}.got").write_bytes(notes.tobytes())

    def close(self) -> None:
        """Close every socket."""
        for one in self._open:
            one.close()
        self._poll.close()
