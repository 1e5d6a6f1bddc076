"""What the planner sees of a fabric: the arcs it may use, and where NICs attach.

Most NICs have one uplink, which is no choice: paths are searched between the
*terminals* of flows, the leaf of such a NIC, or the NIC itself where it has
several uplinks. One more arc than there are stands for "no arc" and pads paths of
unequal length; its capacity is infinite.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Fabric, Floats, Ints, NodeKind
from heddle_controller.model.flows import Flows


class Network:
    """The plannable part of one fabric. Arrays are by node row or by arc."""

    def __init__(self, fabric: Fabric) -> None:
        self.fabric = fabric
        structure = fabric.structure
        self.arc_count = 2 * fabric.link_count
        self.pad = self.arc_count
        """The arc that stands for "no arc"."""
        self.tail, self.head = structure.tail, structure.head
        self.level = structure.nodes.kind
        self.usable = fabric.plannable
        inverse = np.zeros(self.arc_count + 1)
        inverse[:-1] = 1.0 / structure.capacity
        self.per_gbps: Floats = inverse
        """Utilisation that one Gbit/s adds to each arc, 0 for the padding."""
        self.tier: Ints = np.append(structure.tier_of_arc, len(structure.tiers))
        """Tier of each arc; the padding is one of its own."""
        self._attach()

    def with_states(self, fabric: Fabric) -> Network:
        """The network of the same fabric after links changed: of NICs, only their sole ones."""
        other = copy(self)
        other.fabric, other.usable = fabric, fabric.plannable
        changed = np.flatnonzero(other.usable != self.usable)
        up = changed[self.level[self.tail[changed]] == NodeKind.NIC]
        if len(up):
            nic, back = self.tail[up], other.usable[up]
            other.nic_arc, other.terminal = self.nic_arc.copy(), self.terminal.copy()
            other.nic_arc[nic] = np.where(back, up, NONE)
            other.terminal[nic] = np.where(back, self.head[up], NONE)
        return other

    def _attach(self) -> None:
        is_nic = self.level == NodeKind.NIC
        up = np.flatnonzero(self.usable & is_nic[self.tail])
        count = np.bincount(self.tail[up], minlength=self.fabric.node_count)
        self.nic_arc: Ints = np.full(self.fabric.node_count, NONE, dtype=np.int64)
        """The only usable arc out of a NIC; ``NONE`` where there are several or none."""
        self.nic_arc[self.tail[up]] = up
        self.nic_arc[count != 1] = NONE
        self.terminal: Ints = np.arange(self.fabric.node_count, dtype=np.int64)
        """Where path choice begins for each node; ``NONE`` for a NIC cut off."""
        single = self.nic_arc != NONE
        self.terminal[single] = self.head[self.nic_arc[single]]
        self.terminal[is_nic & (count == 0)] = NONE

    @cached_property
    def inner(self) -> Ints:
        """Arcs between two switches, usable or not, ascending."""
        is_nic = self.level == NodeKind.NIC
        return np.flatnonzero(~is_nic[self.tail] & ~is_nic[self.head])

    @cached_property
    def head_or_none(self) -> Ints:
        """Node that each arc enters; ``NONE`` for the padding."""
        return np.append(self.head, NONE)

    @cached_property
    def tiered(self) -> bool:
        """Whether switches are leaves, spines and cores, linked to the next tier only."""
        levels = self.level
        ends = np.abs(levels[self.tail] - levels[self.head])[self.inner]
        return bool((levels != NodeKind.SWITCH).all() and (ends == 1).all())

    def by_tier(self, values: Floats, pad: float) -> Floats:
        """What belongs to the tier of each arc, and to the padding, shape (arcs + 1,)."""
        first, tier = self.fabric.structure.tier_runs
        lengths = np.diff(np.append(first, [self.arc_count, self.arc_count + 1]))
        return np.repeat(np.append(values[tier], pad), lengths)

    def out(self, node: int) -> Ints:
        """Usable arcs that leave a node, by the node they enter."""
        first, arcs = self.fabric.structure.out
        leaving = arcs[first[node] : first[node + 1]]
        usable: Ints = leaving[self.usable[leaving]]
        return usable

    def up(self, node: int) -> Ints:
        """Usable arcs that leave a node for the tier above, by the node they enter."""
        arcs = self.out(node)
        rising: Ints = arcs[self.level[self.head[arcs]] > self.level[node]]
        return rising


def attached(network: Network, flows: Flows, rows: Ints | None = None) -> Bools:
    """Whether both NICs of each flow, or of some rows, have a usable uplink."""
    source, destination = flows.source, flows.destination
    if rows is not None:
        source, destination = source[rows], destination[rows]
    result: Bools = (network.terminal[source] != NONE) & (network.terminal[destination] != NONE)
    return result
