"""How long to wait before the next attempt: longer each time, and not in step with other agents."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off with a cap, in seconds."""

    first: float = 0.2
    longest: float = 5.0

    def delay(self, failures: int, chance: float) -> float:
        """Return the seconds to wait after ``failures`` in a row; ``chance`` is random, 0 to 1.

        The result is between half of the full delay and all of it. So the agents of a controller
        that comes back arrive spread out, and none waits much longer than necessary.
        """
        doublings = min(max(failures - 1, 0), 32)
        return min(self.longest, self.first * 2.0**doublings) * (1 + chance) / 2
