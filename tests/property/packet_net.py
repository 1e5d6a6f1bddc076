"""A packet simulation, written without knowledge of the fluid simulation.

Messages of bytes are cut into packets with headers. The last packet of a message may be short. Each
link sends one packet at a time and delivers it after it has sent all of it and its latency has
passed. A NIC serves its QPs in turns. Other links either do so too or serve packets in order of
arrival. A QP sends its messages in order and has a window of bytes not yet acknowledged.
Acknowledgements return without queueing. No packet is lost and no queue is ever full.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

LEAST_WINDOW = 8
"""In packets."""
SENT, THERE, ACKNOWLEDGED, BEGIN = range(4)


@dataclass(slots=True)
class _Pair:
    path: Sequence[int]
    back: float
    window: float
    flying: float = 0.0
    messages: deque[int] = field(default_factory=deque)


@dataclass(slots=True)
class _Message:
    pair: int
    unsent: float
    due: int
    startup: float
    waits: int
    then: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Link:
    seconds: float
    """Seconds that the link needs to send one byte."""
    in_turns: bool
    busy: bool = False
    turns: deque[int] = field(default_factory=deque)
    waiting: dict[int, deque[tuple[int, int, float]]] = field(default_factory=dict)


class Net:
    """Links, and QPs that send messages over them."""

    def __init__(
        self, capacity: Sequence[float], hop: float, payload: int, header: int, *, in_turns: bool
    ) -> None:
        """Set up links of ``capacity`` Gbit/s, each with a latency of ``hop`` seconds."""
        self._links = [_Link(8e-9 / speed, in_turns) for speed in capacity]
        self._hop, self._payload, self._header = hop, payload, header
        self._pairs: list[_Pair] = []
        self._messages: list[_Message] = []
        self._events: list[tuple[float, int, int, tuple[int, int, float]]] = []
        self._count, self._now = 0, 0.0
        self.ends: list[float] = []

    def pair(self, path: Sequence[int], windows: float = 2.0) -> int:
        """Add a QP on a path, a list of links, and return its number.

        Its window is ``windows`` times the bytes that are under way when it is alone on its path.
        """
        full, back = self._payload + self._header, len(path) * self._hop
        each = [self._links[link].seconds for link in path]
        round_trip = 2 * back + full * sum(each)
        window = max(windows * round_trip / max(each), LEAST_WINDOW * self._payload)
        self._links[path[0]].in_turns = True
        self._pairs.append(_Pair(path, back, window))
        return len(self._pairs) - 1

    def message(self, pair: int, size: float, startup: float, after: Sequence[int] = ()) -> int:
        """Add a message of ``size`` bytes and return its number.

        Its QP may send it ``startup`` seconds after all messages in ``after`` have arrived.
        """
        row = len(self._messages)
        due = -int(-size // self._payload)
        self._messages.append(_Message(pair, size, due, startup, len(after)))
        for before in after:
            self._messages[before].then.append(row)
        return row

    def run(self) -> float:
        """Run the network and return the seconds until the last message has arrived."""
        self.ends = [0.0] * len(self._messages)
        for row, message in enumerate(self._messages):
            if not message.waits:
                self._later(message.startup, BEGIN, (row, 0, 0.0))
        while self._events:
            self._now, _, kind, what = heapq.heappop(self._events)
            if kind == SENT:
                row, hop, _ = what
                link = self._pairs[self._messages[row].pair].path[hop]
                self._links[link].busy = False
                self._later(self._hop, THERE, what)
                self._serve(link)
            elif kind == THERE:
                self._there(*what)
            elif kind == ACKNOWLEDGED:
                self._pairs[what[0]].flying -= what[2]
                self._send(what[0])
            else:
                pair = self._messages[what[0]].pair
                self._pairs[pair].messages.append(what[0])
                self._send(pair)
        return max(self.ends)

    def _later(self, seconds: float, kind: int, what: tuple[int, int, float]) -> None:
        self._count += 1
        heapq.heappush(self._events, (self._now + seconds, self._count, kind, what))

    def _send(self, row: int) -> None:
        pair = self._pairs[row]
        while pair.messages:
            message = self._messages[pair.messages[0]]
            size = min(message.unsent, self._payload)
            if pair.flying and pair.flying + size > pair.window:
                return
            message.unsent -= size
            pair.flying += size
            what = (pair.messages[0], 0, size)
            if message.unsent <= 0:
                pair.messages.popleft()
            self._queue(what)

    def _queue(self, what: tuple[int, int, float]) -> None:
        pair = self._messages[what[0]].pair
        number = self._pairs[pair].path[what[1]]
        link = self._links[number]
        waiting = link.waiting.setdefault(pair, deque())
        if not (waiting and link.in_turns):
            link.turns.append(pair)
        waiting.append(what)
        self._serve(number)

    def _serve(self, number: int) -> None:
        link = self._links[number]
        if link.busy or not link.turns:
            return
        pair = link.turns.popleft()
        what = link.waiting[pair].popleft()
        if link.in_turns and link.waiting[pair]:
            link.turns.append(pair)
        link.busy = True
        self._later((what[2] + self._header) * link.seconds, SENT, what)

    def _there(self, row: int, hop: int, size: float) -> None:
        message = self._messages[row]
        pair = self._pairs[message.pair]
        if hop + 1 < len(pair.path):
            self._queue((row, hop + 1, size))
            return
        self._later(pair.back, ACKNOWLEDGED, (message.pair, 0, size))
        message.due -= 1
        if not message.due:
            self.ends[row] = self._now
            for other in message.then:
                self._messages[other].waits -= 1
                if not self._messages[other].waits:
                    self._later(self._messages[other].startup, BEGIN, (other, 0, 0.0))
