"""Whose pushes may still go to agents from here.

A leader's own go out while its lease holds by this machine's clock: one that was
stopped, or cut off, and goes on, holds its tongue before it has heard of the next.
Those of another replica go out while no greater epoch has been heard of. Agents
refuse what is older than what they have followed in any case; this is for agents
that the next leader has not reached yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


def always(_epoch: int) -> bool:
    """Of a controller that no other can take the place of."""
    return True


class Tenure:
    """The greatest epoch heard of, and whether ours is over."""

    def __init__(self, leads: Callable[[int], bool] = always) -> None:
        self.newest = 0
        self.known = asyncio.Event()
        """Set once it is known who leads, be it us: the wiring serves from then on."""
        self._leads = leads

    def heard(self, epoch: int) -> None:
        """Somebody leads, or led, with this epoch."""
        self.newest = max(self.newest, epoch)
        self.known.set()

    def holds(self, epoch: int) -> bool:
        """Whether the epoch is the newest, as far as anyone here knows."""
        return epoch >= self.newest

    def is_ours(self, epoch: int) -> bool:
        """Whether we lead with this epoch now."""
        return self.holds(epoch) and self._leads(epoch)
