"""The port to whatever forwards packets: hardware, a kernel, or memory.

Calls are synchronous and made from one thread. A backend is handed differences only, already
fenced, de-duplicated and checked against the local links, so that it holds no policy. ``steer`` is
the fast path of local repair: its work may grow with the groups at risk, never with the entries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from heddle_agent.fib.values import Batch, Capability, Count, Failure, Group, Match, Steering


class Fib(Protocol):
    """A forwarding table that can be programmed."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What it can do."""

    @property
    def table_size(self) -> int:
        """Entries it can hold; 0 is unlimited."""

    def apply(self, batch: Batch) -> Sequence[Failure]:
        """Program a batch; what is not in the answer succeeded. Deleting what is not there does.

        An entry whose set failed still forwards as before.
        """

    def steer(self, steering: Steering) -> None:
        """Move groups to another of their choices at once, and heed links that are down."""

    def read_back(self) -> Mapping[Match, Group]:
        """What is programmed, as the device says, not as we remember."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """IP address by NIC, as its entries are programmed; without those it has no need of."""

    def refresh(self) -> None:
        """Put back what others have changed beneath us; cheap where nobody has."""

    def counters(self) -> Mapping[Match, Count]:
        """What the programmed entries have carried; without COUNTERS, empty."""

    def close(self) -> None:
        """Let go of sockets and handles; entries stay (fail-static)."""
