"""A packet-level twin of the fluid world, small and slow: what it is held against.

Every message is cut into packets of one size. A sender has a window of packets on
their way, and sends the next when one has arrived; links pass on one packet at a time
and hold as many as come. Where several messages wait for a link it takes them in turn
(``fair``), or packet by packet as they came. A hop of a ring passes on what has come in
over the hop before, and is ahead of it by no more than the part it has of its own.
Nothing here knows what a fair rate is.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Sequence


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
    ) -> None:
        """A message a path; ``capacity`` is in Gbit/s of each link.

        ``behind`` names the message whose packets each one passes on, ``lead`` how many
        it has of its own to begin with.
        """
        self._seconds = [packet_gbit / speed if speed > 0 else 0.0 for speed in capacity]
        self._after = [dict(zip(path, [*path[1:], -1], strict=True)) for path in paths]
        self._first = [path[0] for path in paths]
        self._unsent = [max(round(size / packet_gbit), 1) for size in gbit]
        self._left = [*self._unsent]
        self._window, self._on_their_way = window, [0] * len(paths)
        self._sent, self._lead = [0] * len(paths), lead
        self._behind = behind
        self._followers: list[list[int]] = [[] for _ in paths]
        for message, leader in enumerate(behind or []):
            self._followers[leader].append(message)
        self._arrived = [0] * len(paths)
        self._fair = fair
        self._waiting: list[Counter[int]] = [Counter() for _ in capacity]
        self._turns: list[deque[int]] = [deque() for _ in capacity]
        self._busy = [False] * len(capacity)
        self._events: list[tuple[float, int, int, int]] = []
        self._count = 0
        self.now = 0.0
        self.ends = [0.0] * len(paths)
        for message in range(len(paths)):
            self._send(message)

    def run(self) -> float:
        """Seconds until the last packet has arrived."""
        while self._events:
            self.now, _, link, message = heapq.heappop(self._events)
            self._busy[link] = False
            following = self._after[message][link]
            if following >= 0:
                self._arrive(following, message)
            else:
                self._deliver(message)
            self._serve(link)
        return max(self.ends, default=0.0)

    def _deliver(self, message: int) -> None:
        self._left[message] -= 1
        self._arrived[message] += 1
        self._on_their_way[message] -= 1
        if not self._left[message]:
            self.ends[message] = self.now
        for other in (message, *self._followers[message]):
            self._send(other)

    def _send(self, message: int) -> None:
        while self._unsent[message] and self._on_their_way[message] < self._window:
            if self._behind is not None:
                there = self._arrived[self._behind[message]] + self._lead
                if self._sent[message] >= there:
                    return
            self._unsent[message] -= 1
            self._sent[message] += 1
            self._on_their_way[message] += 1
            self._arrive(self._first[message], message)

    def _arrive(self, link: int, message: int) -> None:
        if not self._fair or not self._waiting[link][message]:
            self._turns[link].append(message)
        self._waiting[link][message] += 1
        self._serve(link)

    def _serve(self, link: int) -> None:
        if self._busy[link] or not self._turns[link]:
            return
        message = self._turns[link].popleft()
        self._waiting[link][message] -= 1
        if self._fair and self._waiting[link][message]:
            self._turns[link].append(message)
        self._busy[link] = True
        self._count += 1
        heapq.heappush(self._events, (self.now + self._seconds[link], self._count, link, message))
