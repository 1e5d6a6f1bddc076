"""How long to wait before the next attempt: longer each time, never in step with other agents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off with a cap; all in seconds."""

    first: float = 0.2
    longest: float = 5.0

    def delay(self, failures: int, chance: float) -> float:
        """Seconds to wait after so many failures in a row; ``chance`` is 0 to 1, and random.

        Between half of the full delay and all of it: a controller that comes back meets its
        agents spread out, and none waits much longer than it must.
        """
        doublings = min(max(failures - 1, 0), 32)
        return min(self.longest, self.first * 2.0**doublings) * (1 + chance) / 2
