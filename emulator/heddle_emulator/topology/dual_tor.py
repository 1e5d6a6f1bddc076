"""Dual-ToR fabrics: every NIC has a link to each of the two leaves of its pair.

With two planes, the first leaves of all pairs and half the spines form a fabric of their own, and
the second leaves and the other spines another. A packet stays in the plane in which it left its
NIC. With one plane, every leaf is joined to every spine.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.topology.assembly import Assembly, Racks, counts, numbered, speeds

SIDES = "ab"


def dual_tor(
    *,
    pairs: int,
    spines: int,
    nics_per_pair: int,
    nics_per_host: int = 8,
    planes: int = 1,
    nic_gbps: float = 200.0,
    uplink_gbps: float = 400.0,
    table_size: int = NONE,
    name: str = "dual-tor",
) -> Fabric:
    """Build ``pairs`` of leaves, each with whole hosts, under ``spines`` in all; Gbit/s.

    ``nic_gbps`` is the speed of one of a NIC's two links. A leaf has one uplink to each spine of
    its plane. Its capacity up and down is equal if the number of spines of a plane times
    ``uplink_gbps`` equals ``nics_per_pair`` times ``nic_gbps``.

    Raises:
        InputError: The message names the option with which no fabric is possible.
    """
    sizes = {"pairs": pairs, "spines": spines, "nics_per_pair": nics_per_pair}
    counts("dual-tor", **sizes, nics_per_host=nics_per_host)
    speeds("dual-tor", nic_gbps=nic_gbps, uplink_gbps=uplink_gbps)
    if planes not in {1, 2}:
        raise refuse("topology dual-tor", "planes", f"is {planes}; give 1 or 2")
    if spines % planes:
        reason = f"is {spines}, odd, for 2 planes; give an even number"
        raise refuse("topology dual-tor", "spines", reason)
    assembly = Assembly(name, table_size)
    racks = numbered("p", pairs)
    side = np.tile(np.arange(2, dtype=np.int64), pairs)
    plane = side if planes == 2 else NONE  # noqa: PLR2004 - two planes
    names = [f"{rack}{letter}" for rack in racks for letter in SIDES]
    leaf = assembly.nodes(NodeKind.LEAF, names, zone=0, plane=plane).reshape(pairs, 2)
    half = spines // planes
    of_spine = np.arange(spines, dtype=np.int64) // half if planes > 1 else NONE
    spine = assembly.nodes(NodeKind.SPINE, numbered("s", spines), zone=0, plane=of_spine)
    for number, own in enumerate(leaf.T):
        above = spine.reshape(planes, half)[number % planes]
        assembly.links(np.repeat(own, half), np.tile(above, pairs), uplink_gbps)
    hang = Racks(nics_per_pair, nics_per_host, nic_gbps)
    zone = np.zeros(pairs, dtype=np.int64)
    return assembly.build(["z0"], hang.hang(assembly, leaf, racks, zone))
