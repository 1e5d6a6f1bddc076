"""Fabrics small enough to count by hand: host ``h3`` has the NICs ``h3-0``, ``h3-1``, ..."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heddle_controller.model.arrays import NONE
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import parse_fabric

Record = dict[str, object]


def without_zones(fabric: Fabric) -> Fabric:
    """Return the fabric as if its file stated no zones."""
    structure = fabric.structure
    nodes = replace(structure.nodes, zone=np.full_like(structure.nodes.zone, NONE))
    return replace(fabric, structure=replace(structure, nodes=nodes, zone_names=()))


def clos(hosts: int, nics: int, *, spines: int = 2, rails: bool = False) -> Fabric:
    """Return two tiers of 400 Gbit/s: a leaf for each host, or one for each rail."""
    switches: list[Record] = [{"id": f"spine{s}", "kind": "spine"} for s in range(spines)]
    leaves = range(nics if rails else hosts)
    switches += [{"id": f"leaf{leaf}", "kind": "leaf"} for leaf in leaves]
    nodes: list[Record] = []
    edges = [_edge(f"leaf{leaf}", f"spine{s}", 400.0) for leaf in leaves for s in range(spines)]
    for host in range(hosts):
        for nic in range(nics):
            node: Record = {"id": f"h{host}-{nic}", "kind": "nic", "host": f"h{host}"}
            nodes.append(node | ({"rail": nic} if rails else {}))
            edges.append(_edge(f"h{host}-{nic}", f"leaf{nic if rails else host}", 400.0))
    return parse_fabric({"nodes": nodes + switches, "edges": edges}, "a test")


def star(nics: dict[str, list[float]]) -> Fabric:
    """Return one switch with hosts; ``nics`` has the speeds of each host's NICs in Gbit/s."""
    nodes: list[Record] = [{"id": "s", "kind": "leaf"}]
    edges = []
    for host, speeds in nics.items():
        for nic, speed in enumerate(speeds):
            nodes.append({"id": f"{host}-{nic}", "kind": "nic", "host": host})
            edges.append(_edge(f"{host}-{nic}", "s", speed))
    return parse_fabric({"nodes": nodes, "edges": edges}, "a test")


def _edge(source: str, target: str, gbps: float) -> Record:
    return {"source": source, "target": target, "gbps": gbps}


def shared_data(name: str) -> Path:
    """Return the path of a public trace or topology; skip the test if it does not exist."""
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    path = Path(os.environ.get("HEDDLE_SHARED_DATA", beside)) / name
    if not path.exists():
        pytest.skip(f"{name} is not in {path.parent}; set HEDDLE_SHARED_DATA to where it is")
    return path
