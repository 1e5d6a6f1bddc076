"""Forwarding along fixed paths, and strategies that choose by the destination alone.

``Pinned`` makes strategies that result in paths measurable by the same walk as hashing. A packet
without a path, or off its path, is dropped.

``static`` and ``dmodk`` look at the destination and neither at load nor at hashes. ``static`` is
what an operator configures on leaves once: the n-th NIC of a rack is reached over the n-th uplink,
whoever sends. If that uplink is dead, the hash of the underlay remains. There are no collisions
while whole racks talk to whole racks, but there are when a job is scattered.

``dmodk`` is the routing of fat trees: the d-th NIC is reached over the (d mod k)-th uplink, and
above that over the (d / k mod k')-th. It is computed anew for the links that are up, as a subnet
manager does. On a healthy fabric with as many uplinks as NICs per leaf, both choose the same paths.
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
        """Store the path of each source, destination and port; codes ascend."""
        path = np.repeat(np.arange(len(paths), dtype=np.int64), paths.qp_count)
        flow = paths.flow[path]
        offset = flows.source_ports()[flow] - FIRST_SOURCE_PORT + paths.qp_numbers()
        port = FIRST_SOURCE_PORT + offset % SOURCE_PORT_COUNT
        self._codes, row = np.unique(
            self._code(flows.source[flow], flows.destination[flow], port), return_index=True
        )
        self._path = np.append(path[row], NONE)

    def _code(self, source: Ints, destination: Ints, port: Ints) -> Ints:
        return ((source * self._nodes + destination) << 16) + port

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
        """Implement ``Forwarding.forward``."""
        return self._along(switch, source, destination, source_port)

    def leave(self, nic: Ints, destination: Ints, source_port: Ints) -> Ints:
        """Implement ``Hosting.leave``."""
        return self._along(nic, nic, destination, source_port)

    def _along(self, node: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
        path = self._path[_found(self._codes, self._code(source, destination, source_port))]
        hop = _found(self._hops, np.where(path == NONE, NONE, path * self._nodes + node))
        return self._arcs[hop]


def _found(codes: Ints, wanted: Ints) -> Ints:
    """Return the place of each wanted code among ascending codes, -1 if it is not there."""
    if not len(codes):
        return np.full(len(wanted), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    return np.where(codes[place] == wanted, place, -1)


class Static:
    """Pins at the first switch; above it, and around dead links, the underlay hashes."""

    def __init__(self, fabric: Fabric, seed: int) -> None:
        self._world = fabric
        self._hashed = Switches(fabric, seed)
        self._wired = EqualCostHops(Underlay(_all_up(fabric)))
        self._live = EqualCostHops(Underlay(fabric))
        self._place = place_of_nics(fabric)[1]
        self._entered = _entry_switches(fabric)

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
        """Implement ``Forwarding.forward``."""
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
    """One rule for every switch: each tier uses one digit of d, the leaves the lowest.

    On the way down only parallel links leave a choice. The digit used there is that of the switch
    below, which used it on its own way up.
    """

    def __init__(self, fabric: Fabric) -> None:
        self._ways = EqualCostHops(Underlay(fabric))
        self._number = place_of_nics(fabric)[0]
        self._kind = fabric.structure.nodes.kind
        self._head = fabric.structure.head
        self._divisor = _uplinks_below(fabric)

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:  # noqa: ARG002 - a Forwarding
        """Implement ``Forwarding.forward``."""
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
    """Return the fabric with all links and nodes up."""
    up = np.int64(State.UP)
    return Fabric(
        fabric.structure,
        np.full_like(fabric.link_state, up),
        np.full_like(fabric.node_state, up),
    )


def _entry_switches(fabric: Fabric) -> Ints:
    """Return a code of each pair of a switch and a NIC attached to it, ascending."""
    structure = fabric.structure
    is_nic = structure.nodes.kind == NodeKind.NIC
    arcs = np.flatnonzero(is_nic[structure.tail] & ~is_nic[structure.head])
    return np.unique(structure.head[arcs] * fabric.node_count + structure.tail[arcs])


def _uplinks_below(fabric: Fabric) -> Ints:
    """Return, by kind of switch, the product of the uplink counts of the tiers below it."""
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
