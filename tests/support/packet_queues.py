"""A network of packets with first-in-first-out queues, PFC and congestion control.

It is slow and plain. Packets have one size, except a message's last one. A link has one queue, at
its tail, and serves it in order; a packet is forwarded when all of it has arrived. The first link
of a NIC serves its QPs in turn, as far as their congestion control lets them send. With PFC nothing
is lost: bytes that came by a link and still wait at its head pause that link above ``xoff`` and
resume it at ``xon``; what is already on the way still arrives. A packet that joins a queue longer
than ``mark`` is marked. Its acknowledgement, which returns without a queue, tells the sender.

It shares nothing with the fluid world, which is compared with it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Protocol

BITS, GIGA = 8.0, 1e9


@dataclass(frozen=True, slots=True)
class Pfc:
    """Limits for bytes of one link that wait at its head."""

    xoff: float = 200_000.0
    xon: float = 180_000.0


class Control(Protocol):
    """Decides when a QP may send."""

    def window(self) -> float:
        """Return the bytes that may be on the way."""

    def gap(self, size: float) -> float:
        """Return the seconds from the start of one packet to the next."""

    def acknowledged(self, now: float, size: float, *, marked: bool) -> None:
        """Take in that a packet has arrived and its acknowledgement is back."""


class LineRate:
    """No control: only the NIC and PFC limit the rate."""

    def window(self) -> float:
        """Implement ``Control.window``."""
        return float("inf")

    def gap(self, size: float) -> float:  # noqa: ARG002 - a Control
        """Implement ``Control.gap``."""
        return 0.0

    def acknowledged(self, now: float, size: float, *, marked: bool) -> None:
        """Implement ``Control.acknowledged``."""


class Windowed:
    """A window that shrinks by the part of its packets that were marked (DCTCP, SIGCOMM 2010)."""

    GAIN = 1 / 16

    def __init__(self, packet: float, most: float) -> None:
        """Start; the window begins at ``most``, the bytes that fill the path of a lone QP."""
        self._packet, self._most = packet, most
        self._window, self._marked = most, 1.0
        self._sent = self._seen = 0.0

    def window(self) -> float:
        """Implement ``Control.window``."""
        return self._window

    def gap(self, size: float) -> float:  # noqa: ARG002 - a Control
        """Implement ``Control.gap``."""
        return 0.0

    def acknowledged(self, now: float, size: float, *, marked: bool) -> None:  # noqa: ARG002
        """Implement ``Control.acknowledged``; adjust a window when all of it is acknowledged."""
        self._sent += size
        self._seen += size if marked else 0.0
        if self._sent < self._window:
            return
        self._marked += self.GAIN * (self._seen / self._sent - self._marked)
        if self._seen:
            self._window = max(self._window * (1 - self._marked / 2), self._packet)
        else:
            self._window = min(self._window + self._packet, self._most)
        self._sent = self._seen = 0.0


class Rated:
    """A rate that is cut by marks and recovers by halves (after DCQCN, SIGCOMM 2015)."""

    CUT_SECONDS, RAISE_SECONDS, GAIN, HALVES = 50e-6, 55e-6, 1 / 16, 5

    def __init__(self, line: float) -> None:
        """Start; ``line`` is in Gbit/s, and a QP begins at that rate."""
        self._line, self._rate, self._target = line, line, line
        self._alpha, self._cut, self._raised, self._rounds = 1.0, -1.0, 0.0, 0

    def window(self) -> float:
        """Implement ``Control.window``."""
        return float("inf")

    def gap(self, size: float) -> float:
        """Implement ``Control.gap``."""
        return size * BITS / GIGA / self._rate

    def acknowledged(self, now: float, size: float, *, marked: bool) -> None:  # noqa: ARG002
        """Implement ``Control.acknowledged``."""
        if marked and now >= self._cut + self.CUT_SECONDS:
            self._alpha += self.GAIN * (1 - self._alpha)
            self._target, self._rate = self._rate, self._rate * (1 - self._alpha / 2)
            self._rate = max(self._rate, self._line / 1000)
            self._cut = self._raised = now
            self._rounds = 0
        elif now >= self._raised + self.RAISE_SECONDS:
            self._alpha *= 1 - self.GAIN
            self._rounds += 1
            if self._rounds > self.HALVES:
                self._target = min(self._target + self._line / 20, self._line)
            self._rate = (self._rate + self._target) / 2
            self._raised = now


@dataclass(slots=True)
class _Packet:
    qp: int
    size: float
    hop: int = 0
    marked: bool = False


@dataclass(slots=True)
class _Link:
    seconds: float
    """Seconds for each byte."""
    delay: float
    busy: bool = False
    paused: bool = False
    waiting: deque[_Packet] = field(default_factory=deque)
    """The queue of a link that does not leave a NIC."""
    queued: float = 0.0
    turns: deque[int] = field(default_factory=deque)
    """QPs of a link that leaves a NIC, in the order of their turns."""
    held: float = 0.0
    """Bytes that came by the link and have not left its head."""
    pausing: bool = False
    """Whether its head has told it to pause."""
    most_held: float = 0.0


@dataclass(slots=True)
class _Qp:
    path: Sequence[int]
    left: float
    """Bytes that are not sent yet."""
    missing: float
    """Bytes that have not arrived."""
    control: Control
    next_start: float
    back: float
    """Seconds that acknowledgements take."""
    flying: float = 0.0


class PacketNetwork:
    """Links, and QPs that send over them."""

    def __init__(
        self,
        capacity: Sequence[float],
        *,
        delay: float = 6e-7,
        packet: float = 4096.0,
        pfc: Pfc | None = None,
        mark: float = float("inf"),
    ) -> None:
        """Start; ``capacity`` is in Gbit/s of each link, ``mark`` in bytes of a queue."""
        self._links = [_Link(BITS / GIGA / speed, delay) for speed in capacity]
        self._packet, self._pfc, self._mark = packet, pfc, mark
        self._qps: list[_Qp] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count, self.now = 0, 0.0
        self.ends: list[float] = []
        """When the last byte of each QP arrived, in seconds; infinite until then."""

    def round_trip(self, path: Sequence[int]) -> float:
        """Return the seconds of a packet and its acknowledgement without other traffic."""
        links = [self._links[row] for row in path]
        return sum(2 * link.delay + self._packet * link.seconds for link in links)

    def filling(self, path: Sequence[int]) -> float:
        """Return the bytes on the way that keep the slowest link of a path busy."""
        slowest = max(self._links[row].seconds for row in path)
        return self.round_trip(path) / slowest + 2 * self._packet

    def send(
        self, path: Sequence[int], size: float, control: Control | None = None, *, start: float = 0
    ) -> int:
        """Add a QP that sends so many bytes over a path; return its row in ``ends``."""
        back = sum(self._links[row].delay for row in path)
        row = len(self._qps)
        self._qps.append(_Qp(path, size, size, control or LineRate(), start, back))
        self._links[path[0]].turns.append(row)
        self.ends.append(float("inf"))
        self._at(start, lambda: self._serve(path[0]))
        return row

    def run(self, until: float = float("inf")) -> float:
        """Play to the end, or until a time; return when the last byte so far arrived."""
        while self._events and self._events[0][0] <= until:
            self.now, _, happen = heappop(self._events)
            happen()
        return max((end for end in self.ends if end < float("inf")), default=0.0)

    def most_held(self, link: int) -> float:
        """Return the most bytes that came by a link and waited at its head."""
        return self._links[link].most_held

    def missing(self, qp: int) -> float:
        """Return the bytes of a QP that have not arrived."""
        return self._qps[qp].missing

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._events, (time, self._count, happen))

    def _serve(self, row: int) -> None:
        """Send the next packet of a link, if it may."""
        link = self._links[row]
        if link.busy or link.paused:
            return
        packet = self._next_of(row, link)
        if packet is None:
            return
        link.busy = True
        through = self.now + packet.size * link.seconds
        self._at(through, lambda: self._through(row, packet))
        self._at(through + link.delay, lambda: self._arrive(row, packet))

    def _next_of(self, row: int, link: _Link) -> _Packet | None:
        if link.waiting:
            packet = link.waiting.popleft()
            link.queued -= packet.size
            return packet
        soonest = float("inf")
        for _ in range(len(link.turns)):
            qp = link.turns[0]
            link.turns.rotate(-1)
            one = self._qps[qp]
            size = min(self._packet, one.left)
            if size <= 0 or (one.flying and one.flying + size > one.control.window()):
                continue
            if one.next_start > self.now:
                soonest = min(soonest, one.next_start)
                continue
            one.left -= size
            one.flying += size
            one.next_start = self.now + one.control.gap(size)
            return _Packet(qp, size)
        if soonest < float("inf"):
            self._at(soonest, lambda: self._serve(row))
        return None

    def _through(self, row: int, packet: _Packet) -> None:
        """All of a packet has left a link's tail; the link that it came by has room again."""
        self._links[row].busy = False
        if packet.hop > 0:
            self._release(self._qps[packet.qp].path[packet.hop - 1], packet.size)
        self._serve(row)

    def _arrive(self, row: int, packet: _Packet) -> None:
        path = self._qps[packet.qp].path
        if packet.hop + 1 == len(path):
            self._received(packet)
            return
        self._hold(row, packet.size)
        # Each hop has its own packet object, since the last link may still be busy with it.
        onward = _Packet(packet.qp, packet.size, packet.hop + 1, packet.marked)
        out = self._links[path[onward.hop]]
        onward.marked |= out.queued >= self._mark
        out.waiting.append(onward)
        out.queued += onward.size
        self._serve(path[onward.hop])

    def _received(self, packet: _Packet) -> None:
        qp = self._qps[packet.qp]
        qp.missing -= packet.size
        if qp.missing <= 0:
            self.ends[packet.qp] = self.now
        self._at(self.now + qp.back, lambda: self._acknowledge(packet))

    def _acknowledge(self, packet: _Packet) -> None:
        qp = self._qps[packet.qp]
        qp.flying -= packet.size
        qp.control.acknowledged(self.now, packet.size, marked=packet.marked)
        self._serve(qp.path[0])

    def _hold(self, row: int, size: float) -> None:
        link = self._links[row]
        link.held += size
        link.most_held = max(link.most_held, link.held)
        if self._pfc and not link.pausing and link.held > self._pfc.xoff:
            link.pausing = True
            self._at(self.now + link.delay, lambda: self._pause(row, paused=True))

    def _release(self, row: int, size: float) -> None:
        link = self._links[row]
        link.held -= size
        if self._pfc and link.pausing and link.held <= self._pfc.xon:
            link.pausing = False
            self._at(self.now + link.delay, lambda: self._pause(row, paused=False))

    def _pause(self, row: int, *, paused: bool) -> None:
        self._links[row].paused = paused
        self._serve(row)
