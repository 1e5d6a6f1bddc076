"""The sending half of a probe."""

from __future__ import annotations

import contextlib
import heapq
import select
import socket
import time
from array import array
from collections.abc import Callable
from pathlib import Path

from heddle_emulator.netns.probe import sockets
from heddle_emulator.netns.probe.spec import PACKET, TCP, ProbeFlow

LONGEST_NAP = 0.05
CHUNK = b"\0" * 65536


class Sender:
    """Sends all flows until it is stopped, and notes when each packet left."""

    def __init__(self, flows: list[ProbeFlow], stopped: Callable[[], bool]) -> None:
        self._flows, self._stopped = flows, stopped
        self._udp = [row for row, flow in enumerate(flows) if flow.protocol != TCP]
        self._sockets = {row: sockets.udp_sender(flows[row]) for row in self._udp}
        self._tcp = {
            row: sockets.tcp_sender(flow) for row, flow in enumerate(flows) if flow.protocol == TCP
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
        """A packet that the kernel does not take counts as sent: it is lost all the same."""
        times = self.sent[row]
        payload = PACKET.pack(row, len(times)).ljust(self._flows[row].size, b"\0")
        times.append(time.time_ns())
        with contextlib.suppress(OSError):
            self._sockets[row].send(payload)

    def _pour(self, seconds: float) -> None:
        """Give every TCP connection what it takes."""
        _, ready, _ = select.select((), list(self._tcp.values()), (), seconds)
        for connection in ready:
            with contextlib.suppress(OSError):
                connection.send(CHUNK)

    def write(self, folder: Path) -> None:
        """One file a flow: the nanosecond at which each packet left."""
        for row, times in enumerate(self.sent):
            (folder / f"{row}.sent").write_bytes(times.tobytes())

    def close(self) -> None:
        """Close every socket, connections with a reset."""
        for one in (*self._sockets.values(), *self._tcp.values()):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
