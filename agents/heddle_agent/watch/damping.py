"""Keeps a flapping link down, longer each time.

A loss is believed at once. A recovery is believed after a pause that doubles with every recent
loss. Each flap costs packets and moves flows, so an unstable link is better left unused. Times are
monotonic, in seconds, and this module never reads a clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_MOST_DOUBLINGS = 16


@dataclass(frozen=True, slots=True)
class HoldDown:
    """How long a link that came back must stay up before it is used, in seconds."""

    first: float = 0.5
    """Pause after the first loss; routing beyond the link also needs a moment."""
    longest: float = 60.0
    memory: float = 300.0
    """Losses longer ago than this do not count."""

    def pause(self, times: int) -> float:
        """Return the pause after this many losses."""
        return min(self.longest, self.first * 2.0 ** min(max(times - 1, 0), _MOST_DOUBLINGS))


class Damper:
    """One link: observed states go in, the state to believe comes out."""

    def __init__(self, patience: HoldDown, *, up: bool = True) -> None:
        self.up = up
        """The state to believe."""
        self.until = float("inf")
        """When a link that is seen up will be believed; infinity while it is up or seen down."""
        self._patience = patience
        self._downs: deque[float] = deque(maxlen=_MOST_DOUBLINGS + 1)

    @property
    def flapping(self) -> bool:
        """Whether the link is back but kept down because of more than one recent loss."""
        return not self.up and self.until != float("inf") and len(self._downs) > 1

    def seen(self, *, up: bool, now: float) -> None:
        """Take in the observed state of the link at time ``now``."""
        if not up:
            if self.up or self.until != float("inf"):
                self._downs.append(now)
            self.up, self.until = False, float("inf")
        elif not self.up and self.until == float("inf"):
            while self._downs and now - self._downs[0] > self._patience.memory:
                self._downs.popleft()
            self.until = now + self._patience.pause(len(self._downs)) if self._downs else now
        self.settle(now)

    def settle(self, now: float) -> None:
        """Believe a recovery that has lasted long enough."""
        if not self.up and now >= self.until:
            self.up, self.until = True, float("inf")
