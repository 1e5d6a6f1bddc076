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

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Floats, Ints, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.load import phased_loads
from heddle_controller.solve.bound import Bound
from heddle_controller.solve.network import Network


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """One row a cut that has both demand and capacity."""

    bound: Floats
    """Least utilisation of the cut's worst arc."""
    tier: Ints
    """Tier of the cut's arcs, or ``NONE`` where they are of several."""


def cut_bound(network: Network, flows: Flows, routed: Bools) -> Bound:
    """Least worst utilisation of each tier, and of the whole, proven by cuts.

    ``routed`` marks the flows that count, shape (flows,).
    """
    flows = flows.take(np.flatnonzero(routed))
    tiers = np.zeros(len(network.fabric.structure.tiers))
    overall = 0.0
    if not len(flows):
        return Bound(tiers, overall, "cut")
    for group in _partitions(network):
        for inwards in (False, True):
            cuts = _cuts(network, flows, group, inwards=inwards)
            known = cuts.tier != NONE
            np.maximum.at(tiers, cuts.tier[known], cuts.bound[known])
            overall = max(overall, float(cuts.bound.max(initial=0.0)))
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


@dataclass(frozen=True, slots=True, eq=False)
class _Crossing:
    """What crosses the border of each set of a partition, one way."""

    flows: Flows
    """The flows that cross."""
    flow_set: Ints
    """The set that each of them leaves (or enters)."""
    arcs: Ints
    """The usable arcs that cross."""
    arc_set: Ints
    count: int
    """Sets are numbered 0 to ``count - 1``."""


def _cuts(network: Network, flows: Flows, group: Ints, *, inwards: bool) -> Cuts:
    """The cuts around each set of one partition, one way."""
    ends = (flows.source, flows.destination)
    arc_ends = (network.tail, network.head)
    inner, outer = reversed(ends) if inwards else ends
    inside, outside = reversed(arc_ends) if inwards else arc_ends
    rows = np.flatnonzero((group[inner] != group[outer]) & (group[inner] != NONE))
    leaving = (group[inside] != NONE) & (group[inside] != group[outside])
    arcs = np.flatnonzero(network.usable & leaving)
    count = int(group.max(initial=0)) + 1
    crossing = _Crossing(flows.take(rows), group[inner[rows]], arcs, group[inside[arcs]], count)
    demand = _demand(crossing, crossing.flows.gbps)
    speed = network.fabric.structure.capacity[arcs]
    capacity = np.bincount(crossing.arc_set, weights=speed, minlength=count)
    sets = np.flatnonzero((demand > 0) & (capacity > 0))
    bound = np.maximum(demand[sets] / capacity[sets], _stepped(network, crossing)[sets])
    return Cuts(bound, _common_tier(network, crossing)[sets])


def _demand(crossing: _Crossing, amount: Floats) -> Floats:
    """An amount of each flow summed by set, the worst phase of each job."""
    flows = crossing.flows
    return phased_loads(crossing.count, crossing.flow_set, amount, flows.job, flows.phase)


def _common_tier(network: Network, crossing: _Crossing) -> Ints:
    tier = network.fabric.structure.tier_of_arc[crossing.arcs]
    low = np.full(crossing.count, np.iinfo(np.int64).max)
    high = np.full(crossing.count, NONE, dtype=np.int64)
    np.minimum.at(low, crossing.arc_set, tier)
    np.maximum.at(high, crossing.arc_set, tier)
    return np.where(low == high, high, NONE)


def _stepped(network: Network, crossing: _Crossing) -> Floats:
    """Bounds from counting whole QPs over equal arcs, 0 where that does not apply."""
    flows, count = crossing.flows, crossing.count
    low, high = _range(flows.gbps / flows.qps, crossing.flow_set, count)
    speed = network.fabric.structure.capacity[crossing.arcs]
    slow, fast = _range(speed, crossing.arc_set, count)
    qps = _demand(crossing, flows.qps.astype(np.float64))
    width = np.bincount(crossing.arc_set, minlength=count)
    equal = (high <= low * (1 + 1e-9)) & (fast <= slow * (1 + 1e-9)) & (width > 0) & (qps > 0)
    steps = np.zeros(count)
    steps[equal] = np.ceil(np.round(qps[equal]) / width[equal]) * low[equal] / fast[equal]
    return steps


def _range(values: Floats, group: Ints, count: int) -> tuple[Floats, Floats]:
    low, high = np.full(count, np.inf), np.zeros(count)
    np.minimum.at(low, group, values)
    np.maximum.at(high, group, values)
    return low, high
