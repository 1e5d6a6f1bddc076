"""A link that flaps is kept down, longer each time.

Down is believed at once. Up is believed after a pause that doubles with every time the link went
down lately: each flap costs packets and moves flows, and a link that cannot hold is better left
alone. Times are monotonic; nothing here reads a clock.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_MOST_DOUBLINGS = 16


@dataclass(frozen=True, slots=True)
class HoldDown:
    """How long a link that came back must hold before it is used; all in seconds."""

    first: float = 0.5
    """After the first time down: routing beyond the link needs a moment as well."""
    longest: float = 60.0
    memory: float = 300.0
    """Times down longer ago than this do not count."""

    def pause(self, times: int) -> float:
        """The pause after so many times down."""
        return min(self.longest, self.first * 2.0 ** min(max(times - 1, 0), _MOST_DOUBLINGS))


class Damper:
    """One link: what is seen goes in, what to believe comes out."""

    def __init__(self, patience: HoldDown, *, up: bool = True) -> None:
        self.up = up
        """What to believe."""
        self.until = float("inf")
        """When a link that is seen up will be believed."""
        self._patience = patience
        self._downs: deque[float] = deque(maxlen=_MOST_DOUBLINGS + 1)

    @property
    def flapping(self) -> bool:
        """Whether a link that is back is kept down because it was lost before that as well."""
        return not self.up and self.until != float("inf") and len(self._downs) > 1

    def seen(self, *, up: bool, now: float) -> None:
        """The link is seen in this state."""
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
        """Believe what has held long enough."""
        if not self.up and now >= self.until:
            self.up, self.until = True, float("inf")
