"""A fabric of agents in this process, in real time. Campaigns and the demo break it.

A step returns once the agents that see it have reacted on their own. The caller tells BGP.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle_controller.model.fabric import Fabric
from heddle_emulator.drill.cables import Cables
from heddle_emulator.drill.scenario import CableName, Step
from heddle_emulator.drill.steps import FabricUnderTest
from heddle_emulator.fleet import Fleet
from heddle_emulator.report.evidence import Mark


class LiveFabric(FabricUnderTest):
    """The cables and switches of one fleet."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self._built = fleet.world
        self._down = set(np.flatnonzero(~fleet.world.carries[::2]).tolist())
        """Rows of links that are down in the fabric's file. They stay down."""
        self._cables = Cables()

    @property
    def fabric(self) -> Fabric:
        """Implement ``FabricUnderTest.fabric``."""
        return self._built

    @property
    def broken(self) -> Sequence[int]:
        """Implement ``FabricUnderTest.broken``."""
        return self._cables.broken

    async def begin(self, step: Step, mark: Mark, words: str, target: str) -> None:
        """Implement ``FabricUnderTest.begin``: do nothing, because no report is made."""

    async def cut(self, links: Sequence[int]) -> None:
        """Cut links. The agents at both ends see it."""
        self._cables.cut.update(links)
        await self._change(links)

    async def mend(self, links: Sequence[int]) -> None:
        """Mend links. The agents at both ends see it."""
        self._cables.mend(links)
        await self._change(links)

    async def crash(self, switch: str) -> None:
        """Take power from a switch. Its neighbours see dead links."""
        row, links = self._of(switch)
        await self.fleet.stop(row)
        self._cables.power(links, on=False)
        await self._change(links)

    async def reboot(self, switch: str) -> None:
        """Bring a crashed switch back with an empty table."""
        row, links = self._of(switch)
        self._cables.power(links, on=True)
        await self._change(links)
        self.fleet.boot(row)

    def _of(self, switch: str) -> tuple[int, Sequence[int]]:
        """Return the row of a switch and the rows of its links."""
        structure = self.fabric.structure
        row = structure.index[switch]
        return row, (structure.leaving(row) >> 1).tolist()

    async def _change(self, links: Sequence[int]) -> None:
        """Set the state of links to what their cables carry now."""
        carried = self.fleet.world.carries
        for up in (False, True):
            rows = [
                row
                for row in links
                if self._cables.carries(row) == up != carried[2 * row] and row not in self._down
            ]
            if rows:
                await self.fleet.set_links(rows, up=up)


def cable_name(fabric: Fabric, row: int) -> CableName:
    """Return the name of a link as steps use it."""
    links, ids = fabric.structure.links, fabric.structure.nodes.ids
    return CableName(ids[int(links.a[row])], ids[int(links.b[row])], str(links.key[row]))
