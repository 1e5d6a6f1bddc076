"""Finds links that are slower than they should be, as opposed to links with little to carry.

The rate of a link says nothing by itself, because senders may be idle. But while packets wait in
the queue of its interface, the link carries all it can. So a link is slow if packets waited at each
of several looks in a row, seconds apart, and it still sent less than a share of its rate. Bursts on
an otherwise empty link do not last that long. A queue in front of a full link is a matter for the
plan and not a fault of the link.
"""

from __future__ import annotations

from collections import deque

_STANDING = 5  # intervals between looks at which packets must have waited
_LEAST_SHARE = 0.8
_QUIET = 10  # looks without waiting packets after which the link may be repaired
_BITS = 8


class RateShare:
    """The share of its rate that an interface sends when it has enough to send."""

    def __init__(self, gbps: float) -> None:
        """Take ``gbps``, the rate that the link should have; 0 if unknown."""
        self.share = 0.0
        """Share of its rate that a slow link sends, above 0 and below 1; 0 if it is not slow."""
        self._rate = gbps * 1e9 / _BITS
        self._looks: deque[tuple[float, int]] = deque(maxlen=_STANDING + 1)
        self._quiet = 0

    def look(self, now: float, sent: int, *, waiting: bool) -> float:
        """Take in one more look and return the share; 0 if the link is not slow.

        ``now`` is monotonic, in seconds. ``sent`` is the number of bytes that the interface has
        sent since it exists. If it shrinks, the interface has been replaced, and earlier looks are
        forgotten.
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
        # A link that sends nothing at all is not slow but dead, and probes find that.
        self.share = share if 0 < share < _LEAST_SHARE else 0.0
