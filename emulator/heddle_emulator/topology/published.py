"""Published clusters by name, at their published sizes, and rail-optimised fabrics.

The published clusters have two servers of 8 GPUs per rack and a 400G NIC per GPU: 16 NICs per leaf,
16 leaf uplinks, full bisection in a zone, and one seventh of it between zones. The larger one has
two spares: 18 uplinks for 16 NICs, which the builders of the first found they needed for failures.

In a rail-optimised fabric, the n-th NICs of all hosts of a scalable unit are on one leaf. A unit
has as many leaves as a host has NICs, and each leaf is one rail. Traffic between two hosts of a
unit on the same rail passes one switch. Between rails it goes through the spines, or first through
the host's own switch (PXN).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.topology.assembly import Assembly, counts, numbered, speeds
from heddle_emulator.topology.clos import three_tier


def rail_optimised(
    *,
    units: int = 1,
    servers: int = 32,
    rails: int = 8,
    spines: int = 16,
    nic_gbps: float = 400.0,
    uplink_gbps: float = 400.0,
    parallel: int = 2,
    rail_only: bool = False,
    table_size: int = NONE,
    name: str = "rail",
) -> Fabric:
    """Build ``units`` of ``servers`` x ``rails`` NICs, all leaves joined to all spines; Gbit/s.

    With 32 servers, 16 spines and 2 parallel links, the capacity of a leaf up and down is equal.
    With ``rail_only``, each rail has as many spines of its own, and no link joins the rails.

    Raises:
        InputError: The message names the option with which no fabric is possible.
    """
    sizes = {"units": units, "servers": servers, "rails": rails, "spines": spines}
    counts("rail", **sizes, parallel=parallel)
    speeds("rail", nic_gbps=nic_gbps, uplink_gbps=uplink_gbps)
    assembly = Assembly(name, table_size)
    unit_names = numbered("u", units)
    leaf_names = [f"{unit}-{rail}" for unit in unit_names for rail in numbered("r", rails)]
    leaf_rail = np.tile(np.arange(rails, dtype=np.int64), units)
    leaf = assembly.nodes(NodeKind.LEAF, leaf_names, zone=0, rail=leaf_rail)
    spine_names = numbered("s", spines)
    if rail_only:
        spine_names = [f"{rail}-{spine}" for rail in numbered("r", rails) for spine in spine_names]
    spine = assembly.nodes(NodeKind.SPINE, spine_names, zone=0).reshape(-1, spines)
    above = spine[leaf_rail if rail_only else 0 * leaf_rail]
    assembly.links(np.repeat(leaf, spines), above.ravel(), uplink_gbps, parallel)
    hosts = [f"{unit}-{host}" for unit in unit_names for host in numbered("h", servers)]
    nics = _nics(assembly, hosts, rails)
    on_leaf = np.broadcast_to(leaf.reshape(units, 1, rails), (units, servers, rails))
    assembly.links(nics, on_leaf.ravel(), nic_gbps)
    return assembly.build(["z0"], hosts)


def _nics(assembly: Assembly, hosts: list[str], rails: int) -> Ints:
    """Add the NICs of all hosts, host by host and rail by rail; return their rows."""
    return assembly.nodes(
        NodeKind.NIC,
        [f"{host}-n{rail}" for host in hosts for rail in range(rails)],
        zone=0,
        rail=np.tile(np.arange(rails), len(hosts)),
        host=np.repeat(np.arange(len(hosts)), rails),
    )


@dataclass(frozen=True, slots=True)
class Cluster:
    """A published cluster: its shape in words, and how to build it."""

    shape: str
    build: Callable[[], Fabric]


_META_24K = partial(
    three_tier, zones=8, leaves=192, spines=16, nics_per_leaf=16, cores=16, taper=7.0
)
_META_32K = partial(
    three_tier, zones=8, leaves=252, spines=18, nics_per_leaf=16, cores=18, taper=7.0
)
PUBLISHED = {
    "meta-24k": Cluster(
        "8 zones of 192 leaves x 16 NICs, 16 spines, 1:7 to the cores",
        partial(_META_24K, name="meta-24k"),
    ),
    "meta-32k": Cluster(
        "8 zones of 252 leaves x 16 NICs, 18 spines, 1:7 to the cores",
        partial(_META_32K, name="meta-32k"),
    ),
    "rail-256": Cluster(
        "32 servers x 8 rails, a leaf for each rail, 16 spines",
        partial(rail_optimised, name="rail-256"),
    ),
}


def published(name: str) -> Fabric:
    """Return a published cluster.

    Raises:
        InputError: The name is not known; the message lists the known names.
    """
    if name not in PUBLISHED:
        raise refuse("topology", name, f"is not known; give one of {', '.join(sorted(PUBLISHED))}")
    return PUBLISHED[name].build()
