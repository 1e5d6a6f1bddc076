"""Choosing by the destination alone: no load is looked at, and nothing is hashed.

``static`` is what an operator writes into leaves once: the n-th NIC of a rack is
reached over the n-th uplink, whoever asks, and the hash of the underlay is what is
left where that uplink is dead. It is free of collisions while whole racks talk to
whole racks, and not when a job lies scattered.

``dmodk`` is the routing of fat trees: the d-th NIC over the (d mod k)-th way up, and
above that over the (d / k mod k')-th. It is worked out anew for the links there are,
as a subnet manager does. On a healthy fabric with as many uplinks as NICs on a leaf
the two choose alike.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_emulator.strategy.ways import EqualCostHops, by_value, place_of_nics
from heddle_emulator.switches import Switches
from heddle_emulator.underlay import Underlay


class Static:
    """Pins at the switch a NIC sends to; above, and round what is dead, the underlay hashes."""

    def __init__(self, fabric: Fabric, seed: int) -> None:
        self._world = fabric
        self._hashed = Switches(fabric, seed)
        self._wired = EqualCostHops(Underlay(_all_up(fabric)))
        self._live = EqualCostHops(Underlay(fabric))
        self._place = place_of_nics(fabric)[1]
        self._entered = _entry_switches(fabric)

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
        """As ``Forwarding`` says."""
        hashed = self._hashed.forward(switch, source, destination, source_port)
        pinned = self._wired.nth(switch, destination, self._place[destination])
        head = self._world.structure.head
        first = np.isin(switch * self._world.node_count + source, self._entered)
        first &= (pinned != NONE) & (head[pinned] != destination)
        for row, at in by_value(np.where(first, switch, NONE)):
            if row != NONE:
                arcs, usable = self._live.towards(row, destination[at])
                first[at] = (usable & (arcs[:, None] == pinned[at])).any(axis=0)
        return np.where(first, pinned, hashed)


class DModK:
    """One rule for every switch: a digit of d for each tier, the lowest for the leaves.

    On the way down only parallel links are a choice; there the digit is that of the
    switch below, which chose by it on its own way up.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._ways = EqualCostHops(Underlay(fabric))
        self._number = place_of_nics(fabric)[0]
        self._kind = fabric.structure.nodes.kind
        self._head = fabric.structure.head
        self._divisor = _uplinks_below(fabric)

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:  # noqa: ARG002 - a Forwarding
        """As ``Forwarding`` says."""
        number, here = self._number[destination], self._kind[switch]
        up = self._ways.nth(switch, destination, number // self._divisor[here])
        below = self._kind[self._head[up]]
        lower = np.minimum(below, here)
        return np.where(
            (up == NONE) | (below >= here),
            up,
            self._ways.nth(switch, destination, number // self._divisor[lower]),
        )


def _all_up(fabric: Fabric) -> Fabric:
    """The fabric as it is wired."""
    up = np.int64(State.UP)
    return Fabric(
        fabric.structure,
        np.full_like(fabric.link_state, up),
        np.full_like(fabric.node_state, up),
    )


def _entry_switches(fabric: Fabric) -> Ints:
    """A code of each pair of a switch and a NIC that hangs on it, ascending."""
    structure = fabric.structure
    is_nic = structure.nodes.kind == NodeKind.NIC
    arcs = np.flatnonzero(is_nic[structure.tail] & ~is_nic[structure.head])
    return np.unique(structure.head[arcs] * fabric.node_count + structure.tail[arcs])


def _uplinks_below(fabric: Fabric) -> Ints:
    """How many ways up the tiers below each kind of switch have, multiplied; by kind."""
    structure = fabric.structure
    kind = structure.nodes.kind
    rising = np.flatnonzero(kind[structure.head] > kind[structure.tail])
    ways = np.bincount(structure.tail[rising], minlength=fabric.node_count)
    below = np.ones(len(NodeKind), dtype=np.int64)
    for lower in (NodeKind.LEAF, NodeKind.SPINE):
        most = int(ways[kind == lower].max(initial=1))
        below[lower + 1] = below[lower] * max(most, 1)
    below[NodeKind.SWITCH] = 1
    return below
