"""Two neighbouring tiers as a table: what makes colouring planes out of spines.

Within a connected part of leaves and spines (a zone), or of spines and cores (a
plane), every lower switch sees the same upper switches over the same cables, more
or less. A *slot* is one such cable position: an upper switch and, where links run
parallel, which of them. The table says which arc of which lower switch fills a
slot; damage leaves holes. Colours are slots, repeated in proportion to their
speed where speeds differ, so that equal colours are equal capacity.
"""

from __future__ import annotations

import math

import numpy as np

from heddle_controller.model.fabric import NONE, Ints
from heddle_controller.solve.network import Network

MOST_COLOURS = 1024
"""Beyond so many, speeds have no useful common measure: each slot is one colour."""


class Layer:
    """Arcs upwards between two tiers, by lower switch and slot."""

    def __init__(self, network: Network, lower: int, group: Ints | None = None) -> None:
        """``lower`` is the lower tier's ``NodeKind``.

        ``group`` numbers the upper nodes: slots are sorted by it first, so that
        slot i of two parts lies in the same group where that is possible.
        """
        level, count = network.level, network.fabric.node_count
        arcs = np.flatnonzero((level[network.tail] == lower) & (level[network.head] == lower + 1))
        tail, head = network.tail[arcs], network.head[arcs]
        self.part = _parts(tail, head, count)
        """Connected part of each node, ``NONE`` for nodes outside the layer."""
        upper_group = np.zeros(count, dtype=np.int64) if group is None else group
        order = np.lexsort((arcs, head, upper_group[head], tail))
        arcs, tail, head = arcs[order], tail[order], head[order]
        ordinal = _ordinals(tail, head)
        columns = np.stack([self.part[tail], upper_group[head], head, ordinal])
        slots, slot_of_arc = np.unique(columns, axis=1, return_inverse=True)
        self._slot_part, self._slot_group = slots[0], slots[1]
        self.first = np.searchsorted(slots[0], np.arange(count + 1))
        """First slot of each part."""
        self.slot_of_arc = np.full(network.arc_count, NONE, dtype=np.int64)
        """Slot of each arc, counted within its part; ``NONE`` outside the layer."""
        self.slot_of_arc[arcs] = slot_of_arc - self.first[self.part[tail]]
        width = int(np.diff(self.first).max(initial=0))
        self.row = np.full(count, NONE, dtype=np.int64)
        lowers = np.unique(tail)
        self.row[lowers] = np.arange(len(lowers))
        self.table = np.full((len(lowers) + 1, width + 1), NONE, dtype=np.int64)
        """Arc by row of the lower switch and slot; ``NONE`` where there is a hole."""
        usable = network.usable[arcs]
        self.table[self.row[tail[usable]], self.slot_of_arc[arcs[usable]]] = arcs[usable]
        speed = np.zeros(slots.shape[1])
        np.maximum.at(speed, slot_of_arc, network.fabric.structure.capacity[arcs])
        self._speed = speed

    def slots(self, part: int) -> slice:
        """Rows of the slots of a part."""
        return slice(int(self.first[part]), int(self.first[part + 1]))

    def colours(self, part: int) -> Ints:
        """Slot of each colour of a part, counted within the part."""
        speed = self._speed[self.slots(part)]
        milli = np.round(speed * 1000).astype(np.int64)
        repeat = milli // math.gcd(*milli.tolist())
        if repeat.sum() > MOST_COLOURS:
            repeat = np.ones(len(speed), dtype=np.int64)
        return np.repeat(np.arange(len(speed), dtype=np.int64), repeat)

    def groups(self, part: int) -> Ints:
        """Group of each slot of a part."""
        groups: Ints = self._slot_group[self.slots(part)]
        return groups

    def arcs(self, nodes: Ints, slots: Ints) -> Ints:
        """The arc that fills a slot at each lower switch; ``NONE`` for holes."""
        arcs: Ints = self.table[self.row[nodes], slots]
        return arcs


def _parts(tail: Ints, head: Ints, count: int) -> Ints:
    """Least node row of the connected part of each node, ``NONE`` for lone ones."""
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


def _ordinals(tail: Ints, head: Ints) -> Ints:
    """Place of each arc among those of the same ends; equal ends stand together."""
    place = np.arange(len(tail), dtype=np.int64)
    if not len(tail):
        return place
    new = np.concatenate([[True], (np.diff(tail) != 0) | (np.diff(head) != 0)])
    return place - np.maximum.accumulate(np.where(new, place, 0))
