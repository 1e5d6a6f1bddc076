"""Walks through arbitrary tables, compared with following one packet at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.fabric import Fabric, NodeKind, State
from heddle_emulator.topology import clos
from heddle_emulator.traffic import flows_between
from heddle_emulator.walk import Fate, walk

FABRIC = clos(leaves=3, spines=2, nics_per_leaf=2)


class Random:
    """Tables that send a packet anywhere or nowhere, but equal packets always the same way."""

    def __init__(self, fabric: Fabric, choices: list[int]) -> None:
        self._fabric, self._choices = fabric, choices

    def one(self, switch: int, source: int, destination: int, port: int) -> int:
        """The arc by which one packet leaves, or NONE."""
        first, arcs = self._fabric.structure.out
        own = arcs[first[switch] : first[switch + 1]].tolist()
        key = (switch * 31 + source * 7 + destination * 3 + port) % len(self._choices)
        choice = self._choices[key]
        return NONE if choice < 0 else int(own[choice % len(own)])

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
        """Return what ``one`` gives for each packet."""
        columns = (switch.tolist(), source.tolist(), destination.tolist(), source_port.tolist())
        return np.array([self.one(*packet) for packet in zip(*columns, strict=True)], np.int64)


def _follow(
    fabric: Fabric, tables: Random, source: int, destination: int, port: int
) -> tuple[Fate, list[int]]:
    """Fate and arcs of one packet, followed step by step."""
    structure = fabric.structure
    first, arcs = structure.out
    arc = int(arcs[first[source]])
    if not fabric.carries[arc]:
        return Fate.DEAD_LINK, []
    taken, seen = [arc], {source}
    while True:
        at = int(structure.head[arc])
        if at == destination:
            return Fate.DELIVERED, taken
        if structure.nodes.kind[at] == NodeKind.NIC:
            return Fate.MISDELIVERED, taken
        if at in seen:
            return Fate.LOOP, taken
        seen.add(at)
        arc = tables.one(at, source, destination, port)
        if arc == NONE:
            return Fate.BLACK_HOLE, taken
        if not fabric.carries[arc]:
            return Fate.DEAD_LINK, taken
        taken.append(arc)


@given(
    st.lists(st.integers(-1, 3), min_size=60, max_size=60),
    st.sets(st.integers(0, FABRIC.link_count - 1), max_size=3),
    st.integers(0, 99),
)
def test_packets_go_where_one_packet_would(choices: list[int], down: set[int], seed: int) -> None:
    """Each packet has the fate and the arcs of a packet that is followed by itself."""
    fabric = FABRIC.with_links(dict.fromkeys(down, State.DOWN))
    flows = flows_between(fabric, "permutation", seed=seed, qps=3)
    tables = Random(fabric, choices)
    walked = walk(fabric, flows, tables)
    ports = flows.source_ports()
    for row, flow in enumerate(walked.flow.tolist()):
        source, destination = int(flows.source[flow]), int(flows.destination[flow])
        port = int(ports[flow] + walked.qp[row])
        fate, taken = _follow(fabric, tables, source, destination, port)
        assert walked.fate[row] == fate
        assert walked.arcs[row][walked.arcs[row] != NONE].tolist() == taken


@given(st.lists(st.integers(0, 3), min_size=60, max_size=60), st.integers(0, 99))
def test_paths_are_the_deliveries(choices: list[int], seed: int) -> None:
    """Paths hold each delivered QP once, with the arcs that it took, and nothing else."""
    flows = flows_between(FABRIC, "permutation", seed=seed, qps=4)
    walked = walk(FABRIC, flows, Random(FABRIC, choices))
    paths = walked.paths()
    told = {
        (int(paths.flow[p]), qp): tuple(paths.of(p).tolist())
        for p in range(len(paths))
        for qp in range(int(paths.first_qp[p]), int(paths.last_qp[p]) + 1)
    }
    delivered = {
        (int(walked.flow[r]), int(walked.qp[r])): tuple(
            a for a in walked.arcs[r].tolist() if a >= 0
        )
        for r in np.flatnonzero(walked.fate == Fate.DELIVERED).tolist()
    }
    assert told == delivered
    assert int(paths.qp_count.sum()) == len(delivered)
