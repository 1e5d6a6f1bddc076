"""Who has proven to speak now, and not in a recording.

Every agent draws a token when it starts. A datagram that bears the receiver's own token was made
after the receiver started, so that recordings from before are worth nothing. Within that time a
sender's counter tells each datagram from its copies, and tokens that a sender had in earlier starts
are not believed again. No clock is compared with anybody else's.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW = 1024
"""Datagrams of one sender that may overtake each other."""
_REMEMBERED = 32


@dataclass(slots=True)
class Sender:
    """What is known of one other agent by its datagrams."""

    token: int = 0
    """Of its present start; 0 until it has proven one."""
    _highest: int = 0
    _seen: int = 0
    """Bit n: the counter n below the highest was seen."""
    _former: deque[int] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))

    def fresh(self, token: int, counter: int) -> bool:
        """Take in a datagram that bears our own token; False if it is a copy or of the past."""
        if token != self.token:
            if token in self._former:
                return False
            if self.token:
                self._former.append(self.token)
            self.token, self._highest, self._seen = token, counter, 1
            return True
        ahead = counter - self._highest
        if ahead > 0:
            self._seen = ((self._seen << min(ahead, WINDOW)) | 1) & ((1 << WINDOW) - 1)
            self._highest = counter
            return True
        if -ahead >= WINDOW or self._seen >> -ahead & 1:
            return False
        self._seen |= 1 << -ahead
        return True
