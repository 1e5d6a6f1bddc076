"""Two-tier and three-tier Clos fabrics with whole hosts under each leaf.

The three-tier builder takes the taper of the core instead of a link speed: a spine's capacity to
the cores is its capacity to the leaves divided by the taper. It uses as many parallel links as
possible without making one slower than a leaf uplink, because a flow at line rate would not fit a
slower one. The links share the capacity evenly, so the taper is met exactly.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.topology.assembly import Assembly, Racks, counts, numbered, speeds

Wiring = Literal["plane", "mesh"]


def clos(
    *,
    leaves: int,
    spines: int,
    nics_per_leaf: int,
    nics_per_host: int = 8,
    nic_gbps: float = 400.0,
    uplink_gbps: float = 400.0,
    parallel: int = 1,
    table_size: int = NONE,
    name: str = "clos",
) -> Fabric:
    """Build one zone in which ``parallel`` links join every leaf to every spine; Gbit/s.

    Raises:
        InputError: The message names the option with which no fabric is possible.
    """
    sizes = {"leaves": leaves, "spines": spines, "nics_per_leaf": nics_per_leaf}
    counts("clos", **sizes, nics_per_host=nics_per_host, parallel=parallel)
    speeds("clos", nic_gbps=nic_gbps, uplink_gbps=uplink_gbps)
    assembly = Assembly(name, table_size)
    leaf_names = numbered("l", leaves)
    leaf = assembly.nodes(NodeKind.LEAF, leaf_names, zone=0)
    spine = assembly.nodes(NodeKind.SPINE, numbered("s", spines), zone=0)
    assembly.links(np.repeat(leaf, spines), np.tile(spine, leaves), uplink_gbps, parallel)
    zone = np.zeros(leaves, dtype=np.int64)
    racks = Racks(nics_per_leaf, nics_per_host, nic_gbps)
    return assembly.build(["z0"], racks.hang(assembly, leaf, leaf_names, zone))


def three_tier(
    *,
    zones: int,
    leaves: int,
    spines: int,
    nics_per_leaf: int,
    cores: int,
    taper: float = 1.0,
    wiring: Wiring = "plane",
    nics_per_host: int = 8,
    nic_gbps: float = 400.0,
    uplink_gbps: float = 400.0,
    table_size: int = NONE,
    name: str = "three-tier",
) -> Fabric:
    """Build zones of ``leaves`` x ``spines``, joined by ``cores``; speeds in Gbit/s.

    ``plane`` wiring joins spine ``i`` of each zone to the cores of plane ``i`` and needs a whole
    number of cores per plane. ``mesh`` joins every spine to every core.

    Raises:
        InputError: The message names the option with which no fabric is possible.
    """
    sizes = {"zones": zones, "leaves": leaves, "spines": spines, "cores": cores}
    counts("three-tier", **sizes, nics_per_leaf=nics_per_leaf, nics_per_host=nics_per_host)
    speeds("three-tier", nic_gbps=nic_gbps, uplink_gbps=uplink_gbps, taper=taper)
    if wiring == "plane" and cores % spines:
        cure = f"is {cores}; give a multiple of the {spines} spines of a zone, or wire as a mesh"
        raise refuse("topology three-tier", "cores", cure)
    assembly = Assembly(name, table_size)
    zone_names = numbered("z", zones)
    leaf_names = [f"{zone}-{leaf}" for zone in zone_names for leaf in numbered("l", leaves)]
    spine_names = [f"{zone}-{spine}" for zone in zone_names for spine in numbered("s", spines)]
    leaf_zone = np.repeat(np.arange(zones, dtype=np.int64), leaves)
    leaf = assembly.nodes(NodeKind.LEAF, leaf_names, zone=leaf_zone)
    spine_zone = np.repeat(np.arange(zones, dtype=np.int64), spines)
    plane = np.tile(np.arange(spines), zones) if wiring == "plane" else NONE
    spine = assembly.nodes(NodeKind.SPINE, spine_names, zone=spine_zone, plane=plane)
    grid = np.broadcast_to(spine.reshape(zones, 1, spines), (zones, leaves, spines))
    assembly.links(np.repeat(leaf, spines), grid.ravel(), uplink_gbps)
    upwards = leaves * uplink_gbps / taper
    _join_cores(assembly, spine.reshape(zones, spines), cores, wiring, (upwards, uplink_gbps))
    racks = Racks(nics_per_leaf, nics_per_host, nic_gbps)
    return assembly.build(zone_names, racks.hang(assembly, leaf, leaf_names, leaf_zone))


def _join_cores(
    assembly: Assembly, spine: Ints, cores: int, wiring: Wiring, gbps: tuple[float, float]
) -> None:
    """Join spines, shape (zones, spines), to new cores.

    ``gbps`` is the capacity upwards of each spine, and the least speed of a link.
    """
    zones, spines = spine.shape
    reach = cores // spines if wiring == "plane" else cores
    core_plane = np.repeat(np.arange(spines), reach) if wiring == "plane" else NONE
    core = assembly.nodes(NodeKind.CORE, numbered("c", cores), plane=core_plane)
    if wiring == "plane":
        reached = np.broadcast_to(core.reshape(spines, reach), (zones, spines, reach))
    else:
        reached = np.broadcast_to(core, (zones, spines, reach))
    upwards, least = gbps
    parallel = max(1, int(upwards / (least * reach) + 1e-9))
    each = upwards / (reach * parallel)
    assembly.links(np.repeat(spine.ravel(), reach), reached.ravel(), each, parallel)
