"""Random small fabrics of every kind that planning has to handle, whole and damaged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_emulator.topology import clos, dragonfly, rail_optimised, random_regular, three_tier

Build = Callable[[Random], Fabric]


def two_tiers(rng: Random) -> Fabric:
    """Return leaves and spines, sometimes with parallel links, tapered either way."""
    return clos(
        leaves=rng.randint(2, 5),
        spines=rng.randint(1, 4),
        nics_per_leaf=rng.randint(1, 4),
        parallel=rng.choice([1, 1, 2, 3]),
    )


def planes(rng: Random) -> Fabric:
    """Return zones joined by tapered cores, a plane for each spine."""
    spines = rng.randint(2, 3)
    return three_tier(
        zones=rng.randint(2, 3),
        leaves=rng.randint(2, 3),
        spines=spines,
        nics_per_leaf=rng.randint(1, 3),
        cores=spines * rng.randint(1, 2),
        taper=rng.choice([1.0, 2.0, 7.0]),
    )


def mesh(rng: Random) -> Fabric:
    """Return zones joined by tapered cores, every spine to every core."""
    return three_tier(
        zones=rng.randint(2, 3),
        leaves=rng.randint(2, 3),
        spines=rng.randint(2, 3),
        nics_per_leaf=rng.randint(1, 3),
        cores=rng.randint(1, 3),
        taper=rng.choice([1.0, 3.0]),
        wiring="mesh",
    )


def rails(rng: Random) -> Fabric:
    """Return units of hosts whose NICs are each on a leaf of their own."""
    return rail_optimised(
        units=rng.randint(1, 2),
        servers=rng.randint(2, 4),
        rails=rng.randint(2, 3),
        spines=rng.randint(1, 3),
        parallel=rng.randint(1, 2),
    )


def mixed_speeds(rng: Random) -> Fabric:
    """Return two tiers in which each link between switches has one of three speeds."""
    fabric = two_tiers(rng)
    links = fabric.structure.links
    speeds = [rng.choice([100.0, 200.0, 400.0]) for _ in range(fabric.link_count)]
    gbps = np.where(inner_links(fabric), speeds, links.gbps)
    return replace(fabric, structure=replace(fabric.structure, links=replace(links, gbps=gbps)))


def regular(rng: Random) -> Fabric:
    """Return plain switches in a random regular graph."""
    return random_regular(
        switches=rng.choice([6, 8]),
        degree=3,
        nics_per_switch=rng.randint(1, 2),
        seed=rng.randrange(1000),
    )


def dragonflies(rng: Random) -> Fabric:
    """Return groups of plain switches, one link between any two groups."""
    return dragonfly(routers=2, global_links=rng.randint(1, 2), nics_per_switch=rng.randint(1, 2))


def homed_twice(rng: Random) -> Fabric:
    """Return two tiers whose NICs are on two leaves each."""
    leaves, spines, per_pair = 2 * rng.randint(1, 2), rng.randint(1, 3), rng.randint(2, 3)
    nics = [f"n{pair}-{i}" for pair in range(0, leaves, 2) for i in range(per_pair)]
    nodes: list[dict[str, Any]] = [{"id": nic, "kind": "nic"} for nic in nics]
    nodes += [{"id": f"l{i}", "kind": "leaf"} for i in range(leaves)]
    nodes += [{"id": f"s{i}", "kind": "spine"} for i in range(spines)]
    edges = [(nic, f"l{int(nic[1]) + side}") for nic in nics for side in (0, 1)]
    edges += [(f"l{i}", f"s{j}") for i in range(leaves) for j in range(spines)]
    return of_records(nodes, edges, gbps=400.0)


SINGLE_HOMED: Mapping[str, Build] = {
    "two-tiers": two_tiers,
    "planes": planes,
    "mesh": mesh,
    "rails": rails,
    "mixed-speeds": mixed_speeds,
    "regular": regular,
    "dragonfly": dragonflies,
}
SEEDS = st.integers(0, 2**32 - 1)
KINDS: Mapping[str, Build] = {**SINGLE_HOMED, "homed-twice": homed_twice}
EACH = 2000 // len(KINDS)
"""Cases of each kind in `make deep`."""


def of_records(
    nodes: list[dict[str, Any]], edges: list[tuple[str, str]], gbps: float = 100.0
) -> Fabric:
    """Return a fabric of node records and of links of one speed."""
    links = [{"source": a, "target": b, "gbps": gbps} for a, b in edges]
    return parse_fabric({"nodes": nodes, "edges": links}, "test")


def inner_links(fabric: Fabric) -> Bools:
    """Return which links are between two switches, shape (links,)."""
    kind, links = fabric.structure.nodes.kind, fabric.structure.links
    inner: Bools = (kind[links.a] != NodeKind.NIC) & (kind[links.b] != NodeKind.NIC)
    return inner


def leaf_of_nic(fabric: Fabric) -> Ints:
    """Return the switch row of each NIC, for NICs with one link; shape (nodes,)."""
    structure = fabric.structure
    own = np.flatnonzero(structure.nodes.kind[structure.tail] == NodeKind.NIC)
    leaf = np.full(fabric.node_count, NONE, dtype=np.int64)
    leaf[structure.tail[own]] = structure.head[own]
    return leaf


def switches(fabric: Fabric) -> Ints:
    """Return the node rows of all switches."""
    return np.flatnonzero(fabric.structure.nodes.kind != NodeKind.NIC)


def damaged(rng: Random, fabric: Fabric, share: float = 0.15) -> Fabric:
    """Return the fabric with some links, and sometimes a switch, down or drained."""
    states = (State.DOWN, State.DOWN, State.DRAINED)
    links = {row: rng.choice(states) for row in range(fabric.link_count) if rng.random() < share}
    nodes = {}
    if rng.random() < 2 * share:
        nodes[rng.choice(switches(fabric).tolist())] = rng.choice(states)
    return fabric.with_links(links).with_nodes(nodes)


def frayed(rng: Random, fabric: Fabric, share: float = 0.15) -> Fabric:
    """Return the fabric with some links between switches down."""
    rows = np.flatnonzero(inner_links(fabric)).tolist()
    return fabric.with_links({row: State.DOWN for row in rows if rng.random() < share})
