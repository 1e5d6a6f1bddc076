"""The largest fabric with its traffic, planned: where repairs and arrivals begin."""

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
    """The plan; made once."""
    fabric = published_zones(scale)
    return solve(fabric, zone_traffic(fabric, 0))


def size_of(fabric: Fabric) -> str:
    """In words: "24,576 NICs"."""
    return f"{len(fabric.rows_of_kind(NodeKind.NIC)):,} NICs"


def fabric_of(scale: Scale, hosts: int) -> Fabric:
    """So many hosts or the next more: zones under cores, or a part of one where it will do."""
    leaves, spines, nics = scale.zone
    if hosts > leaves * nics:
        return published_zones(scale, -(-hosts // (leaves * nics)))
    return clos(leaves=-(-hosts // nics), spines=spines, nics_per_leaf=nics)
