"""Whether pushes and orders of an epoch may still go to agents from here.

They go out while our lease holds by this machine's clock: a controller that was stopped, or cut
off, and goes on, sends nothing before it has heard who leads now. Agents refuse what is older
than what they have followed in any case; this is for agents that the next leader has not reached
yet.
"""

from __future__ import annotations

from collections.abc import Callable


def always(_epoch: int) -> bool:
    """The guard of a controller that no other can take the place of."""
    return True


class EpochGuard:
    """The greatest epoch heard of, and whether ours is over."""

    def __init__(self, leads: Callable[[int], bool] = always) -> None:
        self.newest = 0
        self._ours = 0
        self._leads = leads

    def heard(self, epoch: int) -> None:
        """Somebody leads, or led, with this epoch."""
        self.newest = max(self.newest, epoch)

    def lead(self, epoch: int) -> None:
        """We lead with this epoch."""
        self.heard(epoch)
        self._ours = epoch

    def is_ours(self, epoch: int) -> bool:
        """Whether we lead with this epoch now."""
        return epoch >= self.newest and self._leads(epoch)

    @property
    def leading(self) -> int:
        """The epoch with which we lead now; 0 while we do not."""
        return self._ours if self._ours and self.is_ours(self._ours) else 0
