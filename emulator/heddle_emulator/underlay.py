"""What BGP with ECMP would do: shortest paths by hop count over live links.

This is written from the graph alone. Everything the emulator measures depends on it, so it must not
share a mistake with the planner.

Destinations attached to the same switches share their routes; together they are a routing group.
One breadth-first search with a bit per group finds the distances to all groups, so 24,576 NICs take
a fraction of a second. A link change needs a new ``Underlay``, which has the routes after every
switch has heard of the change.

Each parallel link is a path of its own. Drained links still carry traffic. No path leads through a
NIC. After failures, plain hop counts allow a detour down and up again, where spines that share an
AS number would drop the packet. A packet meets such a detour only at a switch that has lost its
last proper path.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from heddle_controller.model.arrays import Bools, Ints
from heddle_controller.model.fabric import Fabric, NodeKind

UNREACHABLE = np.iinfo(np.int16).max
Hops = npt.NDArray[np.int16]


@dataclass(frozen=True, eq=False)
class Underlay:
    """Equal-cost routes of every switch towards every NIC of one fabric in one state."""

    fabric: Fabric

    @cached_property
    def group(self) -> Ints:
        """Routing group of each node row: NICs on the same switches share one; -1 for switches."""
        structure = self.fabric.structure
        nic = self._is_nic
        arcs = np.flatnonzero(nic[structure.tail] & self.fabric.carries & ~nic[structure.head])
        pairs = np.unique(np.stack([structure.tail[arcs], structure.head[arcs]]), axis=1)
        place = np.arange(pairs.shape[1]) - np.searchsorted(pairs[0], pairs[0])
        on = np.full((len(nic), int(place.max(initial=0)) + 1), -1, dtype=np.int64)
        on[pairs[0], place] = pairs[1]
        rows = np.flatnonzero(nic)
        groups = np.full(len(nic), -1, dtype=np.int64)
        groups[rows] = np.unique(on[rows], axis=0, return_inverse=True)[1].ravel()
        return groups

    @cached_property
    def place(self) -> Ints:
        """Row of each switch in ``hops``, by node row; -1 for NICs."""
        return np.where(self._is_nic, -1, np.cumsum(~self._is_nic) - 1)

    @cached_property
    def hops(self) -> Hops:
        """Hops from each switch to the nearest one attached to a group's NICs.

        The shape is (switches, groups). Attached switches have 0; ``UNREACHABLE`` means no path.
        """
        structure, nic = self.fabric.structure, self._is_nic
        _, arcs = structure.out
        arcs = arcs[(self.fabric.carries & ~nic[structure.tail] & ~nic[structure.head])[arcs]]
        tails, starts = np.unique(self.place[structure.tail[arcs]], return_index=True)
        heads = self.place[structure.head[arcs]]
        reached = self._attached()
        hops = np.where(reached, 0, UNREACHABLE).astype(np.int16)
        bits = np.packbits(reached, axis=1)
        for distance in range(1, len(tails)):
            heard = np.bitwise_or.reduceat(bits[heads], starts, axis=0)
            new = heard & ~bits[tails]
            if not new.any():
                break
            bits[tails] |= new
            fresh = np.unpackbits(new, axis=1, count=hops.shape[1]).astype(np.bool_)
            hops[tails] = np.where(fresh, np.int16(distance), hops[tails])
        return hops

    def ways(self, switch: int) -> tuple[Ints, Bools]:
        """Return the arcs of a switch to other switches, and which groups may take each arc.

        The second array has shape (arcs, groups). The arcs marked in a column are equal in cost. No
        arc is marked for groups that are attached to the switch itself or that it cannot reach.
        """
        arcs = self.arcs_of(switch)
        heads = self.place[self.fabric.structure.head[arcs]]
        arcs, heads = arcs[heads >= 0], heads[heads >= 0]
        here = self.hops[self.place[switch]]
        return arcs, (self.hops[heads] == here - 1) & (here < UNREACHABLE)

    def arcs_of(self, node: int) -> Ints:
        """Return the live arcs that leave a node, sorted by the node they enter, then by link."""
        own = self.fabric.structure.leaving(node)
        return own[self.fabric.carries[own]]

    @cached_property
    def _is_nic(self) -> Bools:
        return np.asarray(self.fabric.structure.nodes.kind == NodeKind.NIC)

    def _attached(self) -> Bools:
        """Return whether a live link joins a switch to a group's NIC, shape (switches, groups)."""
        structure, nic = self.fabric.structure, self._is_nic
        down = np.flatnonzero(nic[structure.head] & ~nic[structure.tail] & self.fabric.carries)
        groups = int(self.group.max(initial=-1)) + 1
        attached = np.zeros((int(np.sum(~nic)), groups), dtype=np.bool_)
        attached[self.place[structure.tail[down]], self.group[structure.head[down]]] = True
        return attached
