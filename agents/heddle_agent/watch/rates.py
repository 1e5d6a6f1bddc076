"""A link that carries less than it should, told from one that has little to carry.

How much a link carries says nothing by itself: senders may be idle. While packets wait in the
queue of its interface, it carries what it can. So a link is slow when packets have waited at every
one of several looks in a row, seconds apart, and it still sent less than its share of the rate
that it is meant for. Bursts that meet an empty link do not stand so long; a queue that stands while
the link is full is a matter of the plan and not of the link.
"""

from __future__ import annotations

from collections import deque

_STANDING = 5  # intervals between looks, in all of which packets wait
_LEAST_SHARE = 0.8
_QUIET = 10  # looks without waiting packets, after which it may have been mended
_BITS = 8


class RateShare:
    """How much of its rate one interface sends when it has enough to send."""

    def __init__(self, gbps: float) -> None:
        """``gbps`` is the rate that the link is meant for; 0 where nobody knows it."""
        self.share = 0.0
        """Share of that rate of a link that is slow, above 0 and below 1; 0 where it is not."""
        self._rate = gbps * 1e9 / _BITS
        self._looks: deque[tuple[float, int]] = deque(maxlen=_STANDING + 1)
        self._quiet = 0

    def look(self, now: float, sent: int, *, waiting: bool) -> float:
        """The share after one more look.

        ``now`` is monotonic, in seconds; ``sent`` the bytes that the interface has sent since it is
        there. If these grow less, it is another one, and nothing is known of it.
        """
        if self._rate <= 0:
            return 0.0
        if self._looks and sent < self._looks[-1][1]:
            self._looks.clear()
        if waiting:
            self._quiet = 0
            self._looks.append((now, sent))
            self._judge()
        else:
            self._looks.clear()
            self._quiet += 1
            if self._quiet >= _QUIET:
                self.share = 0.0
        return self.share

    def _judge(self) -> None:
        if len(self._looks) <= _STANDING:
            return
        (begin, before), (end, after) = self._looks[0], self._looks[-1]
        share = (after - before) / (end - begin) / self._rate
        # A link that sends nothing at all is another matter: probes find that.
        self.share = share if 0 < share < _LEAST_SHARE else 0.0
