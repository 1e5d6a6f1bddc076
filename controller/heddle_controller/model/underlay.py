"""What the underlay does: it forwards along all shortest paths, counted in hops.

Heddle's entries override an underlay of eBGP with ECMP. The next hops of every switch towards every
NIC must be known to write only the entries that matter, to count them beforehand, and to know where
a packet without an entry goes.

NICs that are attached to the same switches form one *place*: a fabric of 24,576 NICs has 1,536. One
breadth-first search covers all places at once, with a bit for each place. A step of it is one OR
over the links, and there are as many steps as the longest shortest path has hops.

Packets do not pass through NICs, so paths use only links between switches, except at their ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

import numpy as np

from heddle_controller.model.arrays import NONE, UNREACHED, Bits, Bools, HopArray, Ints, Reach
from heddle_controller.model.fabric import NodeKind, Structure

_KEPT = 4
"""How many search results each structure keeps, for different sets of arcs."""


@dataclass(frozen=True, slots=True, eq=False)
class Underlay:
    """The underlay of one structure over the arcs that carry."""

    structure: Structure
    carries: Bools
    """Marks the arcs that forward packets, shape (arcs,)."""
    reach: Reach

    def forwards(self, arcs: Ints, destinations: Ints) -> Bools:
        """Return whether ``arcs[i]`` is a next hop from its tail to the NIC ``destinations[i]``."""
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
        """Return whether ``arcs[i]`` is the only next hop from its tail to ``destinations[i]``."""
        reach, place = self.reach, self.reach.place[destinations]
        only = self.forwards(arcs, destinations) & ~reach.twin[arcs]
        if reach.distance.size:
            byte = reach.several[reach.row[self.structure.tail[arcs]], place >> 3]
            only &= (byte >> (7 - (place & 7)).astype(np.uint8)) & 1 == 0
        return only

    def may_loop(self, arcs: Ints, destinations: Ints) -> Bools:
        """Return whether a packet to ``destinations[i]`` over ``arcs[i]`` may return to its tail.

        It is sent over the arc and then by the underlay. Every hop of the underlay brings a packet
        nearer, so it can come back only if the head is further away than the tail.
        """
        reach, place = self.reach, self.reach.place[destinations]
        if not reach.distance.size:
            return np.zeros(len(arcs), dtype=np.bool_)
        here = reach.distance[reach.row[self.structure.tail[arcs]], place]
        there = reach.distance[reach.row[self.structure.head[arcs]], place]
        result: Bools = (there > here) & (self.structure.head[arcs] != destinations)
        return result

    def is_detour(self, tails: Ints, destinations: Ints, links: Ints) -> Bools:
        """Return whether each path is longer than the shortest path.

        Packets on a shortest path of the whole fabric come nearer with every hop, whatever else is
        down. A longer path may pass a switch where the underlay, after some loss, would send them
        back.

        Args:
            tails: Node row of the switch where each path begins.
            destinations: Node row of the NIC where it ends.
            links: Its number of links.
        """
        reach, place = self.reach, self.reach.place[destinations]
        if not reach.distance.size:
            return np.zeros(len(tails), dtype=np.bool_)
        result: Bools = links > reach.distance[reach.row[tails], place].astype(np.int64) + 1
        return result

    def next_hops(self, switch: int, destination: int) -> Ints:
        """Return the arcs by which a switch forwards to a NIC, in the order of ``out``."""
        own = self.structure.leaving(switch)
        return own[self.forwards(own, np.full(len(own), destination, dtype=np.int64))]


def underlay(structure: Structure, carries: Bools | None = None) -> Underlay:
    """Return the underlay over the arcs that carry packets, by default over all arcs.

    The structure keeps the results for the masks that were used last.

    Args:
        structure: Nodes and links.
        carries: Marks the arcs that carry packets, shape (arcs,).
    """
    mask = np.ones(len(structure.tail), dtype=np.bool_) if carries is None else carries
    key = np.packbits(mask).tobytes()
    found = structure.reaches.get(key) or _search(structure, mask)
    others = [(one, reach) for one, reach in structure.reaches.items() if one != key]
    structure.keep_reaches(dict([*others[1 - _KEPT :], (key, found)]))
    return Underlay(structure, mask, found)


def needs_entry(structure: Structure, arcs: Ints, destinations: Ints, links: Ints) -> Bools:
    """Return whether each hop of a path needs an entry at the switch that it leaves.

    It needs one if the underlay, with all links up, has a choice of next hops there or uses another
    one, or if the path is longer than the shortest. The answer stays right for every path that
    survives, whatever links are lost: a loss makes no other path shorter, so a shortest path of the
    whole fabric stays a shortest one, and a switch with one next hop gets no other.

    Args:
        structure: Nodes and links.
        arcs: The hops; each leaves a switch.
        destinations: Node row of the NIC that each path leads to.
        links: How many links each path has from the tail of its arc to that NIC.
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
    """Mark the candidate arcs that have the same tail and head as another candidate."""
    arcs = np.flatnonzero(candidates)
    code = structure.tail[arcs] * len(structure.nodes.ids) + structure.head[arcs]
    _, group, count = np.unique(code, return_inverse=True, return_counts=True)
    twin = np.zeros(len(candidates), dtype=np.bool_)
    twin[arcs] = count[group] > 1
    return twin


def _places(structure: Structure, carries: Bools) -> tuple[Ints, list[tuple[int, ...]]]:
    """Return the place of each node (``NONE`` if it has none) and the switches of each place."""
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
    """Fill ``distance`` by breadth-first search; return the bits of ``Reach.several``."""
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
    """Neighbours of each switch, with the switches that have the most neighbours first."""

    switches: Ints
    heads: list[Ints]
    """Element ``k`` holds the ``k``-th neighbour of each switch that has more than ``k``."""

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
        """Return, for each switch, the bits set in any neighbour's row, and in more than one's."""
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
