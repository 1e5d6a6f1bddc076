"""Paths laid down beforehand, as packets meet them: exact entries and nothing under them.

Ways of choosing that end in paths are measured by the same walk as hashing is. A
packet without a path, or off its path, is dropped.

Choosing by the destination alone: no load is looked at, and nothing is hashed.

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
from heddle_controller.model.flows import FIRST_SOURCE_PORT, SOURCE_PORT_COUNT, Flows
from heddle_controller.model.plan import Paths
from heddle_emulator.strategy.ways import EqualCostHops, by_value, place_of_nics
from heddle_emulator.switches import Switches
from heddle_emulator.underlay import Underlay


class Pinned:
    """A ``Forwarding`` along given paths of given flows."""

    def __init__(self, fabric: Fabric, flows: Flows, paths: Paths) -> None:
        self._nodes = fabric.node_count
        self._tail = fabric.structure.tail
        self._match(flows, paths)
        owner = paths.owner()
        self._hops, place = np.unique(
            owner * self._nodes + self._tail[paths.arcs], return_index=True
        )
        self._arcs = np.append(paths.arcs[place], NONE)

    def _match(self, flows: Flows, paths: Paths) -> None:
        """The path of each source, destination and port; codes ascend."""
        count = paths.qp_count
        path = np.repeat(np.arange(len(paths), dtype=np.int64), count)
        qp = np.arange(len(path)) - np.repeat(np.cumsum(count) - count - paths.first_qp, count)
        flow = paths.flow[path]
        offset = flows.source_ports()[flow] - FIRST_SOURCE_PORT + qp
        port = FIRST_SOURCE_PORT + offset % SOURCE_PORT_COUNT
        self._codes, row = np.unique(
            self._code(flows.source[flow], flows.destination[flow], port), return_index=True
        )
        self._path = np.append(path[row], NONE)

    def _code(self, source: Ints, destination: Ints, port: Ints) -> Ints:
        return ((source * self._nodes + destination) << 16) + port

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
        """As ``Forwarding`` says."""
        return self._along(switch, source, destination, source_port)

    def leave(self, nic: Ints, destination: Ints, source_port: Ints) -> Ints:
        """As ``Hosting`` says."""
        return self._along(nic, nic, destination, source_port)

    def _along(self, node: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
        path = self._path[_found(self._codes, self._code(source, destination, source_port))]
        hop = _found(self._hops, np.where(path == NONE, NONE, path * self._nodes + node))
        return self._arcs[hop]


def _found(codes: Ints, wanted: Ints) -> Ints:
    """Place of each wanted code among ascending ones, -1 where it is not there."""
    if not len(codes):
        return np.full(len(wanted), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    return np.where(codes[place] == wanted, place, -1)


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
