"""The ports by which controllers on one store know of each other.

Replicas share the store and nothing else: there is no port of one that another dials,
so there is none to secure. One leads, by a lease that the store gives out; all serve,
and agents have a session with each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Leader:
    """The controller that leads, or led last."""

    epoch: int = 0
    """0 before the first."""
    holder: str = ""
    """For people."""


Following: TypeAlias = Callable[[Leader], None]
"""Takes the leader whom this controller follows."""


def heed_nobody(_leader: Leader) -> None:
    """What is done about a leader where nobody asks."""


class Succession(Protocol):
    """What there is to know of leadership without having it."""

    def leads(self, epoch: int) -> bool:
        """Whether nobody else can lead yet, by this machine's clock: asks nobody.

        A process that was stopped and goes on finds its lease over before it has heard
        of the next leader.
        """
        ...

    async def leader(self) -> Leader:
        """The one with the newest epoch; it may be gone by now. Raises ``Unavailable``."""
        ...


class Freshness(Protocol):
    """Whether reads are of now."""

    def stale_for(self) -> float:
        """Seconds since the store was last heard, while it cannot be; 0.0 where all is well.

        Meanwhile reads that can be are answered from what this replica knew last.
        """
        ...
