"""Lower bounds from cuts: what has to leave a set of nodes must leave over its arcs.

For a set of nodes, all traffic from inside to outside crosses the arcs that leave
it, so one of them is at least as full as the whole demand over the whole
capacity. Demand is counted as load is: the worst phase of each job. Where all
QPs that cross have one rate, loads come in whole steps and the bound is rounded
up to the next step that the arcs can hold together.

The sets are every NIC, every switch with its NICs, every zone, and their
complements (traffic inwards). That is closed form, and exact for healthy fabrics.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Floats, Ints, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.load import phased_loads
from heddle_controller.solve.bound import Bound
from heddle_controller.solve.network import Network


def cut_bound(network: Network, flows: Flows, routed: Bools) -> Bound:
    """Least worst utilisation of each tier, and of the whole, proven by cuts.

    ``routed`` marks the flows that count, shape (flows,).
    """
    return Cuts(network, flows, routed).bound()


class Cuts:
    """All cuts of one network and set of flows, kept for when links change."""

    def __init__(self, network: Network, flows: Flows, routed: Bools) -> None:
        rows = np.flatnonzero(routed)
        self._tier_count = len(network.fabric.structure.tiers)
        self._families = [
            _Family(network, flows, rows, group, inwards=inwards)
            for group in (_partitions(network) if len(rows) else ())
            for inwards in (False, True)
        ]

    def change(self, arcs: Ints, *, usable: bool) -> None:
        """Gives or takes capacity: arcs between switches that changed their state."""
        for family in self._families:
            family.change(arcs, usable=usable)

    def bound(self) -> Bound:
        """What the cuts prove now."""
        tiers, overall = np.zeros(self._tier_count), 0.0
        for family in self._families:
            overall = max(overall, float(family.bounds.max(initial=0.0)))
            for tier, rows in family.sets_of_tier.items():
                tiers[tier] = max(tiers[tier], float(family.bounds[rows].max()))
        return Bound(tiers, max(overall, float(tiers.max(initial=0.0))), "cut")


def _partitions(network: Network) -> list[Ints]:
    """Ways to sort nodes into sets; ``NONE`` marks nodes that are in no set."""
    nodes = network.fabric.structure.nodes
    rows = np.arange(network.fabric.node_count, dtype=np.int64)
    is_nic = nodes.kind == NodeKind.NIC
    alone = np.where(is_nic, rows, NONE)
    # A NIC on several switches is in no switch's set; nor is one that is cut off.
    at_switch = np.where(is_nic & (network.nic_arc == NONE), NONE, network.terminal)
    partitions = [alone, at_switch]
    if (nodes.zone != NONE).any():
        zone = np.where(is_nic & (at_switch != NONE), nodes.zone[at_switch], nodes.zone)
        partitions.append(zone)
    return partitions


class _Family:
    """The cuts around each set of one partition, one way; arrays are by set."""

    def __init__(
        self, network: Network, flows: Flows, rows: Ints, group: Ints, *, inwards: bool
    ) -> None:
        ends = (flows.source, flows.destination)
        arc_ends = (network.tail, network.head)
        inner, outer = reversed(ends) if inwards else ends
        inside, outside = reversed(arc_ends) if inwards else arc_ends
        first, second = group[inner[rows]], group[outer[rows]]
        crossing = (first != second) & (first != NONE)
        rows, flow_set = rows[crossing], first[crossing]
        self._count = int(group.max(initial=0)) + 1
        leaves = (group[inside] != NONE) & (group[inside] != group[outside])
        self._arc_set = np.where(leaves, group[inside], NONE)
        self._speed = network.fabric.structure.capacity
        together = (flow_set, flows.job[rows], flows.phase[rows])
        self._demand = self._summed(flows.gbps[rows], *together)
        self._qps = np.round(self._summed(flows.qps[rows].astype(np.float64), *together))
        low, high = _range(flows.gbps[rows] / flows.qps[rows], flow_set, self._count)
        arcs = np.flatnonzero(network.usable & leaves)
        slow, fast = _range(self._speed[arcs], self._arc_set[arcs], self._count)
        equal = (high > 0) & (high <= low * (1 + 1e-9)) & (fast > 0) & (fast <= slow * (1 + 1e-9))
        self._step: Floats = np.where(equal, low, 0.0) / np.where(equal, fast, 1.0)
        """What one QP adds to one arc, where all QPs and all arcs are equal; else 0."""
        self._capacity, self._width = np.zeros(self._count), np.zeros(self._count)
        tier = self._common_tier(network.fabric.structure.tier_of_arc, arcs)
        self.sets_of_tier: dict[int, Ints] = {
            t: np.flatnonzero(tier == t) for t in np.unique(tier).tolist() if t != NONE
        }
        """The sets whose arcs are all of one tier."""
        self.bounds: Floats = np.zeros(self._count)
        """Least utilisation of the worst arc around each set; 0 where none is proven."""
        self.change(arcs, usable=True)

    def _summed(self, amount: Floats, flow_set: Ints, job: Ints, phase: Ints) -> Floats:
        """An amount of each flow by set, the worst phase of each job."""
        return phased_loads(self._count, flow_set, amount, job, phase)

    def _common_tier(self, tier_of_arc: Ints, arcs: Ints) -> Ints:
        """Tier of each set's arcs, ``NONE`` where they are of several."""
        low = np.full(self._count, np.iinfo(np.int64).max)
        high = np.full(self._count, NONE, dtype=np.int64)
        np.minimum.at(low, self._arc_set[arcs], tier_of_arc[arcs])
        np.maximum.at(high, self._arc_set[arcs], tier_of_arc[arcs])
        return np.where(low == high, high, NONE)

    def change(self, arcs: Ints, *, usable: bool) -> None:
        """Gives or takes the capacity of arcs."""
        arcs = arcs[self._arc_set[arcs] != NONE]
        sign = 1.0 if usable else -1.0
        np.add.at(self._capacity, self._arc_set[arcs], sign * self._speed[arcs])
        np.add.at(self._width, self._arc_set[arcs], sign)
        sets = np.flatnonzero(np.bincount(self._arc_set[arcs], minlength=1))
        # An arc that comes later may be unlike the others: then steps prove nothing.
        even = np.zeros(self._count)
        np.maximum.at(even, self._arc_set[arcs], self._speed[arcs])
        alike = np.isclose(self._capacity[sets], self._width[sets] * even[sets], rtol=1e-9)
        self._step[sets[~alike]] = 0.0
        self.bounds[sets] = self._bounds(sets)

    def _bounds(self, sets: Ints) -> Floats:
        open_ = (self._demand[sets] > 0) & (self._width[sets] > 0)
        capacity = np.where(open_, self._capacity[sets], 1.0)
        width = np.where(open_, self._width[sets], 1.0)
        stepped = np.ceil(self._qps[sets] / width) * self._step[sets]
        bounds: Floats = np.where(open_, np.maximum(self._demand[sets] / capacity, stepped), 0.0)
        return bounds


def _range(values: Floats, group: Ints, count: int) -> tuple[Floats, Floats]:
    low, high = np.full(count, np.inf), np.zeros(count)
    np.minimum.at(low, group, values)
    np.maximum.at(high, group, values)
    return low, high
