"""The ports by which controllers on one store know of each other.

Replicas share the store and nothing else: there is no port of one that another dials,
so there is none to secure. One leads, by a lease that the store gives out; all serve.

Post between replicas is fast and kept nowhere. What cannot be delivered is lost, and
whoever reads is told that something may have been: the two then begin anew from what
each has. So nothing waits for a replica that is gone, nothing piles up for one that is
slow, and a store that lost its memory has lost nothing of this.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Leader:
    """Who leads, or led last."""

    epoch: int = 0
    """0 before the first."""
    holder: str = ""
    """For people."""


class Succession(Protocol):
    """What there is to know of leadership without having it."""

    def leads(self, epoch: int) -> bool:
        """Whether nobody else can lead yet, by this machine's clock: asks nobody.

        A process that was stopped and goes on finds its lease over before it has heard
        of the next leader.
        """
        ...

    async def leader(self) -> Leader:
        """Who has the newest epoch; that one may be gone by now. Raises ``Unavailable``."""
        ...


class Freshness(Protocol):
    """Whether reads are of now."""

    def stale_for(self) -> float:
        """Seconds since the store was last heard, while it cannot be; 0.0 where all is well.

        Meanwhile reads that can be are answered from what this replica knew last.
        """
        ...


class Relay(Protocol):
    """Post among the replicas of one store."""

    async def send(self, box: str, letter: bytes) -> int:
        """Hand a letter to all who read a box now; how many they are.

        Letters of one sender to boxes of one reader arrive in the order of the calls.
        Raises ``Unavailable``: then it may have arrived or not.
        """
        ...

    def letters(self, *boxes: str) -> AsyncIterator[bytes | None]:
        """Letters to some boxes from now on; None first, and where some may have been lost.

        Ends when the store is closed. Where the store cannot be reached, it is tried
        again until it can, and then None comes.
        """
        ...
