"""Agents that hear of lost links at once, without the datagrams that would carry the news.

Where 3,072 NICs are joined, one lost link is 12,000 datagrams, signed and checked each, most
of them to switches that know already. What carries notices is tested elsewhere, with every
datagram; here a thousand failures shall be had in minutes, and what is of interest is what
tables do with the news. ``Campaign.datagrams`` has the real thing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle_agent.fib import Link
from heddle_emulator.fleet import Fleet


class InstantNoticeFleet(Fleet):
    """As ``Fleet`` without notices, but every agent is told of every link that changes."""

    async def set_links(self, rows: Sequence[int], *, up: bool) -> None:
        """Change links; those at their ends act first, as they are the ones that see it."""
        await super().set_links(rows, up=up)
        for row in rows:
            link = self._link(row)
            for switch in self._running:
                if switch not in self._ends(row):
                    self.agents[switch].link_notice(link, up=up)

    def boot(self, switch: int) -> None:
        """Start an agent; its peers tell it what is down."""
        super().boot(switch)
        for row in np.flatnonzero(~self.world.carries[::2]).tolist():
            if switch not in self._ends(row):
                self.agents[switch].link_notice(self._link(row), up=False)

    def _link(self, row: int) -> Link:
        a, b = self._ends(row)
        ids, keys = self.world.structure.nodes.ids, self.world.structure.links.key
        return Link.between(ids[a], ids[b], str(keys[row]))
