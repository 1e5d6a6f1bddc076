"""Bulk transfers over TCP: so many bytes between pairs of NICs, and when they arrived.

All connections are made first, then all begin to send at once. One process holds both ends of all
connections, so that one clock times all. Only sockets are created, and they are closed at the end.
Every flow uses the same congestion control, whatever the machine's default is, since different ones
do not share equally.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats
from heddle_emulator.netns import LabError
from heddle_emulator.netns.probe.packets import tcp_listener, tcp_sender
from heddle_emulator.netns.probe.spec import ProbeFlow

RENO = b"reno"
"""The one congestion control that every Linux has."""
CHUNK = memoryview(bytes(64 << 10))
ACCEPT_SECONDS = 5.0
WINDOW = 48 << 10
"""Bytes that the kernel keeps of what has arrived and is not read yet.

The most that a flow can have in flight is between half of this and all of it.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Arrival:
    """What arrived of one transfer; seconds count from when all began to send."""

    seconds: Floats
    """Time of each read, ascending."""
    bytes: Floats
    """Bytes that had arrived by each of these times."""

    @property
    def end(self) -> float:
        """When the last byte arrived."""
        return float(self.seconds[-1])

    def rate(self, begin: float, end: float) -> float:
        """Return the mean Gbit/s of payload from ``begin`` to ``end``, in seconds."""
        came = np.interp([begin, end], self.seconds, self.bytes, left=0.0)
        return float(came[1] - came[0]) * 8e-9 / (end - begin)


def transfer(flows: Sequence[ProbeFlow], size: int, seconds: float) -> list[Arrival]:
    """Send ``size`` bytes over every flow at once, and return the arrivals in order of flows.

    Raises:
        LabError: not all bytes have arrived after so many seconds.
    """
    with contextlib.ExitStack() as stack:
        senders, receivers = _connected(flows, stack)
        turns = stack.enter_context(selectors.DefaultSelector())
        ends = [_Transfer(*pair, size=size) for pair in zip(senders, receivers, strict=True)]
        for one in ends:
            turns.register(one.sender, selectors.EVENT_WRITE, one.send)
            turns.register(one.receiver, selectors.EVENT_READ, one.receive)
        begin = time.monotonic()
        while any(one.missing for one in ends):
            if time.monotonic() - begin > seconds:
                late = [flow.name for flow, one in zip(flows, ends, strict=True) if one.missing]
                raise LabError(f"{', '.join(late)}: not all has come after {seconds:g} s")
            for key, _ in turns.select(0.1):
                if not key.data():
                    turns.unregister(key.fileobj)
        return [one.arrival(begin) for one in ends]


def _connected(
    flows: Sequence[ProbeFlow], stack: contextlib.ExitStack
) -> tuple[list[socket.socket], list[socket.socket]]:
    """Return the senders and the receivers of a connection for each flow."""
    listeners: dict[tuple[str, int], socket.socket] = {}
    firsts = {(flow.destination, flow.destination_port): flow for flow in flows}
    for place, flow in firsts.items():
        listeners[place] = stack.enter_context(tcp_listener(flow))
        # Set it here, since connections inherit it and cannot change it later.
        listeners[place].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
    senders, receivers = [], []
    for flow in flows:
        sender = stack.enter_context(tcp_sender(flow))
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, RENO)
        listener = listeners[flow.destination, flow.destination_port]
        listener.settimeout(ACCEPT_SECONDS)
        receiver = stack.enter_context(listener.accept()[0])
        for end in (sender, receiver):
            end.setblocking(False)
        senders.append(sender)
        receivers.append(receiver)
    return senders, receivers


class _Transfer:
    """One connection in progress; its calls return whether there is more to do."""

    def __init__(self, sender: socket.socket, receiver: socket.socket, *, size: int) -> None:
        self.sender, self.receiver = sender, receiver
        self._unsent, self.missing, self._size = size, size, size
        self._seen: list[tuple[float, int]] = []
        self._room = bytearray(256 << 10)

    def send(self) -> bool:
        """Send as much as the kernel takes."""
        with contextlib.suppress(BlockingIOError):
            self._unsent -= self.sender.send(CHUNK[: min(len(CHUNK), self._unsent)])
        return self._unsent > 0

    def receive(self) -> bool:
        """Receive what has arrived."""
        with contextlib.suppress(BlockingIOError):
            self.missing -= self.receiver.recv_into(self._room)
            self._seen.append((time.monotonic(), self._size - self.missing))
        return self.missing > 0

    def arrival(self, begin: float) -> Arrival:
        """Return what has arrived, with times counted from ``begin``."""
        times, counts = zip(*self._seen, strict=True)
        return Arrival(np.array(times) - begin, np.array(counts, dtype=np.float64))
