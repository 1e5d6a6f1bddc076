"""What a walk comes to: load of links, collisions, and how slow the slowest flow is.

A collision is a QP that crosses a link between two switches on which more is sent
than it carries. On a tier that is over-subscribed on purpose some are unavoidable,
so they are also told by tier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.load import arc_loads, utilization, worst_by_tier
from heddle_controller.model.plan import Paths
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.walk.packets import Forwarding, Walk, walk

FULL = 1 + 1e-9
"""Utilisation above which a link counts as overloaded; what rounding adds is no overload."""


@dataclass(frozen=True, slots=True, eq=False)
class Measurement:
    """One walk, measured. Lost packets carry nothing: their flows are slower for it."""

    walk: Walk
    paths: Paths
    loads: Floats
    """Gbit/s of each arc, by the rule of the project: jobs added up in their worst phases."""
    worst: dict[str, float]
    """Greatest utilisation of each tier, from the hosts up."""
    collisions: int
    """QPs that cross an overloaded link between switches."""
    collisions_by_tier: dict[str, int]
    ratios: Floats
    """Max-min fair rate over demand of each flow, 0 to 1."""

    @property
    def slowest(self) -> float:
        """The smallest ratio of any flow; 1.0 is the roofline, and what no flows have."""
        return float(self.ratios.min(initial=1.0))


def measure(fabric: Fabric, flows: Flows, forwarding: Forwarding) -> Measurement:
    """Walk the packets of all flows and add up."""
    walked = walk(fabric, flows, forwarding)
    paths = walked.paths()
    loads = arc_loads(2 * fabric.link_count, flows, paths)
    overloaded = utilization(fabric, loads) > FULL
    overloaded &= ~_at_nic(fabric)
    tiers = {
        name: _qps_over(paths, overloaded & (fabric.structure.tier_of_arc == row))
        for row, name in enumerate(fabric.structure.tiers)
    }
    return Measurement(
        walk=walked,
        paths=paths,
        loads=loads,
        worst=worst_by_tier(fabric, loads),
        collisions=_qps_over(paths, overloaded),
        collisions_by_tier=tiers,
        ratios=flow_ratios(fabric.structure.capacity, flows, paths),
    )


def crossing(seen: Walk, links: Sequence[int]) -> Ints:
    """Rows of flows that had a QP on any of some links."""
    over = np.isin(seen.arcs >> 1, list(links)) & (seen.arcs != NONE)
    return np.unique(seen.flow[over.any(axis=1)])


def moved(before: Walk, after: Walk) -> Ints:
    """Rows of flows with a QP that goes another way in one walk than in the other."""
    hops = max(before.arcs.shape[1], after.arcs.shape[1])
    one, other = (_wide(seen.arcs, hops) for seen in (before, after))
    return np.unique(before.flow[(one != other).any(axis=1)])


def _wide(arcs: Ints, hops: int) -> Ints:
    return np.pad(arcs, ((0, 0), (0, hops - arcs.shape[1])), constant_values=NONE)


def _qps_over(paths: Paths, arcs: Bools) -> int:
    return int(paths.qp_count[paths.crosses(arcs)].sum())


def _at_nic(fabric: Fabric) -> Bools:
    kind = fabric.structure.nodes.kind
    ends = kind[fabric.structure.tail], kind[fabric.structure.head]
    return np.asarray((ends[0] == NodeKind.NIC) | (ends[1] == NodeKind.NIC))
