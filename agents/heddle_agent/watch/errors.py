"""Packets that an interface received and had to throw away: a cable or a transceiver going bad.

Few probes meet an error of one packet in a thousand, but the interface counts every one of them.
"""

from __future__ import annotations

from collections import deque

ERROR_LOOK_SECONDS = 1.0
_LOOKS = 10  # that make up what is remembered
_LEAST_ERRORS = 10
_LEAST_SHARE = 1e-4


class ErrorShare:
    """The share of errors of one interface over the last few looks."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque(maxlen=_LOOKS + 1)

    def look(self, packets: int, errors: int) -> float:
        """The share of bad packets lately, 0 where there are too few to speak of.

        ``packets`` and ``errors`` only grow, as the kernel's counters do; if they do not, the
        interface is another one, and counting begins anew.
        """
        if self._seen and (packets < self._seen[-1][0] or errors < self._seen[-1][1]):
            self._seen.clear()
        self._seen.append((packets, errors))
        good, bad = (
            last - first for first, last in zip(self._seen[0], (packets, errors), strict=True)
        )
        share = bad / (good + bad) if bad >= _LEAST_ERRORS else 0.0
        return share if share >= _LEAST_SHARE else 0.0
