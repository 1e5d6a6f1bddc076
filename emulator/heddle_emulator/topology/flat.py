"""Fabrics without tiers: plain switches in a random regular graph or a dragonfly.

They test that code which works on fabrics does not rely on leaves and spines.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.errors import refuse
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_emulator.topology.assembly import Assembly, Racks, counts, numbered, speeds

ATTEMPTS = 100
"""Graphs to draw before giving up on a connected one; one in a million needs a second."""


def random_regular(
    *,
    switches: int,
    degree: int,
    nics_per_switch: int,
    seed: int = 0,
    nics_per_host: int = 8,
    nic_gbps: float = 400.0,
    link_gbps: float = 400.0,
    table_size: int = NONE,
    name: str = "random-regular",
) -> Fabric:
    """Build a connected graph in which each switch is joined to ``degree`` others; Gbit/s.

    Raises:
        InputError: There is no such graph, or none that was drawn is connected.
    """
    sizes = {"switches": switches, "nics_per_switch": nics_per_switch}
    counts("random-regular", **sizes, degree=degree, nics_per_host=nics_per_host)
    speeds("random-regular", nic_gbps=nic_gbps, link_gbps=link_gbps)
    if degree >= switches or switches * degree % 2:
        cure = f"is {degree}; give less than the {switches} switches, and switches x degree even"
        raise refuse("topology random-regular", "degree", cure)
    ends = _connected(switches, degree, seed)
    racks = Racks(nics_per_switch, nics_per_host, nic_gbps)
    return _flat(Assembly(name, table_size), switches, ends, link_gbps, racks)


def dragonfly(
    *,
    routers: int,
    global_links: int,
    nics_per_switch: int,
    nics_per_host: int = 8,
    nic_gbps: float = 400.0,
    link_gbps: float = 400.0,
    table_size: int = NONE,
    name: str = "dragonfly",
) -> Fabric:
    """Build a balanced dragonfly: groups of ``routers``, one link between any two; Gbit/s.

    The routers of a group are all joined to each other. Each has ``global_links`` to other groups.
    There are ``routers * global_links + 1`` groups.

    Raises:
        InputError: The message names the option with which no fabric is possible.
    """
    sizes = {"routers": routers, "global_links": global_links, "nics_per_switch": nics_per_switch}
    counts("dragonfly", **sizes, nics_per_host=nics_per_host)
    speeds("dragonfly", nic_gbps=nic_gbps, link_gbps=link_gbps)
    groups = routers * global_links + 1
    local = np.stack(np.triu_indices(routers, 1))
    base = np.arange(groups, dtype=np.int64)[:, None] * routers
    inside = np.stack([(base + local[0]).ravel(), (base + local[1]).ravel()])
    # Group i's n-th port leads to group i + n + 1, where it is port groups - n - 2.
    low, high = np.triu_indices(groups, 1)
    port_low, port_high = high - low - 1, groups - (high - low) - 1
    between = np.stack(
        [low * routers + port_low // global_links, high * routers + port_high // global_links]
    )
    ends = np.concatenate([inside, between], axis=1)
    racks = Racks(nics_per_switch, nics_per_host, nic_gbps)
    return _flat(Assembly(name, table_size), groups * routers, ends, link_gbps, racks)


def _connected(switches: int, degree: int, seed: int) -> Ints:
    import networkx as nx  # noqa: PLC0415 - so that no other fabric waits for it

    for attempt in range(ATTEMPTS):
        graph = nx.random_regular_graph(degree, switches, seed=seed * ATTEMPTS + attempt)
        if nx.is_connected(graph):
            return np.array(sorted(sorted(edge) for edge in graph.edges), dtype=np.int64).T
    raise refuse("topology random-regular", "degree", f"is {degree}, too few to connect; give more")


def _flat(assembly: Assembly, switches: int, ends: Ints, link_gbps: float, racks: Racks) -> Fabric:
    names = numbered("x", switches)
    switch = assembly.nodes(NodeKind.SWITCH, names)
    assembly.links(switch[ends[0]], switch[ends[1]], link_gbps)
    none = np.full(switches, NONE, dtype=np.int64)
    return assembly.build([], racks.hang(assembly, switch, names, none))
