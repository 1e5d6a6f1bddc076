"""Random fabrics and plans for property tests, and small ones written in a few words.

Random ones have any graph, any split of QPs, and links that are down. A written path is the list of
its nodes: "n0 leaf0 spine1 leaf1 n2". ``#1`` before a node is the key of the link that leads to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np

from heddle_controller.model.arrays import Bools
from heddle_controller.model.demand import Demands, resolve
from heddle_controller.model.fabric import Fabric, NodeKind, State
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
    """Return NICs n0, n1, … at leaf0, leaf1, …, every leaf at every spine, all at 100 Gbit/s."""
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
    """Return a fabric of nodes and links of one speed; parallel links have keys from 0."""
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
    """Return flows by id."""
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
    """Return the arcs of a written path."""
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
    """Return paths from written paths by flow id."""
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
        """Return the plan, with a certificate that fits it."""
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
    """Return a certificate whose bounds are the values that were reached."""
    worst = worst_by_tier(fabric, arc_loads(len(fabric.structure.tail), flows, paths))
    top = max(worst.values())
    tiers = tuple(TierCertificate(tier, value, value) for tier, value in worst.items())
    return Certificate(top, top, "cut" if top else "none", tiers)


def random_fabric(rng: Random) -> Fabric:
    """Return switches in any connected graph with parallel links, NICs at one or two of them."""
    switches, nics = rng.randint(2, 6), rng.randint(2, 6)
    nodes = [{"id": f"s{i}", "kind": "switch"} for i in range(switches)]
    nodes += [{"id": f"n{i}", "kind": "nic"} for i in range(nics)]
    edges = [(f"s{rng.randrange(i)}", f"s{i}") for i in range(1, switches)]
    for _ in range(rng.randint(0, 8)):
        a, b = rng.sample(range(switches), 2)
        edges.append((f"s{a}", f"s{b}"))
    for i in range(nics):
        edges += [(f"n{i}", f"s{s}") for s in rng.choices(range(switches), k=rng.randint(1, 2))]
    return joined(nodes, edges)


def with_failures(rng: Random, fabric: Fabric, share: float = 0.2) -> Fabric:
    """Return the fabric with some links down."""
    down = [row for row in range(fabric.link_count) if rng.random() < share]
    return fabric.with_links(dict.fromkeys(down, State.DOWN))


def random_plan(rng: Random, fabric: Fabric) -> Plan:
    """Return flows between random NICs, their QPs split over random loop-free paths."""
    nics = [fabric.structure.nodes.ids[row] for row in fabric.rows_of_kind(NodeKind.NIC)]
    told = {}
    for number in range(rng.randint(1, 8)):
        source, destination = rng.sample(nics[: rng.randint(2, len(nics))], 2)
        told[f"f{number}"] = Wish(source, destination, 10.0 * rng.randint(1, 9), rng.randint(1, 6))
    flows = wishes(fabric, **told)
    routes = [(row, *cut) for row in range(len(flows)) for cut in _cuts(rng, int(flows.qps[row]))]
    free = fabric.plannable
    ways = {route: _walk(rng, fabric, flows, route[0], free) for route in routes}
    routed = [route for route in routes if all(ways[r] for r in routes if r[0] == route[0])]
    paths = _paths(routed, [ways[route] for route in routed])
    spare = [_spare(rng, fabric, flows, route[0], ways[route]) for route in routed]
    unrouted = {row: "no path" for row in range(len(flows)) if row not in {r[0] for r in routed}}
    certificate = certificate_of(fabric, flows, paths)
    return Plan(fabric, flows, paths, _paths(routed, spare), certificate, unrouted)


def _cuts(rng: Random, qps: int) -> list[tuple[int, int]]:
    """Return consecutive ranges that cover all QPs."""
    bounds = sorted({0, qps, *(rng.randint(0, qps) for _ in range(rng.randint(0, 3)))})
    return [(low, high - 1) for low, high in pairwise(bounds)]


def _walk(rng: Random, fabric: Fabric, flows: Flows, flow: int, free: Bools) -> list[int]:
    """Return the arcs of a random loop-free path; empty if there is none."""
    structure = fabric.structure
    end = int(flows.destination[flow])
    stack: list[list[int]] = [[]]
    while stack:
        path = stack.pop()
        node = int(structure.head[path[-1]]) if path else int(flows.source[flow])
        if node == end:
            return path
        if path and structure.nodes.kind[node] == NodeKind.NIC:
            continue
        seen = {int(structure.tail[arc]) for arc in path}
        further = np.flatnonzero((structure.tail == node) & free).tolist()
        rng.shuffle(further)
        stack += [[*path, arc] for arc in further if int(structure.head[arc]) not in seen]
    return []


def _spare(rng: Random, fabric: Fabric, flows: Flows, flow: int, way: list[int]) -> list[int]:
    """Return a random path that avoids the first one's links between switches; often none."""
    kind = fabric.structure.nodes.kind
    free = fabric.plannable.copy()
    for arc in way:
        ends = (fabric.structure.tail[arc], fabric.structure.head[arc])
        if NodeKind.NIC not in kind[list(ends)]:
            free[[arc, arc ^ 1]] = False
    spare = _walk(rng, fabric, flows, flow, free) if rng.random() < 0.8 else []
    return [] if spare == way else spare


def _paths(routes: list[tuple[int, int, int]], ways: list[list[int]]) -> Paths:
    flow, first_qp, last_qp = np.array(routes, dtype=np.int64).reshape(-1, 3).T
    return Paths(
        flow,
        first_qp,
        last_qp,
        first=np.concatenate([[0], np.cumsum([len(way) for way in ways])]).astype(np.int64),
        arcs=np.array([arc for way in ways for arc in way], dtype=np.int64),
    )
