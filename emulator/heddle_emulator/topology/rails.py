"""Rail-optimised fabrics: the n-th NIC of every host of a scalable unit on one leaf.

A unit has as many leaves as a host has NICs, and each leaf is one rail. Traffic
between the same rails of two hosts of a unit passes one switch; between rails it
goes through the spines, or through the host's own switch first (PXN).
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.topology.assembly import Assembly, counts, numbered, speeds


def rail_optimised(
    *,
    units: int = 1,
    servers: int = 32,
    rails: int = 8,
    spines: int = 16,
    nic_gbps: float = 400.0,
    uplink_gbps: float = 400.0,
    parallel: int = 2,
    table_size: int = NONE,
    name: str = "rail",
) -> Fabric:
    """``units`` of ``servers`` x ``rails`` NICs, every leaf joined to every spine. Gbit/s.

    With 32 servers, 16 spines and 2 parallel links a leaf has as much up as down.

    Raises:
        InputError: naming the option that makes no fabric.
    """
    sizes = {"units": units, "servers": servers, "rails": rails, "spines": spines}
    counts("rail", **sizes, parallel=parallel)
    speeds("rail", nic_gbps=nic_gbps, uplink_gbps=uplink_gbps)
    assembly = Assembly(name, table_size)
    unit_names = numbered("u", units)
    leaf_names = [f"{unit}-{rail}" for unit in unit_names for rail in numbered("r", rails)]
    leaf_rail = np.tile(np.arange(rails, dtype=np.int64), units)
    leaf = assembly.nodes(NodeKind.LEAF, leaf_names, zone=0, rail=leaf_rail)
    spine = assembly.nodes(NodeKind.SPINE, numbered("s", spines), zone=0)
    assembly.links(np.repeat(leaf, spines), np.tile(spine, len(leaf)), uplink_gbps, parallel)
    hosts = [f"{unit}-{host}" for unit in unit_names for host in numbered("h", servers)]
    nics = _nics(assembly, hosts, rails)
    on_leaf = np.broadcast_to(leaf.reshape(units, 1, rails), (units, servers, rails))
    assembly.links(nics, on_leaf.ravel(), nic_gbps)
    return assembly.build(["z0"], hosts)


def _nics(assembly: Assembly, hosts: list[str], rails: int) -> Ints:
    """The NICs of all hosts, host by host and rail by rail."""
    return assembly.nodes(
        NodeKind.NIC,
        [f"{host}-n{rail}" for host in hosts for rail in range(rails)],
        zone=0,
        rail=np.tile(np.arange(rails), len(hosts)),
        host=np.repeat(np.arange(len(hosts)), rails),
    )
