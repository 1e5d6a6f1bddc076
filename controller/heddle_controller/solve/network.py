"""The planner's view of a fabric: the arcs it may use, and where NICs attach.

A NIC with one link has no choice. So paths are searched between the *terminals* of flows: the leaf
of a NIC with one link, or the NIC itself if it has several links. The links of such a NIC are a
choice like arcs between switches, even while only one of them is up.

One additional arc stands for "no arc" and pads paths of unequal length. Its capacity is infinite.
"""

from __future__ import annotations

from copy import copy
from functools import cached_property

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.graphs import joined_parts


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
        """Tier of each arc. The padding has a tier of its own."""
        self.nic_arc: Ints
        """The usable arc out of each NIC that has one link; ``NONE`` for all other nodes."""
        self.uplinks: Ints
        """Number of usable arcs out of each NIC; 0 for switches."""
        self.terminal: Ints
        """Node at which path choice begins for each node; ``NONE`` for a NIC without a usable
        link."""
        self.nic_arc, self.uplinks, self.terminal = _attachment(self)
        self.known_segments: dict[tuple[int, int], tuple[Ints, Ints]] = {}

    def with_states(self, fabric: Fabric) -> Network:
        """Return the network of the same fabric after links changed."""
        other = copy(self)
        other.fabric, other.usable, other.known_segments = fabric, fabric.plannable, {}
        changed = np.flatnonzero(other.usable != self.usable)
        if (self.level[self.tail[changed]] == NodeKind.NIC).any():
            other.nic_arc, other.uplinks, other.terminal = _attachment(other)
        return other

    @cached_property
    def choice(self) -> Bools:
        """Marks arcs that paths can choose, usable or not: all but those of NICs with one link."""
        is_nic = self.level == NodeKind.NIC
        links = np.bincount(self.tail, minlength=self.fabric.node_count)
        alone = is_nic & (links == 1)
        marked: Bools = ~(alone[self.tail] | alone[self.head])
        return marked

    @cached_property
    def chosen(self) -> Ints:
        """The arcs that paths can choose, usable or not, ascending."""
        return np.flatnonzero(self.choice)

    @cached_property
    def several(self) -> Bools:
        """Marks NICs with several links, shape (nodes,)."""
        links = np.bincount(self.tail, minlength=self.fabric.node_count)
        marked: Bools = (self.level == NodeKind.NIC) & (links > 1)
        return marked

    @cached_property
    def inner(self) -> Ints:
        """Arcs between two switches, usable or not, ascending."""
        is_nic = self.level == NodeKind.NIC
        return np.flatnonzero(~is_nic[self.tail] & ~is_nic[self.head])

    @cached_property
    def head_or_none(self) -> Ints:
        """Node that each arc enters; ``NONE`` for the padding."""
        return np.append(self.head, NONE)

    def switch_parts(self) -> Ints:
        """Return the number of each switch's part that usable links join; ``NONE`` for NICs."""
        return self._parts(self.inner[self.usable[self.inner]])

    @cached_property
    def wired_parts(self) -> Ints:
        """The number of each switch's part that links join, usable or not; ``NONE`` for NICs."""
        return self._parts(self.inner)

    def _parts(self, arcs: Ints) -> Ints:
        part = joined_parts(self.tail[arcs], self.head[arcs], self.fabric.node_count)
        return np.where(self.level == NodeKind.NIC, NONE, part)

    @cached_property
    def tiered(self) -> bool:
        """Whether all switches are leaves, spines or cores, linked only to adjacent tiers."""
        levels = self.level
        ends = np.abs(levels[self.tail] - levels[self.head])[self.inner]
        return bool((levels != NodeKind.SWITCH).all() and (ends == 1).all())

    def by_tier(self, values: Floats, pad: float) -> Floats:
        """Return the value of each arc's tier, shape (arcs + 1,), with ``pad`` for the padding."""
        first, tier = self.fabric.structure.tier_runs
        lengths = np.diff(np.append(first, [self.arc_count, self.arc_count + 1]))
        return np.repeat(np.append(values[tier], pad), lengths)

    def out(self, node: int) -> Ints:
        """Return the usable arcs that leave a node, ordered by the node that they enter."""
        leaving = self.fabric.structure.leaving(node)
        usable: Ints = leaving[self.usable[leaving]]
        return usable

    def up(self, node: int) -> Ints:
        """Return the usable arcs from a node to the tier above, ordered by the node they enter."""
        arcs = self.out(node)
        rising: Ints = arcs[self.level[self.head[arcs]] > self.level[node]]
        return rising

    def hops_from(self, node: int) -> Ints:
        """Return the least hops from a node to each node over usable arcs, shape (nodes,).

        A node that cannot be reached has as many hops as there are nodes. Paths pass no NIC.
        """
        passable = self.level != NodeKind.NIC
        passable[node] = True
        through = self.usable & passable[self.tail]
        tail, head = self.tail[through], self.head[through]
        found = np.full(len(self.level), len(self.level), dtype=np.int64)
        hops, reached = 0, np.array([node], dtype=np.int64)
        while len(reached):
            found[reached] = hops
            hops += 1
            following = head[found[tail] == hops - 1]
            reached = following[found[following] > hops]
        return found

    def segments(self, node: int, height: int) -> tuple[Ints, Ints]:
        """Return all ways up from a node by ``height`` tiers, found when they are first needed.

        These are the nodes that they reach, ascending, and their arcs, shape (ways, height).
        """
        found = self.known_segments.get((node, height))
        if found is None:
            found = self.known_segments[node, height] = self._climb(node, height)
        return found

    def _climb(self, node: int, height: int) -> tuple[Ints, Ints]:
        if height == 0:
            return np.array([node], dtype=np.int64), np.empty((1, 0), dtype=np.int64)
        below, arcs = self.segments(node, height - 1)
        ups = [self.up(int(n)) for n in below]
        last = np.concatenate([*ups, np.empty(0, dtype=np.int64)])
        rows = np.repeat(np.arange(len(below)), [len(u) for u in ups])
        apex = self.head[last]
        order = np.argsort(apex, kind="stable")
        return apex[order], np.concatenate([arcs[rows], last[:, None]], axis=1)[order]


def _attachment(network: Network) -> tuple[Ints, Ints, Ints]:
    """Return ``nic_arc``, ``uplinks`` and ``terminal`` of a network."""
    count = network.fabric.node_count
    is_nic = network.level == NodeKind.NIC
    up = np.flatnonzero(network.usable & is_nic[network.tail])
    sole = up[~network.choice[up]]
    nic_arc = np.full(count, NONE, dtype=np.int64)
    nic_arc[network.tail[sole]] = sole
    uplinks: Ints = np.bincount(network.tail[up], minlength=count)
    terminal = np.arange(count, dtype=np.int64)
    terminal[network.tail[sole]] = network.head[sole]
    terminal[is_nic & (uplinks == 0)] = NONE
    return nic_arc, uplinks, terminal


def attached(network: Network, flows: Flows, rows: Ints | None = None) -> Bools:
    """Return whether both NICs of each flow (or of some rows) have a usable uplink."""
    source, destination = flows.source, flows.destination
    if rows is not None:
        source, destination = source[rows], destination[rows]
    result: Bools = (network.terminal[source] != NONE) & (network.terminal[destination] != NONE)
    return result
