"""The share of packets that an interface received with errors, as from a bad cable or transceiver.

Probes rarely meet an error rate of one packet in a thousand, but the interface counts every error.
"""

from __future__ import annotations

from collections import deque

ERROR_LOOK_SECONDS = 1.0
_LOOKS = 10  # intervals that are remembered
_LEAST_ERRORS = 10
_LEAST_SHARE = 1e-4


class ErrorShare:
    """The error share of one interface over the last few looks."""

    def __init__(self) -> None:
        self._seen: deque[tuple[int, int]] = deque(maxlen=_LOOKS + 1)

    def look(self, packets: int, errors: int) -> float:
        """Take in the counters and return the recent share of bad packets; 0 if it is negligible.

        ``packets`` and ``errors`` are counters that only grow, as the kernel's do. If they shrink,
        the interface has been replaced, and counting begins anew.
        """
        if self._seen and (packets < self._seen[-1][0] or errors < self._seen[-1][1]):
            self._seen.clear()
        self._seen.append((packets, errors))
        good, bad = (
            last - first for first, last in zip(self._seen[0], (packets, errors), strict=True)
        )
        share = bad / (good + bad) if bad >= _LEAST_ERRORS else 0.0
        return share if share >= _LEAST_SHARE else 0.0
