"""Small fabrics of every kind and flows of every sort, drawn from a seed.

A fabric is small enough for an exact optimum (``exact``) and otherwise like those of operators: two
and three tiers, tapered or not, zones of different size, planes, rails, switches without tiers,
NICs on two leaves, parallel links of unequal speed, and links and switches that are down or in
maintenance. Flows belong to several jobs with priorities, phases and classes, have equal or
different rates, and 1 to 16 QPs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from heddle_controller.model.demand import Demands, resolve
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.model.flows import Flows, TrafficClass

LINE = 400.0
"""Gbit/s of a NIC's link, if nothing else is given."""
SPEEDS = (100.0, 200.0, 400.0)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One drawn case."""

    seed: int
    kind: str
    fabric: Fabric
    flows: Flows

    def __str__(self) -> str:
        links, flows = self.fabric.link_count, len(self.flows)
        return f"seed {self.seed}: {self.kind}, {links} links, {flows} flows"


@dataclass(slots=True)
class Sketch:
    """A fabric under construction: node and link records."""

    random: Random
    nodes: list[dict[str, Any]] = field(default_factory=list)
    links: list[dict[str, Any]] = field(default_factory=list)

    def node(self, kind: str, **columns: Any) -> str:
        """Add a node; return its id."""
        name = f"{kind}{len(self.nodes)}"
        self.nodes.append({"id": name, "kind": kind, **columns})
        return name

    def nodes_of(self, kind: str, count: int, **columns: Any) -> list[str]:
        """Add so many nodes of one kind; return their ids."""
        return [self.node(kind, **columns) for _ in range(count)]

    def link(self, a: str, b: str, gbps: float = LINE, parallel: int = 1) -> None:
        """Add links between two nodes."""
        self.links += [{"source": a, "target": b, "gbps": gbps}] * parallel

    def fabric(self) -> Fabric:
        """Return the fabric drawn so far."""
        named: dict[frozenset[str], int] = {}
        links = []
        for link in self.links:
            ends = frozenset((link["source"], link["target"]))
            named[ends] = named.get(ends, -1) + 1
            links.append({**link, "key": named[ends]})
        return parse_fabric({"nodes": self.nodes, "edges": links}, "drawn")


def _uplinks(sketch: Sketch, lower: list[str], upper: list[str]) -> None:
    """Join every lower switch to every upper one: equal, of unequal speed, or parallel too."""
    random = sketch.random
    how = random.choice(["alike", "alike", "unlike", "parallel", "both"])
    gbps = random.choice(SPEEDS)
    count = random.randint(2, 3) if how == "parallel" else 1
    for a in lower:
        for b in upper:
            if how == "both":
                for _ in range(random.randint(1, 2)):
                    sketch.link(a, b, random.choice(SPEEDS))
            else:
                sketch.link(a, b, random.choice(SPEEDS) if how == "unlike" else gbps, count)


def _nics(sketch: Sketch, leaves: list[str], most: int = 3, **columns: Any) -> None:
    """Add up to so many NICs to each leaf."""
    for leaf in leaves:
        for _ in range(sketch.random.randint(1, most)):
            sketch.link(sketch.node("nic", **columns), leaf)


def two_tiers(sketch: Sketch) -> None:
    """Draw leaves and spines."""
    leaves = sketch.nodes_of("leaf", sketch.random.randint(2, 4))
    _nics(sketch, leaves)
    _uplinks(sketch, leaves, sketch.nodes_of("spine", sketch.random.randint(1, 4)))


def _zones(sketch: Sketch) -> list[list[str]]:
    """Draw zones of different size; return the spines of each."""
    spines = []
    for zone in range(2):
        leaves = sketch.nodes_of("leaf", sketch.random.randint(1, 3), zone=zone)
        _nics(sketch, leaves, 2, zone=zone)
        spines.append(sketch.nodes_of("spine", sketch.random.randint(1, 3), zone=zone))
        _uplinks(sketch, leaves, spines[-1])
    return spines


def mesh(sketch: Sketch) -> None:
    """Draw zones of different size in which all spines are joined to all cores."""
    spines = _zones(sketch)
    _uplinks(
        sketch,
        [spine for zone in spines for spine in zone],
        sketch.nodes_of("core", sketch.random.randint(1, 3)),
    )


def planes(sketch: Sketch) -> None:
    """Draw zones of different size; the n-th spine of each is joined to cores of its own."""
    spines = _zones(sketch)
    for plane in range(max(map(len, spines))):
        cores = sketch.nodes_of("core", sketch.random.randint(1, 2), plane=plane)
        _uplinks(sketch, [zone[plane % len(zone)] for zone in spines], cores)


def rails(sketch: Sketch) -> None:
    """Draw hosts whose NICs are each on a leaf of their own."""
    random = sketch.random
    leaves = sketch.nodes_of("leaf", random.randint(2, 3))
    for host in range(random.randint(2, 3)):
        for rail, leaf in enumerate(leaves):
            sketch.link(sketch.node("nic", host=f"h{host}", rail=rail), leaf)
    _uplinks(sketch, leaves, sketch.nodes_of("spine", random.randint(1, 4)))


def irregular(sketch: Sketch) -> None:
    """Draw switches without tiers: a random tree and some more links, NICs anywhere."""
    random = sketch.random
    switches = sketch.nodes_of("switch", random.randint(3, 7))
    pairs = [[switches[i], random.choice(switches[:i])] for i in range(1, len(switches))]
    pairs += [random.sample(switches, 2) for _ in range(random.randint(1, len(switches)))]
    alike = random.random() < 0.5
    for a, b in pairs:
        sketch.link(a, b, LINE if alike else random.choice(SPEEDS))
    for _ in range(random.randint(2, 6)):
        sketch.link(sketch.node("nic"), random.choice(switches))


def ring(sketch: Sketch) -> None:
    """Draw a ring of switches, or a torus of two rows."""
    random = sketch.random
    width, rows = random.randint(3, 4), random.choice([1, 2])
    grid = [sketch.nodes_of("switch", width) for _ in range(rows)]
    for row in grid:
        for here, there in zip(row, [*row[1:], row[0]], strict=True):
            sketch.link(here, there)
    for column in range(width if rows == 2 else 0):
        sketch.link(grid[0][column], grid[1][column], random.choice(SPEEDS))
    for switch in [switch for row in grid for switch in row]:
        sketch.link(sketch.node("nic"), switch)


def dual_homed(sketch: Sketch) -> None:
    """Draw NICs on two leaves each, some on one; sometimes with unequal speeds."""
    random = sketch.random
    leaves = sketch.nodes_of("leaf", random.choice([2, 4]))
    gbps = random.choice([200.0, 400.0])
    for first, second in zip(leaves[::2], leaves[1::2], strict=True):
        for _ in range(random.randint(2, 3)):
            nic, kind = sketch.node("nic"), random.random()
            sketch.link(nic, first, gbps)
            if kind > 0.15:
                sketch.link(nic, second, gbps if kind > 0.3 else random.choice(SPEEDS))
    _uplinks(sketch, leaves, sketch.nodes_of("spine", random.randint(1, 3)))


def dual_plane(sketch: Sketch) -> None:
    """Draw NICs on a leaf of each of two planes that are not joined elsewhere."""
    random = sketch.random
    pairs = random.randint(2, 3)
    leaves = [sketch.nodes_of("leaf", pairs, plane=plane) for plane in range(2)]
    for pair in range(pairs):
        for _ in range(random.randint(1, 2)):
            nic = sketch.node("nic")
            for plane in range(2):
                sketch.link(nic, leaves[plane][pair], 200.0)
    for plane in range(2):
        spines = sketch.nodes_of("spine", random.randint(1, 3), plane=plane)
        _uplinks(sketch, leaves[plane], spines)


def multi_homed(sketch: Sketch) -> None:
    """Draw NICs on one to three of the switches of a graph without tiers."""
    random = sketch.random
    switches = sketch.nodes_of("switch", random.randint(3, 5))
    for i, switch in enumerate(switches[1:], 1):
        sketch.link(switch, random.choice(switches[:i]), random.choice(SPEEDS))
    for _ in range(random.randint(1, 3)):
        a, b = random.sample(switches, 2)
        sketch.link(a, b, random.choice(SPEEDS))
    for _ in range(random.randint(3, 5)):
        nic = sketch.node("nic")
        for switch in random.sample(switches, random.randint(1, 3)):
            sketch.link(nic, switch, random.choice(SPEEDS))


KINDS: Mapping[str, Callable[[Sketch], None]] = {
    "two-tiers": two_tiers,
    "mesh": mesh,
    "planes": planes,
    "rails": rails,
    "irregular": irregular,
    "ring": ring,
    "dual-homed": dual_homed,
    "dual-plane": dual_plane,
    "multi-homed": multi_homed,
}


def drawn(seed: int, most_flows: int = 8) -> Case:
    """Return the case of a seed; the kinds take turns."""
    kind = [*KINDS][seed % len(KINDS)]
    random = Random(f"{kind} {seed}")
    sketch = Sketch(random)
    KINDS[kind](sketch)
    fabric = damaged(random, sketch.fabric(), random.choice([0.0, 0.0, 0.1, 0.25]))
    return Case(seed, kind, fabric, flows_for(random, fabric, most_flows))


def damaged(random: Random, fabric: Fabric, share: float) -> Fabric:
    """Return the fabric with a share of links, and sometimes a switch, down or drained."""
    states = (State.DOWN, State.DOWN, State.DRAINED)
    links = {
        row: random.choice(states) for row in range(fabric.link_count) if random.random() < share
    }
    nodes = {}
    if random.random() < share:
        switches = np.flatnonzero(fabric.structure.nodes.kind != NodeKind.NIC).tolist()
        nodes[random.choice(switches)] = random.choice(states)
    return fabric.with_links(links).with_nodes(nodes)


def flows_for(random: Random, fabric: Fabric, most: int) -> Flows:
    """Return flows of all sorts, at least one: equal in one or all respects, or in none."""
    ids = fabric.structure.nodes.ids
    nics = [ids[row] for row in fabric.rows_of_kind(NodeKind.NIC).tolist()]
    count, jobs = random.randint(1, most), random.randint(1, 3)
    rate, qps = _rates(random), _qps(random)
    phases = random.choice([[""], [""], ["", "p"], ["p", "q"], ["", "p", "q"]])
    pairs = [random.sample(nics, 2) for _ in range(count)]
    if random.random() < 0.2:  # everyone to the same few
        pairs = [random.choice(pairs[:2]) for _ in pairs]
    latency = random.choice([0.0, 0.0, 0.0, 0.3, 1.0])
    demands = Demands(
        ids=tuple(f"f{row}" for row in range(count)),
        source=tuple(a for a, _ in pairs),
        destination=tuple(b for _, b in pairs),
        gbps=np.array([rate() for _ in pairs]),
        job=tuple(f"j{random.randrange(jobs)}" for _ in pairs),
        phase=tuple(random.choice(phases) for _ in pairs),
        qps=np.array([qps() for _ in pairs], dtype=np.int64),
        traffic_class=np.array(
            [
                TrafficClass.LATENCY if random.random() < latency else TrafficClass.BANDWIDTH
                for _ in pairs
            ],
            dtype=np.int64,
        ),
    )
    ranks = [1.0] if random.random() < 0.7 else [1.0, 2.0, 5.0]
    return resolve(
        demands, fabric, {f"j{job}": random.choice(ranks) for job in range(jobs)}, origin="drawn"
    )


def _rates(random: Random) -> Callable[[], float]:
    one = random.choice([400.0, 200.0, 100.0])
    if random.random() < 0.6:
        return lambda: one
    return lambda: random.choice([400.0, 200.0, 100.0, 50.0, 25.0, 300.0])


def _qps(random: Random) -> Callable[[], int]:
    one = random.choice([1, 2, 4, 8, 16])
    if random.random() < 0.6:
        return lambda: one
    return lambda: random.choice([1, 2, 3, 4, 5, 8, 16])
