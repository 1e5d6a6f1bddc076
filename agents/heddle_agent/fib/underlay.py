"""The routes under every flow: equal-cost next hops, chosen by a hash of the 5-tuple.

The routes themselves come from outside: from the kernel and BGP on a switch, from the emulator in a
simulated fabric. This module only chooses among equal next hops, for one packet or for arrays of
packets. It leaves out next hops over local links that are down, as the kernel does with
``ignore_routes_with_linkdown``. Failures farther away are left to BGP.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, runtime_checkable

import numpy as np

from heddle_agent.fib.hashing import Ints, choose, chosen, flow_hash, flow_hashes
from heddle_agent.fib.names import NicIds, Packets
from heddle_agent.fib.values import NextHop, Packet

DROPPED = -1


class Underlay(Protocol):
    """The routes of one switch."""

    def next_hops(self, destination: str) -> Sequence[NextHop]:
        """Return the equal-cost next hops towards a NIC; empty if there is no route."""


@runtime_checkable
class TabledUnderlay(Protocol):
    """An underlay that answers for arrays of destinations, where single queries are slow."""

    def table(self, destinations: Ints, dead: Collection[int]) -> tuple[Ints, Ints, Ints]:
        """Return sets of live next hops as a matrix, their sizes, and each destination's set.

        Each matrix row is one set: indices into the FIB's next hops, ascending, then ``DROPPED`` as
        padding. Next hops in ``dead`` are left out. Destinations are ids in the FIB's ``NicIds``.
        """


class DirectUnderlay:
    """Routes to neighbours only, for an agent in memory without a fabric around it."""

    def __init__(self, next_hops: Sequence[NextHop]) -> None:
        self._hops = {
            hop.node: tuple(h for h in next_hops if h.node == hop.node) for hop in next_hops
        }

    def next_hops(self, destination: str) -> Sequence[NextHop]:
        """Return the links to the destination; empty if it is not a neighbour."""
        return self._hops.get(destination, ())


class Ecmp:
    """The hashing choice of one switch over its underlay; results index its next hops."""

    def __init__(
        self, underlay: Underlay, rows: Mapping[tuple[str, str], int], seed: int, names: NicIds
    ) -> None:
        self._underlay = underlay
        self._tabled = underlay if isinstance(underlay, TabledUnderlay) else None
        self._rows = rows
        self._seed = seed
        self._names = names

    def one(self, packet: Packet, dead: Collection[int]) -> int:
        """Return the index of a packet's next hop, or DROPPED; ``dead`` next hops are left out."""
        alive = self._alive(self._underlay.next_hops(packet.destination), dead)
        if len(alive) <= 1:
            return alive[0] if alive else DROPPED
        return alive[choose(flow_hash(self._seed, *packet), len(alive))]

    def many(self, packets: Packets, dead: Collection[int]) -> Ints:
        """Return ``one`` for arrays: the index of each packet's next hop, or DROPPED."""
        if self._tabled is not None:
            hops, count, row = self._tabled.table(packets.destination, dead)
        else:
            targets, target = np.unique(packets.destination, return_inverse=True)
            hops, count, which = self._resolve(targets, dead)
            row = which[target]
        hashes = self._names.hashes
        values = flow_hashes(
            self._seed,
            hashes[packets.source],
            hashes[packets.destination],
            packets.source_port,
            packets.destination_port,
        )
        return hops[row, chosen(values, count[row])]

    def _resolve(self, targets: Ints, dead: Collection[int]) -> tuple[Ints, Ints, Ints]:
        """Return the distinct sets of live next hops of the targets.

        They are a padded matrix, the size of each set, and the row of each target's set.
        """
        known: dict[int, int] = {}
        held: list[Sequence[NextHop]] = []  # keeps sequences alive, so that no id is used twice
        which = np.empty(len(targets), dtype=np.int64)
        for row, target in enumerate(targets.tolist()):
            hops = self._underlay.next_hops(self._names.name(target))
            which[row] = known.setdefault(id(hops), len(held))
            if which[row] == len(held):
                held.append(hops)
        sets = [self._alive(hops, dead) for hops in held]
        count = np.array([len(rows) for rows in sets], dtype=np.int64)
        matrix = np.full((len(sets), max(1, *count) if len(count) else 1), DROPPED, dtype=np.int64)
        for row, alive in enumerate(sets):
            matrix[row, : len(alive)] = alive
        return matrix, count, which

    def _alive(self, hops: Sequence[NextHop], dead: Collection[int]) -> list[int]:
        try:
            rows = [self._rows[hop.port] for hop in hops]
        except KeyError as error:
            node, key = error.args[0]
            raise ValueError(
                f"the underlay names next hop {node} key {key}, to which this switch has no link;"
                " give the switch that link or mend the underlay"
            ) from error
        return [row for row in rows if row not in dead] if dead else rows
