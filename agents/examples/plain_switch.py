"""A FIB backend in a hundred lines, and its bench: a switch that is a dictionary.

    heddle-agent conformance --backend plain_switch:PlainBench

in this folder runs every case of the agent on it. A backend of yours replaces the dictionary by
calls of your device, and ``where`` by packets that you send through it. What a method promises
stands in ``heddle_agent.fib.Fib``; what a bench is, in ``heddle_agent.conformance.bench``.
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
        self.choices: dict[Group, Choice] = {}  # of groups that are not on their primary
        self.down: frozenset[Link] = frozenset()
        self.addresses: dict[str, str] = {}

    def apply(self, batch: Batch) -> Sequence[Failure]:
        """Deletes first, as they make room; the device takes a batch in one step anyway."""
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
        """Groups move, entries stay: the work does not grow with the entries."""
        self.choices.update(steering.choices)
        self.down = steering.down

    def set_overlay(self, *, withdrawn: bool) -> str:
        """One flag for all entries."""
        self.withdrawn = withdrawn
        return ""

    def read_back(self) -> Mapping[Match, Group]:
        """What the device says; here it is what we keep."""
        return dict(self.entries)

    def refresh(self) -> None:
        """Nobody else writes here."""

    def counters(self) -> Mapping[Match, Count]:
        """None."""
        return {}

    def close(self) -> None:
        """Nothing to let go of; entries stay."""


class PlainBench:
    """Evaluates, in place of sending packets."""

    def __init__(self, table_size: int) -> None:
        self.plain = PlainFib(SPINES, table_size)
        self.fib: Fib = self.plain

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.fib.close()

    def where(self, packet: Packet) -> NextHop | None:
        """By the entry with its ports, else by that of its pair, else by the underlay's hash."""
        pair = (packet.source, packet.destination)
        exact = (*pair, packet.source_port, packet.destination_port)
        group = self.plain.entries.get(exact) or self.plain.entries.get((*pair, 0, 0))
        choice = self.plain.choices.get(group, Choice.PRIMARY) if group else Choice.UNDERLAY
        if group and not self.plain.withdrawn and choice is not Choice.UNDERLAY:
            return group.backup if choice is Choice.BACKUP else group.primary
        up = [hop for at, hop in enumerate(SPINES) if uplink(at) not in self.plain.down]
        return up[zlib.crc32(repr(packet).encode()) % len(up)] if up else None

    def carry(self, packet: Packet, number: int, size: int) -> None:
        """Nothing counts here."""

    def links(self, down: frozenset[Link], choices: dict[Group, Choice]) -> None:
        """The agent steers; there is no carrier that could be lost by itself."""
        self.fib.steer(Steering(choices, down))
