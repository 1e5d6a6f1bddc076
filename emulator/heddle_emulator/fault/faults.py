"""Faults as values: what breaks, told apart from when and in which order.

To strike is to change the world; what agents see of it is the world's affair. A
fault that is mended leaves the fabric as it was before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from heddle_controller.model.fabric import State
from heddle_emulator.fleet import Fleet


class Fault(Protocol):
    """Something that breaks, and can be mended."""

    async def strike(self, fleet: Fleet) -> None:
        """Break it; returns when the agents that see it have done what they do on their own."""

    async def mend(self, fleet: Fleet) -> None:
        """Make it whole again; returns as ``strike`` does."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """Links that lose their carrier at the same moment, by row."""

    links: tuple[int, ...]

    async def strike(self, fleet: Fleet) -> None:
        """Both ends of each see it."""
        await fleet.set_links(self.links, up=False)

    async def mend(self, fleet: Fleet) -> None:
        """Both ends of each see it."""
        await fleet.set_links(self.links, up=True)


@dataclass(slots=True)
class SwitchDown:
    """A switch without power: its agent and its table are gone, its neighbours see dead links."""

    switch: int
    """Node row."""
    _lost: tuple[int, ...] = ()

    async def strike(self, fleet: Fleet) -> None:
        """Links that were down before are remembered, and stay down when it is mended."""
        links, world = fleet.world.structure.links, fleet.world
        own = (links.a == self.switch) | (links.b == self.switch)
        self._lost = tuple(np.flatnonzero(own & (world.effective != State.DOWN)).tolist())
        await fleet.stop(self.switch)
        await fleet.set_links(self._lost, up=False)

    async def mend(self, fleet: Fleet) -> None:
        """It comes back with an empty table."""
        await fleet.set_links(self._lost, up=True)
        fleet.boot(self.switch)
