"""Token buckets: how much of something is allowed at once, and per second in the long run."""

from __future__ import annotations


class TokenBucket:
    """Holds at most ``burst`` tokens, as it does at first, and gets ``rate`` more each second.

    All times are in seconds of one clock.
    """

    def __init__(self, burst: float, rate: float, now: float) -> None:
        self._burst = burst
        self._rate = rate
        self._left, self._at = burst, now

    def take(self, now: float) -> float:
        """Take a token if there is one; return 0, or the seconds until there is one."""
        self._fill(now)
        if self._left < 1.0:
            return (1.0 - self._left) / self._rate
        self._left -= 1.0
        return 0.0

    def spend(self, tokens: float, now: float) -> float:
        """Take tokens, even if they are not there; return the seconds until none are owed."""
        self._fill(now)
        self._left -= tokens
        return max(0.0, -self._left) / self._rate

    def _fill(self, now: float) -> None:
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
