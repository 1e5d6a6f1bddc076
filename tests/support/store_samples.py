"""Small values of every kind that a store keeps, and a way to compare them."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.demand import Demands
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.model.flows import Flows, TrafficClass
from heddle_controller.model.job import Collective, Group, Job, Operation, Parallelism
from heddle_controller.model.plan import Certificate, Paths, Plan, TierCertificate, no_paths
from heddle_controller.model.program import Entries, Program


def clos(leaves: int = 2, spines: int = 2, hosts: int = 2, name: str = "small") -> Fabric:
    """Return leaves "l0"…, spines "s0"…, hosts "h0.0"… with one NIC each, 400 Gbit/s."""
    nodes: list[dict[str, Any]] = []
    edges: list[dict[str, Any]] = []
    for leaf in range(leaves):
        nodes.append({"id": f"l{leaf}", "kind": "leaf", "zone": "z"})
        for host in range(hosts):
            nic = f"n{leaf}.{host}"
            address = f"10.{leaf}.{host // 256}.{host % 256}"
            nodes.append(
                {"id": nic, "kind": "nic", "host": f"h{leaf}.{host}", "address": address, "rail": 0}
            )
            edges.append({"source": nic, "target": f"l{leaf}", "key": 0, "gbps": 400})
    for spine in range(spines):
        nodes.append({"id": f"s{spine}", "kind": "spine", "zone": "z", "table_size": 100})
        edges += [
            {"source": f"l{leaf}", "target": f"s{spine}", "key": 0, "gbps": 400}
            for leaf in range(leaves)
        ]
    return parse_fabric({"graph": {"name": name}, "nodes": nodes, "edges": edges}, "sample")


def job(name: str = "j1", hosts: tuple[str, ...] = ("h0.0", "h1.0"), **more: Any) -> Job:
    """Return a job with one GPU per host, or with the given ones."""
    ranks = sum(map(len, more.get("gpus", ()))) or len(hosts)
    ring = Collective(Operation.ALL_REDUCE, Group.DP, 1_000_000)
    return Job(
        name=name,
        hosts=hosts,
        gpus_per_host=1,
        **{
            "parallelism": Parallelism(dp=ranks),
            "collectives": (ring,) if ranks > 1 else (),
            "traffic_class": TrafficClass.LATENCY,
            **more,
        },
    )


def demands(*pairs: tuple[str, str], ids: str = "f") -> Demands:
    """Return a flow of 100 Gbit/s for each pair of NICs; ids are numbered."""
    count = len(pairs)
    return Demands(
        ids=tuple(f"{ids}{row}" for row in range(count)),
        source=tuple(source for source, _ in pairs),
        destination=tuple(destination for _, destination in pairs),
        gbps=np.full(count, 100.0),
        job=("d",) * count,
        phase=tuple("" if row % 2 else "p" for row in range(count)),
        qps=np.full(count, 4, dtype=np.int64),
        traffic_class=np.zeros(count, dtype=np.int64),
    )


def plan_of(fabric: Fabric) -> Plan:
    """Return a plan: n0.0 to n1.0 over s0 with a backup over s1, and a flow without a path."""
    index = fabric.structure.index
    flows = Flows(
        ids=("j1/f0", "j1/f1"),
        source=_ints(index["n0.0"], index["n0.1"]),
        destination=_ints(index["n1.0"], index["n1.1"]),
        gbps=np.array([400.0, 12.5]),
        job=_ints(0, 0),
        phase=_ints(0, -1),
        qps=_ints(1, 8),
        traffic_class=_ints(0, 1),
        weight=np.array([1.0, 2.5]),
        job_names=("j1",),
        phase_names=("j1/dp",),
    )
    return Plan(
        fabric=fabric,
        flows=flows,
        paths=_one_path(walk(fabric, "n0.0", "l0", "s0", "l1", "n1.0")),
        backups=_one_path(walk(fabric, "n0.0", "l0", "s1", "l1", "n1.0")),
        certificate=Certificate(1.0, 1.0, "cut", (TierCertificate("leaf-spine", 1.0, 0.5),)),
        unrouted={1: "every path is down"},
        notes=("backup shares a link",),
    )


def program_of(plan: Plan, epoch: int, generation: int, intent_version: int = 1) -> Program:
    """Return a program with one entry, at l0."""
    index = plan.fabric.structure.index
    arc = walk(plan.fabric, "l0", "s0", "l1")
    backup = walk(plan.fabric, "l0", "s1")
    entries = Entries(
        switch=_ints(index["l0"]),
        source=_ints(index["n0.0"]),
        destination=_ints(index["n1.0"]),
        source_port=_ints(0),
        destination_port=_ints(4791),
        primary=_ints(arc[0]),
        backup=_ints(backup[0]),
        stage=_ints(0),
        risk_first=_ints(0, 1),
        risk_links=_ints(arc[1] >> 1),
    )
    return Program(epoch, generation, intent_version, entries)


def walk(fabric: Fabric, *nodes: str) -> list[int]:
    """Return the arcs from node to node."""
    index, arcs = fabric.structure.index, []
    for here, there in pairwise(nodes):
        (row,) = fabric.find_links(here, there)
        arcs.append(2 * row + int(fabric.structure.links.a[row] != index[here]))
    return arcs


def _ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int64)


def _one_path(arcs: list[int]) -> Paths:
    zero = np.zeros(1, dtype=np.int64)
    if not arcs:
        return no_paths()
    first = np.array([0, len(arcs)], dtype=np.int64)
    return Paths(zero, zero, zero, first, np.array(arcs, dtype=np.int64))


def plain(value: Any) -> Any:
    """Return a value with its arrays as lists, so that two can be compared with ``==``."""
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.tolist())
    if is_dataclass(value) and not isinstance(value, type):
        parts = [field.name for field in fields(value) if field.compare]
        return {name: plain(getattr(value, name)) for name in parts}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value
