"""A small network of random shape whose switches evaluate the pushes they get.

The walker tries every next hop that ECMP could take. So it also finds loops and black holes that
only some hashes would meet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.files.fabric_file import parse_fabric
from heddle_controller.model.flows import ROCE_PORT, Flows
from heddle_controller.model.plan import Paths, Plan, no_paths
from heddle_controller.model.program import Entries
from tests.support.reconcile_switches import Match, SwitchTable, Way, match_of, way_of


def random_fabric(random: Random, switches: int, nics: int) -> Fabric:
    """Return a connected graph of switches "s0"…, with NICs "n0"… spread over them."""
    nodes: list[dict[str, Any]] = [{"id": f"s{n}", "kind": "switch"} for n in range(switches)]
    pairs = {(random.randrange(n), n) for n in range(1, switches)}
    wanted = random.randint(len(pairs), min(switches * (switches - 1) // 2, 2 * switches))
    while len(pairs) < wanted:
        a, b = sorted(random.sample(range(switches), 2))
        pairs.add((a, b))
    edges = [{"source": f"s{a}", "target": f"s{b}", "gbps": 100} for a, b in sorted(pairs)]
    for nic in range(nics):
        nodes.append({"id": f"n{nic}", "kind": "nic", "host": f"h{nic}"})
        edges.append({"source": f"n{nic}", "target": f"s{nic % switches}", "gbps": 100})
    return parse_fabric({"nodes": nodes, "edges": edges}, "random")


def out_arcs(fabric: Fabric, node: int) -> list[int]:
    """Return the arcs that leave a node."""
    first, arcs = fabric.structure.out
    return [int(arc) for arc in arcs[first[node] : first[node + 1]]]


def random_path(random: Random, fabric: Fabric, source: int, destination: int) -> list[int]:
    """Return the arcs of a simple live path between two NICs, seldom the shortest; [] if none."""
    head, kind = fabric.structure.head, fabric.structure.nodes.kind

    def onward(node: int, seen: frozenset[int]) -> list[int] | None:
        arcs = [arc for arc in out_arcs(fabric, node) if fabric.carries[arc]]
        random.shuffle(arcs)
        for arc in arcs:
            there = int(head[arc])
            if there == destination:
                return [arc]
            if there in seen or kind[there] == NodeKind.NIC:
                continue
            rest = onward(there, seen | {there})
            if rest is not None:
                return [arc, *rest]
        return None

    return onward(source, frozenset({source})) or []


QPS = 2
"""QPs of every flow; they use two paths, or both the same."""


def plan_on(
    fabric: Fabric, pairs: Sequence[tuple[int, int]], ways: Sequence[list[list[int]]]
) -> Plan:
    """Return a plan with a flow for each pair of NICs: no path, one path, or one per QP."""
    flow = [row for row, of_pair in enumerate(ways) for _ in of_pair]
    first_qp = [number for of_pair in ways for number in range(len(of_pair))]
    last_qp = [
        QPS - 1 if number == len(of_pair) - 1 else number
        for of_pair in ways
        for number in range(len(of_pair))
    ]
    arcs = [way for of_pair in ways for way in of_pair]
    lengths = np.array([len(way) for way in arcs], dtype=np.int64)
    paths = Paths(
        _ints(flow),
        _ints(first_qp),
        _ints(last_qp),
        np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        _ints([arc for way in arcs for arc in way]),
    )
    unrouted = {row: "no way" for row, of_pair in enumerate(ways) if not of_pair}
    return Plan(fabric, _flows(pairs), paths, _no_backups(len(paths)), unrouted=unrouted)


def _flows(pairs: Sequence[tuple[int, int]]) -> Flows:
    count = len(pairs)
    return Flows(
        ids=tuple(f"j{row}/f" for row in range(count)),
        source=_ints([source for source, _ in pairs]),
        destination=_ints([destination for _, destination in pairs]),
        gbps=np.full(count, 1.0),
        job=np.arange(count),
        phase=np.full(count, -1),
        qps=np.full(count, QPS),
        traffic_class=np.zeros(count, dtype=np.int64),
        weight=np.ones(count),
        job_names=tuple(f"j{row}" for row in range(count)),
        phase_names=(),
    )


def _no_backups(count: int) -> Paths:
    empty = no_paths()
    rows = np.zeros(count, dtype=np.int64)
    return Paths(rows, rows, rows, np.zeros(count + 1, dtype=np.int64), empty.arcs)


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, dtype=np.int64)


@dataclass
class Network:
    """Tables of switches, and the underlay below them."""

    fabric: Fabric
    tables: dict[str, SwitchTable]
    _distance: dict[int, dict[int, int]] = field(default_factory=dict)

    def distance(self, destination: int) -> dict[int, int]:
        """Return the number of live links from each switch to a NIC."""
        if destination not in self._distance:
            structure = self.fabric.structure
            found, waiting = {destination: 0}, deque([destination])
            while waiting:
                node = waiting.popleft()
                for arc in out_arcs(self.fabric, node):
                    there = int(structure.head[arc])
                    nic = structure.nodes.kind[there] == NodeKind.NIC
                    if there not in found and self.fabric.carries[arc] and not nic:
                        found[there] = found[node] + 1
                        waiting.append(there)
            self._distance[destination] = found
        return self._distance[destination]

    def next_arcs(self, switch: int, source: int, destination: int, port: int) -> list[int]:
        """Return the arcs by which a packet may leave: its entry's, or all underlay next hops."""
        structure = self.fabric.structure
        ids, head = structure.nodes.ids, structure.head
        held = self.tables[ids[switch]].entries
        for ports in ((port, ROCE_PORT), (0, 0)):
            way = held.get((ids[source], ids[destination], *ports))
            if way is not None:
                if self.falls(ids[switch], way):
                    break
                (link,) = self.fabric.find_links(ids[switch], way[0].node, way[0].key)
                return [arc for arc in (2 * link, 2 * link + 1) if structure.tail[arc] == switch]
        far = self.distance(destination)
        return [
            arc
            for arc in out_arcs(self.fabric, switch)
            if self.fabric.carries[arc] and far.get(int(head[arc]), NONE) == far[switch] - 1
        ]

    def falls(self, switch: str, way: Way) -> bool:  # noqa: ARG002 - here nobody knows of links
        """Return whether a switch leaves an entry's packets to the underlay; here it never does."""
        return False

    def trouble(self, source: int, destination: int, port: int) -> str:
        """Describe what goes wrong for packets of a pair of NICs; empty if they always arrive."""
        head = self.fabric.structure.head
        (first,) = out_arcs(self.fabric, source)
        done: set[int] = set()

        def visit(node: int, way: tuple[int, ...]) -> str:
            if node == destination or node in done:
                return ""
            if node in way:
                return f"loop {way}"
            arcs = self.next_arcs(node, source, destination, port)
            if not arcs:
                return f"nowhere to go at {node} after {way}"
            for arc in arcs:
                if not self.fabric.carries[arc]:
                    return f"dead link {arc} at {node} after {way}"
                if found := visit(int(head[arc]), (*way, node)):
                    return found
            done.add(node)
            return ""

        return visit(int(head[first]), ())

    def holds(self, entries: Entries) -> bool:
        """Return whether the tables hold exactly these entries."""
        ids = self.fabric.structure.nodes.ids
        wanted: dict[str, dict[Match, Way]] = {switch: {} for switch in self.tables}
        for row in range(len(entries)):
            match = match_of(self.fabric, entries, row)
            wanted[ids[entries.switch[row]]][match] = way_of(self.fabric, entries, row)
        return {switch: table.entries for switch, table in self.tables.items()} == wanted
