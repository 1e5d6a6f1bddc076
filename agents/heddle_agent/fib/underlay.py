"""What lies under every flow: plain routes with equal-cost next hops, hashed by 5-tuple.

Who computes the routes is the host's affair: the kernel and BGP on a switch, the emulator in a
simulated fabric. Here is only the choice among equals, for one packet and for arrays of them.
Next hops over local links that are down are passed over, as the kernel does with
``ignore_routes_with_linkdown``; whatever fails farther away is BGP's to find out.
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
        """Equal-cost next hops towards a NIC; empty where there is no route."""


@runtime_checkable
class TabledUnderlay(Protocol):
    """Routes that can be told for arrays of destinations, where asking one by one takes long."""

    def table(self, destinations: Ints, dead: Collection[int]) -> tuple[Ints, Ints, Ints]:
        """Sets of live next hops as a matrix, their sizes, and the set of each destination.

        Next hops are indices into those of the FIB, ascending in a row and then ``DROPPED``;
        ``dead`` ones are left out. Destinations are ids in the FIB's ``NicIds``.
        """


class DirectUnderlay:
    """Routes to neighbours and nothing beyond: an agent in memory without a fabric around it."""

    def __init__(self, next_hops: Sequence[NextHop]) -> None:
        self._hops = {
            hop.node: tuple(h for h in next_hops if h.node == hop.node) for hop in next_hops
        }

    def next_hops(self, destination: str) -> Sequence[NextHop]:
        """The links to the destination where it is a neighbour."""
        return self._hops.get(destination, ())


class Ecmp:
    """The hashing choice of one switch over its underlay; answers index into its next hops."""

    def __init__(
        self, underlay: Underlay, rows: Mapping[tuple[str, str], int], seed: int, names: NicIds
    ) -> None:
        self._underlay = underlay
        self._tabled = underlay if isinstance(underlay, TabledUnderlay) else None
        self._rows = rows
        self._seed = seed
        self._names = names

    def one(self, packet: Packet, dead: Collection[int]) -> int:
        """Where a packet leaves; ``dead`` are next hops whose link is down."""
        alive = self._alive(self._underlay.next_hops(packet.destination), dead)
        if not alive:
            return DROPPED
        return alive[choose(flow_hash(self._seed, *packet), len(alive))]

    def many(self, packets: Packets, dead: Collection[int]) -> Ints:
        """Where packets leave, one element each."""
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
        """Distinct sets of live next hops as a padded matrix, their sizes, and each target's."""
        known: dict[int, int] = {}
        held: list[Sequence[NextHop]] = []  # keeps each sequence alive, so that its id stays its
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
