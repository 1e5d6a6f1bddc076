"""What the underlay does: shortest paths by hop count, with every tie a choice.

Heddle's entries lie over eBGP with ECMP. To write only the entries that matter,
to count them beforehand, and to know where a packet without one goes, the next
hops of every switch towards every NIC must be known. NICs that hang off the same
switches are one *place*: a fabric of 24,576 NICs has 1,536. All places are searched
at once, breadth first, with a bit for each place: a step is one OR over the links,
and there are no more steps than the fabric is wide.

Packets do not pass through NICs, so only links between switches count on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np

from heddle_controller.model.arrays import NONE, UNREACHED, Bits, Bools, HopArray, Ints, Reach
from heddle_controller.model.fabric import NodeKind, Structure

_KEPT = 4
"""Underlays kept for one structure: the whole fabric, and it as it was lately."""


@dataclass(frozen=True, slots=True, eq=False)
class Underlay:
    """The underlay of one structure over the arcs that carry."""

    structure: Structure
    carries: Bools
    """Arcs that exist, shape (arcs,)."""
    reach: Reach

    def forwards(self, arcs: Ints, destinations: Ints) -> Bools:
        """Whether each arc is a next hop from its tail towards the NIC beside it."""
        tail, head = self.structure.tail[arcs], self.structure.head[arcs]
        reach, place = self.reach, self.reach.place[destinations]
        if not reach.distance.size:
            return np.zeros(len(arcs), dtype=np.bool_)
        here = reach.distance[reach.row[tail], place]
        nearer = (here > 0) & (reach.distance[reach.row[head], place] == here - 1)
        arrives = (here == 0) & (head == destinations)
        known = (place != NONE) & (here != UNREACHED) & self.carries[arcs]
        result: Bools = known & (nearer | arrives)
        return result

    def only_next_hop(self, arcs: Ints, destinations: Ints) -> Bools:
        """Whether each arc is the only next hop from its tail towards the NIC beside it."""
        reach, place = self.reach, self.reach.place[destinations]
        only = self.forwards(arcs, destinations) & ~reach.twin[arcs]
        if reach.distance.size:
            byte = reach.several[reach.row[self.structure.tail[arcs]], place >> 3]
            only &= (byte >> (7 - (place & 7)).astype(np.uint8)) & 1 == 0
        return only

    def may_loop(self, arcs: Ints, destinations: Ints) -> Bools:
        """Whether what leaves by each arc, and then by the underlay, may come back to its tail.

        Every hop of the underlay is nearer than the one before, so it does only where the head is
        further away than the tail.
        """
        reach, place = self.reach, self.reach.place[destinations]
        if not reach.distance.size:
            return np.zeros(len(arcs), dtype=np.bool_)
        here = reach.distance[reach.row[self.structure.tail[arcs]], place]
        there = reach.distance[reach.row[self.structure.head[arcs]], place]
        result: Bools = (there > here) & (self.structure.head[arcs] != destinations)
        return result

    def is_detour(self, tails: Ints, destinations: Ints, links: Ints) -> Bools:
        """Whether a way of so many links, from each switch to the NIC beside it, is not a shortest.

        Packets on a shortest way of the whole fabric come nearer with every hop, whatever else is
        down. Those on a longer one may be where the underlay, on some fabric, would send them back.
        """
        reach, place = self.reach, self.reach.place[destinations]
        if not reach.distance.size:
            return np.zeros(len(tails), dtype=np.bool_)
        result: Bools = links > reach.distance[reach.row[tails], place].astype(np.int64) + 1
        return result

    def next_hops(self, switch: int, destination: int) -> Ints:
        """Arcs by which a switch forwards to a NIC, in the structure's order."""
        first, arcs = self.structure.out
        own = arcs[first[switch] : first[switch + 1]]
        return own[self.forwards(own, np.full(len(own), destination, dtype=np.int64))]


def underlay(structure: Structure, carries: Bools | None = None) -> Underlay:
    """The underlay over the arcs that carry; over all of them by default.

    The structure keeps what was found for the latest few masks.
    """
    mask = np.ones(len(structure.tail), dtype=np.bool_) if carries is None else carries
    key = np.packbits(mask).tobytes()
    found = structure.reaches.get(key) or _search(structure, mask)
    others = [(one, reach) for one, reach in structure.reaches.items() if one != key]
    structure.keep_reaches(dict([*others[1 - _KEPT :], (key, found)]))
    return Underlay(structure, mask, found)


def needs_entry(structure: Structure, arcs: Ints, destinations: Ints, links: Ints) -> Bools:
    """Whether a hop over each arc, towards the NIC beside it, needs an entry at its tail.

    It does where the underlay, with all links up, would not do just that by itself: where it has a
    choice, or goes elsewhere; and on a way that is longer than the shortest. Whatever links are
    lost, the answer stands for every path that is not: what is left of a shortest path of the whole
    fabric is a shortest one of any part that has it, since none becomes shorter by a loss, and
    whoever had one next hop has no other then. Tails are switches; ``links`` is how many each path
    has from there to the NIC.
    """
    whole = underlay(structure)
    needed = ~whole.only_next_hop(arcs, destinations)
    rest = np.flatnonzero(~needed)
    tails = structure.tail[arcs[rest]]
    needed[rest] = whole.is_detour(tails, destinations[rest], links[rest])
    return needed


def _search(structure: Structure, carries: Bools) -> Reach:
    switch = structure.nodes.kind != NodeKind.NIC
    count = np.count_nonzero(switch)
    row = np.where(switch, np.cumsum(switch) - 1, count)
    place, seats = _places(structure, carries)
    distance = np.full((count + 1, len(seats)), UNREACHED, dtype=np.int16)
    column = np.repeat(np.arange(len(seats)), [len(seat) for seat in seats])
    distance[row[np.array([*chain.from_iterable(seats)], dtype=np.int64)], column] = 0
    arcs = np.flatnonzero(carries & switch[structure.tail] & switch[structure.head])
    several = _spread(row[structure.tail[arcs]], row[structure.head[arcs]], distance)
    twin = _twins(structure, carries & ~switch[structure.head])
    return Reach(place, row, distance, several, twin)


def _twins(structure: Structure, candidates: Bools) -> Bools:
    """Which of the candidate arcs share both their ends with another."""
    arcs = np.flatnonzero(candidates)
    code = structure.tail[arcs] * len(structure.nodes.ids) + structure.head[arcs]
    _, group, count = np.unique(code, return_inverse=True, return_counts=True)
    twin = np.zeros(len(candidates), dtype=np.bool_)
    twin[arcs] = count[group] > 1
    return twin


def _places(structure: Structure, carries: Bools) -> tuple[Ints, list[tuple[int, ...]]]:
    """Place of each node, and the switches of each place."""
    place = np.full(len(structure.nodes.ids), NONE, dtype=np.int64)
    nic = structure.nodes.kind == NodeKind.NIC
    arcs = np.flatnonzero(nic[structure.tail] & carries)
    switches: dict[int, tuple[int, ...]] = {}
    ends = zip(structure.tail[arcs].tolist(), structure.head[arcs].tolist(), strict=True)
    for one, switch in ends:
        switches[one] = tuple(sorted({*switches.get(one, ()), switch}))
    numbers: dict[tuple[int, ...], int] = {}
    for one, seat in switches.items():
        place[one] = numbers.setdefault(seat, len(numbers))
    return place, [*numbers]


def _spread(tail: Ints, head: Ints, distance: HopArray) -> Bits:
    """Fill in the distances, a breadth at a time; say where there is more than one next hop."""
    neighbours = _Neighbours.of(tail, head)
    reached = np.packbits(distance == 0, axis=1)
    edge = reached.copy()
    several: Bits = np.zeros_like(reached)
    step = 0
    while edge.any():
        step += 1
        once, twice = neighbours.gather(edge)
        edge = once & ~reached
        several |= twice & edge
        reached |= edge
        new = np.unpackbits(edge, axis=1, count=distance.shape[1]).view(np.bool_)
        distance[new] = step
    return several


@dataclass(frozen=True, slots=True)
class _Neighbours:
    """Neighbours of each switch by ordinal, switches with many of them first."""

    switches: Ints
    heads: list[Ints]
    """Element ``k``: the ``k``-th neighbour of all switches that have so many."""

    @classmethod
    def of(cls, tail: Ints, head: Ints) -> _Neighbours:
        switches, first, degree = np.unique(np.sort(tail), return_index=True, return_counts=True)
        head = head[np.argsort(tail, kind="stable")]
        order = np.argsort(-degree, kind="stable")
        first, degree = first[order], degree[order]
        widest = int(degree[0]) if len(degree) else 0
        counts = [np.count_nonzero(degree > k) for k in range(widest)]
        return cls(switches[order], [head[first[:m] + k] for k, m in enumerate(counts)])

    def gather(self, edge: Bits) -> tuple[Bits, Bits]:
        """Which places any neighbour of a switch stands for, and which more than one."""
        once: Bits = np.zeros((len(self.switches), edge.shape[1]), dtype=np.uint8)
        twice: Bits = np.zeros_like(once)
        for heads in self.heads:
            seen = edge[heads]
            count = len(heads)
            twice[:count] |= once[:count] & seen
            once[:count] |= seen
        results = np.zeros_like(edge), np.zeros_like(edge)
        results[0][self.switches] = once
        results[1][self.switches] = twice
        return results
