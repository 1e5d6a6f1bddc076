"""Random fabrics and plans for property tests: any graph, any split, links down."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import numpy as np

from heddle_controller.model.arrays import Bools
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, Plan
from tests.support.plan_building import Wish, certificate_of, joined, wishes


def random_fabric(rng: Random) -> Fabric:
    """Switches in any connected graph with parallel links, NICs at one or two of them."""
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
    """The same fabric with some links down."""
    down = [row for row in range(fabric.link_count) if rng.random() < share]
    return fabric.with_links(dict.fromkeys(down, State.DOWN))


def random_plan(rng: Random, fabric: Fabric) -> Plan:
    """Flows between random NICs, their QPs split over random loop-free paths."""
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
    """Consecutive ranges that make up all QPs."""
    bounds = sorted({0, qps, *(rng.randint(0, qps) for _ in range(rng.randint(0, 3)))})
    return [(low, high - 1) for low, high in pairwise(bounds)]


def _walk(rng: Random, fabric: Fabric, flows: Flows, flow: int, free: Bools) -> list[int]:
    """Arcs of a random loop-free path; empty where there is none."""
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
    """A random path without the links between switches of the first; often none."""
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
