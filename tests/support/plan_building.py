"""Small fabrics, flows and plans in a few words, for tests.

A way is written as its nodes, "n0 leaf0 spine1 leaf1 n2"; ``#1`` before a node names
the key of the link that leads to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from heddle_controller.model.demand import Demands, resolve
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import (
    Certificate,
    Paths,
    Plan,
    TierCertificate,
    arc_loads,
    worst_by_tier,
)

Way = tuple[int, int, str]
"""First QP, last QP, nodes."""


def clos(
    leaves: int = 2,
    spines: int = 2,
    nics: int = 2,
    *,
    parallel: int = 1,
    table_size: int | None = None,
) -> Fabric:
    """NICs n0, n1, … at leaf0, leaf1, …, every leaf at every spine, 100 Gbit/s all over."""
    nodes: list[dict[str, Any]] = [
        {"id": f"n{n}", "kind": "nic", "host": f"h{n // nics}", "rail": n % nics}
        for n in range(leaves * nics)
    ]
    nodes += [{"id": f"leaf{n}", "kind": "leaf", "table_size": table_size} for n in range(leaves)]
    nodes += [{"id": f"spine{n}", "kind": "spine"} for n in range(spines)]
    edges = [(f"n{n}", f"leaf{n // nics}") for n in range(leaves * nics)]
    edges += [
        (f"leaf{a}", f"spine{b}")
        for a in range(leaves)
        for b in range(spines)
        for _ in range(parallel)
    ]
    return joined(nodes, edges)


def joined(
    nodes: Sequence[Mapping[str, Any]], edges: Sequence[tuple[str, str]], gbps: float = 100.0
) -> Fabric:
    """A fabric of nodes and links of one speed; parallel links have keys counted from 0."""
    records = [{"source": a, "target": b, "gbps": gbps} for a, b in edges]
    return parse_fabric({"nodes": [*map(dict, nodes)], "edges": records}, "test")


@dataclass(frozen=True, slots=True)
class Wish:
    """One demand."""

    source: str
    destination: str
    gbps: float = 100.0
    qps: int = 1
    job: str = "job"
    phase: str = ""


def wishes(fabric: Fabric, **by_id: Wish) -> Flows:
    """Flows by id."""
    told = [*by_id.values()]
    demands = Demands(
        ids=tuple(by_id),
        source=tuple(wish.source for wish in told),
        destination=tuple(wish.destination for wish in told),
        gbps=np.array([wish.gbps for wish in told]),
        job=tuple(wish.job for wish in told),
        phase=tuple(wish.phase for wish in told),
        qps=np.array([wish.qps for wish in told], dtype=np.int64),
        traffic_class=np.zeros(len(told), dtype=np.int64),
    )
    return resolve(demands, fabric, origin="test")


def way_arcs(fabric: Fabric, nodes: str) -> list[int]:
    """Arcs of a way."""
    names = nodes.split()
    arcs: list[int] = []
    key = None
    for name in names[1:]:
        if name.startswith("#"):
            key = name[1:]
            continue
        before = names[0] if not arcs else fabric.structure.nodes.ids[_head(fabric, arcs[-1])]
        link = fabric.find_links(before, name, key)[0]
        first = int(fabric.structure.links.a[link])
        arcs.append(2 * link + (fabric.structure.nodes.ids[first] != before))
        key = None
    return arcs


def _head(fabric: Fabric, arc: int) -> int:
    return int(fabric.structure.head[arc])


def paths_of(fabric: Fabric, flows: Flows, ways: Mapping[str, Sequence[Way]]) -> Paths:
    """Paths from ways by flow id."""
    rows = [(flows.ids.index(name), *way) for name, told in ways.items() for way in told]
    rows.sort()
    arcs = [way_arcs(fabric, nodes) if nodes else [] for *_, nodes in rows]
    return Paths(
        flow=np.array([row for row, *_ in rows], dtype=np.int64),
        first_qp=np.array([low for _, low, _, _ in rows], dtype=np.int64),
        last_qp=np.array([high for _, _, high, _ in rows], dtype=np.int64),
        first=np.concatenate([[0], np.cumsum([len(way) for way in arcs])]).astype(np.int64),
        arcs=np.array([arc for way in arcs for arc in way], dtype=np.int64),
    )


@dataclass(frozen=True, slots=True)
class Draft:
    """A plan in words."""

    fabric: Fabric
    flows: Flows
    ways: Mapping[str, Sequence[Way]]
    backups: Mapping[str, Sequence[Way]] = field(default_factory=dict)
    unrouted: Mapping[str, str] = field(default_factory=dict)

    def plan(self) -> Plan:
        """The plan, with a certificate that fits it."""
        blank = {name: [(*way[:2], "") for way in told] for name, told in self.ways.items()}
        paths = paths_of(self.fabric, self.flows, self.ways)
        return Plan(
            fabric=self.fabric,
            flows=self.flows,
            paths=paths,
            backups=paths_of(self.fabric, self.flows, blank | dict(self.backups)),
            certificate=certificate_of(self.fabric, self.flows, paths),
            unrouted={self.flows.ids.index(name): why for name, why in self.unrouted.items()},
        )


def certificate_of(fabric: Fabric, flows: Flows, paths: Paths) -> Certificate:
    """A certificate whose bounds are what was reached."""
    worst = worst_by_tier(fabric, arc_loads(len(fabric.structure.tail), flows, paths))
    top = max(worst.values())
    tiers = tuple(TierCertificate(tier, value, value) for tier, value in worst.items())
    return Certificate(top, top, "cut" if top else "none", tiers)
