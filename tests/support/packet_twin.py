"""A packet-level twin of the fluid world, small and slow, with which it is compared.

Every message is divided into packets of one size. A QP has a window of packets on their way, and
sends the next one when one has arrived. A link forwards one packet at a time, holds as many as
arrive, and takes some time to deliver each. If several QPs wait for a link, it takes them in turn
(``fair``), or packet by packet in order of arrival. The first link after a NIC always takes them in
turn, as NICs do. A message may wait for others to be complete. A hop of a ring forwards what has
arrived over the hop before, and is ahead of it at most by the part that it has of its own. Nothing
here knows what a fair rate is.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence

FREE, THERE, BEGIN = range(3)
"""Events: a link has sent a packet, a packet reached a link's end, a message may begin."""


class Twin:
    """Messages on their way through links."""

    def __init__(
        self,
        capacity: Sequence[float],
        paths: Sequence[Sequence[int]],
        gbit: Sequence[float],
        *,
        packet_gbit: float,
        window: int = 16,
        fair: bool = True,
        behind: Sequence[int] | None = None,
        lead: int = 0,
        after: Sequence[Sequence[int]] | None = None,
        queue: Sequence[int] | None = None,
        delay: float = 0.0,
        hop_seconds: float = 0.0,
    ) -> None:
        """Create a message for each path; ``capacity`` is in Gbit/s of each link.

        ``behind`` is the message whose packets each one forwards, and ``lead`` the number of
        packets it has of its own at the start. ``after`` lists the messages that each waits for, to
        begin ``delay`` seconds later. Messages of one ``queue`` take the same path one after
        another, and share one turn.
        """
        self._seconds = [packet_gbit / speed if speed > 0 else 0.0 for speed in capacity]
        self._hop = hop_seconds
        self._after = [dict(zip(path, [*path[1:], -1], strict=True)) for path in paths]
        self._first = [path[0] for path in paths]
        self._unsent = [max(round(size / packet_gbit), 1) for size in gbit]
        self._left = [*self._unsent]
        self._sent, self._lead = [0] * len(paths), lead
        self._behind = behind
        self._followers = _named_by([[leader] for leader in behind or []], len(paths))
        self._waits = [len(before) for before in after or [[]] * len(paths)]
        self._next = _named_by(after or [], len(paths))
        self._arrived = [0] * len(paths)
        self._fair = [fair] * len(capacity)
        for link in self._first:
            self._fair[link] = True
        self._queue = [*(queue or range(len(paths)))]
        self._window, self._on_their_way = window, [0] * len(paths)
        self._to_send: list[deque[int]] = [deque() for _ in paths]
        """For each queue: messages that have begun and are not completely sent."""
        self._waiting: list[dict[int, deque[int]]] = [{} for _ in capacity]
        self._turns: list[deque[int]] = [deque() for _ in capacity]
        self._busy = [False] * len(capacity)
        self._events: list[tuple[float, int, int, int, int]] = []
        self._count = 0
        self.now = 0.0
        self.ends = [0.0] * len(paths)
        self._delay = delay

    def run(self) -> float:
        """Return the seconds until the last packet has arrived."""
        for message, waits in enumerate(self._waits):
            if not waits:
                self._later(self._delay, BEGIN, 0, message)
        while self._events:
            self.now, _, kind, link, message = heapq.heappop(self._events)
            if kind == BEGIN:
                self._to_send[self._queue[message]].append(message)
                self._send(self._queue[message])
            elif kind == THERE:
                self._pass_on(link, message)
            else:
                self._busy[link] = False
                if self._hop:
                    self._later(self._hop, THERE, link, message)
                else:
                    self._pass_on(link, message)
                self._serve(link)
        return max(self.ends, default=0.0)

    def _later(self, seconds: float, kind: int, link: int, message: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (self.now + seconds, self._count, kind, link, message))

    def _pass_on(self, link: int, message: int) -> None:
        following = self._after[message][link]
        if following >= 0:
            self._arrive(following, message)
        else:
            self._deliver(message)

    def _deliver(self, message: int) -> None:
        self._left[message] -= 1
        self._arrived[message] += 1
        self._on_their_way[self._queue[message]] -= 1
        if not self._left[message]:
            self._end(message)
        for other in (message, *self._followers[message]):
            self._send(self._queue[other])

    def _end(self, message: int) -> None:
        self.ends[message] = self.now
        for other in self._next[message]:
            self._waits[other] -= 1
            if not self._waits[other]:
                self._later(self._delay, BEGIN, 0, other)

    def _send(self, queue: int) -> None:
        ready = self._to_send[queue]
        while ready and self._on_their_way[queue] < self._window:
            message = ready[0]
            if self._behind is not None:
                there = self._arrived[self._behind[message]] + self._lead
                if self._sent[message] >= there:
                    return
            self._unsent[message] -= 1
            if not self._unsent[message]:
                ready.popleft()
            self._sent[message] += 1
            self._on_their_way[queue] += 1
            self._arrive(self._first[message], message)

    def _arrive(self, link: int, message: int) -> None:
        queue = self._queue[message]
        waiting = self._waiting[link].setdefault(queue, deque())
        if not self._fair[link] or not waiting:
            self._turns[link].append(queue)
        waiting.append(message)
        self._serve(link)

    def _serve(self, link: int) -> None:
        if self._busy[link] or not self._turns[link]:
            return
        queue = self._turns[link].popleft()
        waiting = self._waiting[link][queue]
        message = waiting.popleft()
        if self._fair[link] and waiting:
            self._turns[link].append(queue)
        self._busy[link] = True
        self._later(self._seconds[link], FREE, link, message)


def _named_by(names: Sequence[Sequence[int]], count: int) -> list[list[int]]:
    """Return, for each of ``count`` messages, those that name it."""
    found: list[list[int]] = [[] for _ in range(count)]
    for message, named in enumerate(names):
        for other in named:
            found[other].append(message)
    return found
