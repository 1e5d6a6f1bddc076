"""Bounds of leaves whose NICs also have links to other leaves.

What the NICs of a leaf send to other leaves goes up from that leaf, or over other links of these
NICs. A cut around the leaf and all its NICs proves too little, because it counts the links of NICs
whose flows stay below the leaf. No path leads through a NIC, so the cut may go around the leaf and
only those NICs that send more than their other links carry. The same holds for traffic that they
receive.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints, distinct_floats, ranges
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import phased_loads
from heddle_controller.solve.bounds.bound import DOUBT, Bound, common_measure, in_whole_qps
from heddle_controller.solve.network import Network

_ROUNDS = 8
"""Most rounds that leave out NICs whose other links are wide enough (Dinkelbach). Few are
needed."""
_CLOSE = 1e-9


def with_shared_leaves(network: Network, flows: Flows, routed: Bools, bound: Bound) -> Bound:
    """Return the bound in whole QPs, raised to what shared leaves prove.

    ``routed`` marks the flows that count, shape (flows,). ``arcs`` and ``beside`` of the result
    also include what the links of leaves to other switches must carry.
    """
    ways = [_SharedLeaves.of(network, flows, routed, inwards=inwards) for inwards in (False, True)]
    least = max(float(way.least().max(initial=0.0)) for way in ways)
    bound = replace(bound, overall=max(bound.overall, least))
    bound = in_whole_qps(network, flows, routed, bound)
    step = common_measure(flows.gbps[routed] / flows.qps[routed])
    if step:
        bound = replace(bound, overall=_next_possible(network, ways, bound.overall, step))
    inner = network.inner[network.usable[network.inner]]
    upwards = np.zeros(len(inner))
    for way, leaf in zip(ways, (network.tail, network.head), strict=True):
        over = way.least_upwards(max(bound.overall, 1.0), step)
        np.maximum(upwards, over[leaf[inner]], out=upwards)
    if step:
        per_step = step * network.per_gbps[inner]
        upwards = np.ceil(upwards / per_step - DOUBT) * per_step
    arcs, beside = np.zeros(network.arc_count + 1), bound.tiers.copy()
    arcs[inner] = upwards
    np.maximum.at(beside, network.tier[inner], upwards)
    return replace(
        bound, beside=beside, arcs=arcs if bound.arcs is None else np.maximum(arcs, bound.arcs)
    )


def _next_possible(network: Network, ways: list[_SharedLeaves], least: float, step: float) -> float:
    """Return the least worst utilisation, from ``least`` on, at which whole QPs leave every leaf.

    The search stops after some steps, so the result may be too low, but never too high.
    """
    steps = step * distinct_floats(network.per_gbps[:-1][network.usable])
    for _ in range(_ROUNDS):
        if all((way.least_upwards(least, step) <= least + _CLOSE).all() for way in ways):
            break
        least = float(((np.floor(least / steps + DOUBT) + 1) * steps).min())
    return least


@dataclass(frozen=True, slots=True, eq=False)
class _SharedLeaves:
    """The leaves of NICs, and what these NICs send beyond them, or receive (inwards)."""

    leaf: Ints
    """Leaf of each pair of a leaf and one of its NICs."""
    wide: Floats
    """Gbit/s of the NIC's links to other leaves, shape (pairs,)."""
    up: Floats
    """Gbit/s of each node's links to other switches, shape (nodes,)."""
    mixed: Bools
    """Whether these links are of several tiers, shape (nodes,)."""
    pair: Ints
    """Pairs that flows go beyond: one element for each leaf of a flow's NIC that it must leave."""
    flow: Ints
    """Flow row of each element of ``pair``."""
    flows: Flows

    @classmethod
    def of(cls, network: Network, flows: Flows, routed: Bools, *, inwards: bool) -> _SharedLeaves:
        """Return the leaves of one fabric. ``routed`` marks the flows that count."""
        capacity, count = network.fabric.structure.capacity, network.fabric.node_count
        is_nic = network.level == NodeKind.NIC
        out = np.flatnonzero(network.usable & is_nic[network.tail])
        code = network.tail[out] * count + network.head[out]
        pairs, place = np.unique(code, return_inverse=True)
        nic, leaf = pairs // count, pairs % count
        speed = capacity[out ^ 1] if inwards else capacity[out]
        own = np.bincount(place, speed, len(pairs))
        wide = np.bincount(nic, own, count)[nic] - own
        rising = np.flatnonzero(network.usable & ~is_nic[network.tail] & ~is_nic[network.head])
        below = network.head[rising] if inwards else network.tail[rising]
        tier, mixed = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.bool_)
        tier[below] = network.tier[rising]
        mixed[below[tier[below] != network.tier[rising]]] = True
        rows = np.flatnonzero(routed)
        ends = flows.source[rows], flows.destination[rows]
        here, there = reversed(ends) if inwards else ends
        first = np.searchsorted(nic, np.arange(count + 1))
        flow = np.repeat(np.arange(len(rows)), np.diff(first)[here])
        pair = ranges(first[here], first[here + 1])
        beyond = ~np.isin(there[flow] * count + leaf[pair], pairs)
        up = np.bincount(below, capacity[rising], count).astype(np.float64)
        return cls(leaf, wide, up, mixed, pair[beyond], rows[flow[beyond]], flows)

    def least(self) -> Floats:
        """Return the lower bound on the worst of the links around each leaf, shape (nodes,)."""
        sent, count = self._sent(), len(self.up)
        least = np.zeros(count)
        for _ in range(_ROUNDS):
            some = sent > self.wide * least[self.leaf]
            width = self.up + np.bincount(self.leaf[some], self.wide[some], count)
            demand = self._demand(some)
            now = np.divide(demand, width, out=np.zeros(count), where=width > 0)
            if (now <= least * (1 + _CLOSE)).all():
                break
            np.maximum(least, now, out=least)
        return least

    def least_upwards(self, most: float, step: float) -> Floats:
        """Return the least that each leaf's links to switches carry, if no link exceeds ``most``.

        It is a utilisation, shape (nodes,), and 0 where these links are of several tiers. ``step``
        is the common measure of the rates of all QPs; 0 for none.
        """
        wide = self.wide * most
        if step:
            wide = np.floor(wide / step + DOUBT) * step
        some, count = self._sent() > wide, len(self.up)
        over = self._demand(some) - np.bincount(self.leaf[some], wide[some], count)
        counted = (self.up > 0) & (over > 0) & ~self.mixed
        return np.divide(over, self.up, out=np.zeros(count), where=counted)

    def _sent(self) -> Floats:
        """Return what each NIC sends beyond each of its leaves, shape (pairs,)."""
        return self._summed(self.pair, self.flow, len(self.leaf))

    def _demand(self, some: Bools) -> Floats:
        """Return what the marked NICs together send beyond each leaf, shape (nodes,)."""
        counted = some[self.pair]
        return self._summed(self.leaf[self.pair[counted]], self.flow[counted], len(self.up))

    def _summed(self, sets: Ints, rows: Ints, count: int) -> Floats:
        flows = self.flows
        return phased_loads(count, sets, flows.gbps[rows], flows.job[rows], flows.phase[rows])
