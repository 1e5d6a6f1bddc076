"""The port to whatever forwards packets: hardware, a kernel, or memory.

Calls are synchronous and made by one thread at a time. A backend is handed differences only,
already fenced, de-duplicated and checked against the local links, so that it holds no policy.
``steer`` is the fast path of local repair: its work may grow with the groups at risk, never with
the entries.

A device that takes its time over a batch should not make repair wait for it: a backend that can
``avoid`` is handed batches in a thread of their own, and told what to avoid in the meantime.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from heddle_agent.fib.values import Batch, Capability, Count, Failure, Group, Match, Nic, Steering


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

    @property
    def withdrawn(self) -> bool:
        """Whether the overlay is withdrawn, as the device says."""

    def set_overlay(self, *, withdrawn: bool) -> str:
        """In one step, have no packet matched against entries any more, or all of them again.

        Entries stay, and may be changed and steered meanwhile; the underlay has all flows. How it
        stands outlives this process as entries do. Why it could not be done; empty if it was.
        """

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


@runtime_checkable
class Avoiding(Protocol):
    """What a backend can besides, whose other methods may then be called from another thread.

    Only ``counters`` and ``unmatched`` may be called while anything but ``avoid`` is.
    """

    def avoid(self, hops: Collection[tuple[str, str]]) -> None:
        """At once, let nothing leave by these next hops (neighbour, key), until ``steer``.

        Takes effect while another thread is in any other method, and for what that is about to
        program. Entries fall to their backups, or to the underlay.
        """


@runtime_checkable
class Detouring(Protocol):
    """What a backend can do besides for flows whose primary and backup are both lost."""

    def detour(self, groups: Mapping[Group, Collection[tuple[str, str]]]) -> None:
        """For a while, have groups that are on the underlay not leave by these next hops.

        No other group takes a detour afterwards. Where the underlay has no other next hop, or the
        backend does not see how it forwards, it is left as it is.
        """


@runtime_checkable
class Metering(Protocol):
    """What a backend with UNMATCHED can do: count what passes without an entry.

    Only pairs of NICs with much traffic are worth a counter, and there are ``PAIRS_COUNTED`` at
    most. A backend may overlook a pair's first packets; it counts all that follow, until the pair
    is quiet for a minute or more.
    """

    def meter(self, sources: Collection[Nic]) -> None:
        """From now on, count unmatched packets of these NICs, by destination, and of no others."""

    def unmatched(self) -> Mapping[tuple[Nic, Nic], Count]:
        """What each pair sent, source first, since it was noticed."""
