"""A FIB backend in a hundred lines, and its bench: a switch that is a dictionary.

To run every conformance case on it, enter in this folder:

    heddle-agent conformance --backend plain_switch:PlainBench

For your own backend, replace the dictionary by calls of your device, and let ``where`` send packets
through it. ``heddle_agent.fib.Fib`` says what each method promises, and
``heddle_agent.conformance.bench`` what a bench is.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from heddle_agent.conformance import SPINES, Bench, uplink
from heddle_agent.fib import (
    Batch,
    Capability,
    Choice,
    Count,
    Failure,
    Fib,
    Group,
    Link,
    Match,
    NextHop,
    Packet,
    Reason,
    Steering,
)


class PlainFib:
    """Entries in a dictionary. It counts nothing, and does not claim to."""

    capabilities = frozenset(Capability) - {Capability.COUNTERS, Capability.UNMATCHED}

    def __init__(self, ports: Sequence[NextHop], table_size: int) -> None:
        self.ports, self.table_size, self.withdrawn = ports, table_size, False
        self.entries: dict[Match, Group] = {}
        self.choices: dict[Group, Choice] = {}  # groups that were steered or diverted
        self.down: frozenset[Link] = frozenset()
        self.addresses: dict[str, str] = {}

    def apply(self, batch: Batch) -> Sequence[Failure]:
        """Delete first, which makes room; this device takes a batch in one step anyway."""
        failures = []
        for match in batch.deletes:
            self.entries.pop(match, None)
        for match, group in batch.sets.items():
            hops = (group.primary, group.backup or group.primary)
            stranger = next((hop for hop in hops if hop not in self.ports), None)
            full = self.table_size and len(self.entries) >= self.table_size
            if stranger is not None:
                text = f"no port leads to {stranger.node}"
                failures.append(Failure(match, Reason.UNKNOWN_NEXT_HOP, text))
            elif match not in self.entries and full:
                failures.append(Failure(match, Reason.TABLE_FULL, f"{self.table_size} entries"))
            else:
                self.entries[match] = group
        self.choices.update(batch.diverted)
        self.addresses.update(batch.addresses)
        return failures

    def steer(self, steering: Steering) -> None:
        """Move groups and leave entries alone, so the work does not grow with the entries."""
        self.choices.update(steering.choices)
        self.down = steering.down

    def set_overlay(self, *, withdrawn: bool) -> str:
        """Set one flag for all entries."""
        self.withdrawn = withdrawn
        return ""

    def read_back(self) -> Mapping[Match, Group]:
        """Return what the device holds; here, what we keep."""
        return dict(self.entries)

    def refresh(self) -> None:
        """Do nothing, because nobody else writes here."""

    def counters(self) -> Mapping[Match, Count]:
        """Return nothing, because COUNTERS is not claimed."""
        return {}

    def close(self) -> None:
        """Do nothing, because there is nothing to release. Entries stay."""


class PlainBench:
    """Evaluates lookups instead of sending packets."""

    def __init__(self, table_size: int) -> None:
        self.plain = PlainFib(SPINES, table_size)
        self.fib: Fib = self.plain

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.fib.close()

    def where(self, packet: Packet) -> NextHop | None:
        """Follow the entry with these ports, else that of the pair, else the underlay's hash."""
        pair = (packet.source, packet.destination)
        exact = (*pair, packet.source_port, packet.destination_port)
        group = self.plain.entries.get(exact) or self.plain.entries.get((*pair, 0, 0))
        choice = self.plain.choices.get(group, Choice.PRIMARY) if group else Choice.UNDERLAY
        if group and not self.plain.withdrawn and choice is not Choice.UNDERLAY:
            return group.backup if choice is Choice.BACKUP else group.primary
        up = [hop for at, hop in enumerate(SPINES) if uplink(at) not in self.plain.down]
        return up[zlib.crc32(repr(packet).encode()) % len(up)] if up else None

    def carry(self, packet: Packet, number: int, size: int) -> None:
        """Do nothing, because nothing is counted."""

    def links(self, down: frozenset[Link], choices: dict[Group, Choice]) -> None:
        """Steer only: there is no carrier that could be lost."""
        self.fib.steer(Steering(choices, down))
