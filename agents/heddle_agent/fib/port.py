"""The Protocol of whatever forwards packets: hardware, a kernel, or memory.

Calls are synchronous, and only one thread at a time makes them. A backend receives only
differences, which are already fenced, de-duplicated and checked against the local links, so it
contains no policy. ``steer`` is the fast path of local repair. Its work may grow with the number of
groups at risk, never with the number of entries.

A repair should not wait for a device that is busy with a long batch. So a backend that implements
``Avoiding`` receives batches in a separate thread, and is told meanwhile which next hops to avoid.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

from heddle_agent.fib.values import Batch, Capability, Count, Failure, Group, Match, Nic, Steering


class Fib(Protocol):
    """A forwarding table that can be programmed."""

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the backend can do."""

    @property
    def table_size(self) -> int:
        """Number of entries that the backend can hold; 0 is unlimited."""

    def apply(self, batch: Batch) -> Sequence[Failure]:
        """Program a batch and return its failures; all other operations succeeded.

        Deleting an entry that does not exist succeeds. An entry whose set failed still forwards as
        before.
        """

    def steer(self, steering: Steering) -> None:
        """Move groups to another of their choices at once, and note which links are down."""

    @property
    def withdrawn(self) -> bool:
        """Whether the overlay is withdrawn, according to the device."""

    def set_overlay(self, *, withdrawn: bool) -> str:
        """Withdraw or restore the overlay in one step; return why that failed, or an empty string.

        While the overlay is withdrawn, no packet is matched against entries and all flows follow
        the underlay. Entries stay, and may still be changed and steered. Like entries, this state
        outlives the process.
        """

    def read_back(self) -> Mapping[Match, Group]:
        """Return the programmed entries, read from the device and not from memory."""

    @property
    def addresses(self) -> Mapping[str, str]:
        """IP address by NIC, as the entries are programmed; empty if entries need no addresses."""

    def refresh(self) -> None:
        """Restore what others have changed in the device; cheap if nobody has changed anything."""

    def counters(self) -> Mapping[Match, Count]:
        """Return what each programmed entry has carried; empty without the capability COUNTERS.

        Raises OSError if the device cannot be read now, for example while others change it.
        """

    def close(self) -> None:
        """Release sockets and handles. Entries stay (fail-static)."""


@runtime_checkable
class Avoiding(Protocol):
    """A backend whose methods, other than ``avoid``, may be called from another thread.

    While one of these methods runs, only ``avoid``, ``counters`` and ``unmatched`` may be called.
    """

    def avoid(self, hops: Collection[tuple[str, str]]) -> None:
        """Let nothing leave by these next hops (neighbour, key) until ``steer`` is called.

        This takes effect at once, while another thread is in any other method, and also for entries
        that the method is about to program. Flows fall to their backups, or to the underlay.
        """


@runtime_checkable
class Detouring(Protocol):
    """A backend that can lead flows around lost links when primary and backup are both lost."""

    def detour(self, groups: Mapping[Group, Collection[tuple[str, str]]]) -> None:
        """Keep groups on the underlay from leaving by their given next hops (neighbour, key).

        The call replaces all earlier detours. If the underlay has no other next hop, or the backend
        cannot see how the underlay forwards, it changes nothing for that group.
        """


@runtime_checkable
class Metering(Protocol):
    """A backend with the capability UNMATCHED, which counts packets that match no entry.

    Only pairs of NICs with much traffic are worth a counter, and at most ``PAIRS_COUNTED`` pairs
    are counted. A backend may miss the first packets of a pair. It counts all that follow, until
    the pair has been quiet for at least a minute.
    """

    def meter(self, sources: Collection[Nic]) -> None:
        """Count unmatched packets of exactly these source NICs from now on, by destination."""

    def unmatched(self) -> Mapping[tuple[Nic, Nic], Count]:
        """Return what each (source, destination) pair has sent since it was first noticed.

        Raises OSError as ``Fib.counters`` does.
        """
