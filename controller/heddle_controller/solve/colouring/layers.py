"""Cables between two neighbouring tiers as a table, from which colours of a plane are made.

Within a connected part of leaves and spines (a zone), or of spines and cores (a plane), every lower
switch is joined to much the same upper switches, by one cable or by several in parallel. An upper
switch is a *slot* of its part. The table tells which cables join a lower switch to a slot. Damage
leaves holes. Colours are slots, repeated in proportion to their speed where speeds differ, so that
equal colours have equal capacity. At each end, flows take parallel cables in turns.

``spread`` gives ways to edges such that no vertex has more than its even share on any way. What
leaves a lost link must be spread evenly over all others at both ends of the link. That is an edge
colouring of the graph whose vertices are the arcs by which paths leave and enter leaves. Most
vertices of this graph have few edges, and then ranks alone tell the edges of a vertex apart: the
rank at one end counts units, the rank at the other counts in steps of the largest rank. Vertices
with too many edges need the exact colouring (``balanced``), which costs more. Beyond some tens of
thousands of edges ranks have to do: they are even on the whole, but not at every vertex.
"""

from __future__ import annotations

import math
from copy import copy

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, distinct, stable_order, starts
from heddle_controller.solve.colouring.balanced import equitable_colouring
from heddle_controller.solve.network import Network

_MOST_COLOURS = 1024
"""Most colours of a part. Where speeds would need more, each slot is one colour."""


class Layer:
    """Cables upwards between two tiers, by lower switch and slot."""

    def __init__(self, network: Network, lower: int, group: Ints | None = None) -> None:
        """Build the table. ``lower`` is the ``NodeKind`` of the lower tier.

        ``group`` numbers the upper nodes. Slots are sorted by group first, so that slot i of two
        parts belongs to the same group where possible.
        """
        level, count = network.level, network.fabric.node_count
        arcs = np.flatnonzero((level[network.tail] == lower) & (level[network.head] == lower + 1))
        tail, head = network.tail[arcs], network.head[arcs]
        self.part = _parts(tail, head, count)
        """Connected part of each node, ``NONE`` for nodes outside the layer."""
        upper = distinct(head)
        groups = np.zeros(len(upper), dtype=np.int64) if group is None else group[upper]
        upper = upper[np.lexsort((upper, groups, self.part[upper]))]
        self._group = np.zeros(len(upper), dtype=np.int64) if group is None else group[upper]
        self.first = np.searchsorted(self.part[upper], np.arange(count + 1))
        """First slot of each part, counted over all parts."""
        slot_of_node = np.full(count, NONE, dtype=np.int64)
        slot_of_node[upper] = np.arange(len(upper)) - self.first[self.part[upper]]
        self.slot_of_arc = np.full(network.arc_count, NONE, dtype=np.int64)
        """Slot of each arc, counted within its part; ``NONE`` outside the layer."""
        self.slot_of_arc[arcs] = slot_of_node[head]
        self.width = np.diff(self.first, append=len(upper))
        """Number of slots of each part."""
        self._speed = _usual_speed(network, arcs, self.first[self.part[tail]] + slot_of_node[head])
        self._tabulate(network, arcs, count)

    def _tabulate(self, network: Network, arcs: Ints, count: int) -> None:
        """Sort cables by lower switch and slot, with usable cables first within these."""
        lowers, row = np.unique(network.tail[arcs], return_inverse=True)
        self._row = np.full(count, len(lowers), dtype=np.int64)
        self._row[lowers] = np.arange(len(lowers))
        self._stride = int(self.width.max(initial=0)) + 1
        place = row * self._stride + self.slot_of_arc[arcs]
        usable = network.usable[arcs]
        order = np.argsort(2 * place + ~usable, kind="stable")
        self._cables = np.append(arcs[order], NONE)
        places = (len(lowers) + 1) * self._stride
        self._count = np.bincount(place[usable], minlength=places)
        self._first = starts(np.bincount(place, minlength=places))

    @property
    def parallel(self) -> int:
        """Most usable cables between any two switches."""
        return int(self._count.max(initial=1))

    def with_states(self, network: Network, arcs: Ints) -> Layer:
        """Return the same cables after the usability of some arcs changed."""
        arcs = arcs[self.slot_of_arc[arcs] != NONE]
        if not len(arcs):
            return self
        other = copy(self)
        other.sort_again(network, arcs)
        return other

    def sort_again(self, network: Network, arcs: Ints) -> None:
        """Sort the cables parallel to some arcs anew, by what is usable now."""
        self._cables, self._count = self._cables.copy(), self._count.copy()
        places = self.places(network.tail[arcs], self.slot_of_arc[arcs])
        for place in distinct(places).tolist():
            low, high = self._first[place : place + 2].tolist()
            cables = np.sort(self._cables[low:high])
            usable = network.usable[cables]
            self._cables[low:high] = np.concatenate([cables[usable], cables[~usable]])
            self._count[place] = np.count_nonzero(usable)

    def colours(self, part: int) -> Ints:
        """Return the slot of each colour of a part, counted within the part."""
        first = int(self.first[part])
        speed = self._speed[first : first + int(self.width[part])]
        milli = np.round(speed * 1000).astype(np.int64)
        repeat = milli // math.gcd(*milli.tolist())
        if repeat.sum() > _MOST_COLOURS:
            repeat = np.ones(len(speed), dtype=np.int64)
        return np.repeat(np.arange(len(speed), dtype=np.int64), repeat)

    def groups(self, part: int) -> Ints:
        """Return the group of each slot of a part."""
        first = int(self.first[part])
        return self._group[first : first + int(self.width[part])]

    def places(self, nodes: Ints, slots: Ints | int) -> Ints:
        """Return a unique number for each slot of each lower switch."""
        return self._row[nodes] * self._stride + slots

    def width_of(self, nodes: Ints, slots: Ints) -> Floats:
        """Return the usable part of each node's cables to each slot, shape (nodes, slots)."""
        place = self.places(nodes[:, None], slots)
        every = np.diff(self._first)[place]
        width: Floats = self._count[place] / np.maximum(every, 1)
        return width

    def line(self, part: int) -> float:
        """Return what each colour of a part carries at most, Gbit/s, if all cables are usable."""
        first, slots = int(self.first[part]), self.colours(part)
        speed = self._speed[first : first + int(self.width[part])]
        return float(speed[slots[0]] / np.count_nonzero(slots == slots[0]))

    def cables(self, nodes: Ints, slots: Ints, turn: Ints) -> Ints:
        """Return the arc from each lower switch to a slot, one of parallel ones by ``turn``.

        ``NONE`` for holes. All shapes are equal.
        """
        place = self.places(nodes, slots)
        count = self._count[place]
        arcs: Ints = self._cables[self._first[place] + turn % np.maximum(count, 1)]
        return np.where(count > 0, arcs, NONE)

    def in_turns(self, nodes: Ints, slots: Ints) -> Ints:
        """Return the arc for each of many flows at once, spread evenly over parallel cables."""
        return self.cables(nodes, slots, ordinals(self.places(nodes, slots)))


def _parts(tail: Ints, head: Ints, count: int) -> Ints:
    """Return the least node row of the connected part of each node, ``NONE`` for lone nodes."""
    label = np.full(count, NONE, dtype=np.int64)
    label[tail], label[head] = tail, head
    while True:
        before = label.copy()
        np.minimum.at(label, head, label[tail])
        np.minimum.at(label, tail, label[head])
        linked = label != NONE
        label[linked] = label[label[linked]]
        if np.array_equal(before, label):
            return label


def _usual_speed(network: Network, arcs: Ints, slot: Ints) -> Floats:
    """Return the median over lower switches of the speed of all their cables to a slot, Gbit/s."""
    nodes = network.fabric.node_count
    pairs, inverse = np.unique(slot * nodes + network.tail[arcs], return_inverse=True)
    speed = np.bincount(inverse, weights=network.fabric.structure.capacity[arcs])
    slots = pairs // nodes
    order = np.lexsort((speed, slots))
    starts = np.flatnonzero(np.diff(slots[order], prepend=-1))
    sizes = np.diff(starts, append=len(order))
    usual: Floats = speed[order][starts + sizes // 2]
    return usual


def ordinals(values: Ints) -> Ints:
    """Return how many equal values come before each value."""
    order = stable_order(values)
    ordered, at = values[order], np.arange(len(values), dtype=np.int64)
    begins = np.ones(len(values), dtype=np.bool_)
    begins[1:] = ordered[1:] != ordered[:-1]
    place = np.empty(len(values), dtype=np.int64)
    place[order] = at - np.maximum.accumulate(np.where(begins, at, 0))
    return place


MOST_EXACT = 50_000
"""Number of edges above which an exact colouring takes longer than the rest of a plan."""


def spread(left: Ints, right: Ints, ways: Ints) -> Ints:
    """Return a way, 0 to ``ways[i] - 1``, for each edge ``left[i] - right[i]``.

    All shapes are equal. Among edges with equally many ways, up to ``MOST_EXACT`` edges, each way
    is used at most ceil(degree / ways) times at every vertex. Vertices are integers from 0 on,
    numbered separately on the two sides.
    """
    result = np.zeros(len(left), dtype=np.int64)
    for count in distinct(ways).tolist():
        rows = np.flatnonzero(ways == count)
        if count > 1:
            result[rows] = _of_equal(left[rows], right[rows], count)
    return result


def _of_equal(left: Ints, right: Ints, count: int) -> Ints:
    first, second = ordinals(left), ordinals(right)
    way = (first + (int(first.max()) + 1) * second) % count
    if len(left) > MOST_EXACT or (_even(left, way, count) & _even(right, way, count)).all():
        return way
    return equitable_colouring(left, right, count)


def _even(vertex: Ints, way: Ints, count: int) -> Bools:
    """Return whether each edge's way is used no more than evenly at the edge's vertex."""
    most = -(-np.bincount(vertex) // count)
    used = np.bincount(vertex * count + way)
    result: Bools = used[vertex * count + way] <= most[vertex]
    return result
