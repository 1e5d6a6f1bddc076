"""The largest fabric with its traffic, planned: where repairs and arrivals begin."""

from __future__ import annotations

from functools import cache

from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.plan import Plan
from heddle_controller.solve import solve
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
