"""The plan of the largest fabric with its traffic, from which repairs and arrivals start."""

from __future__ import annotations

from functools import cache

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.plan import Plan
from heddle_controller.solve import solve
from heddle_emulator.topology import clos
from tests.bench.rows import Scale
from tests.bench.workloads import published_zones, zone_traffic


@cache
def planned(scale: Scale) -> Plan:
    """Return the plan of the largest fabric of a scale. It is made once per process."""
    fabric = published_zones(scale)
    return solve(fabric, zone_traffic(fabric, 0))


def even_fabric(scale: Scale) -> Fabric:
    """Return a fabric of two tiers without over-subscription, about as large as the largest."""
    leaves, _, nics = scale.zone
    return clos(leaves=leaves * scale.zones // 4, spines=4 * nics, nics_per_leaf=4 * nics)


def size_of(fabric: Fabric) -> str:
    """Return the size of a fabric in words, for example "24,576 NICs"."""
    return f"{len(fabric.rows_of_kind(NodeKind.NIC)):,} NICs"


def fabric_of(scale: Scale, hosts: int) -> Fabric:
    """Return a fabric of at least so many NICs, made of whole leaves or zones.

    It is part of one zone where that is enough, else several zones under cores.
    """
    leaves, spines, nics = scale.zone
    if hosts > leaves * nics:
        return published_zones(scale, -(-hosts // (leaves * nics)))
    return clos(leaves=-(-hosts // nics), spines=spines, nics_per_leaf=nics)
