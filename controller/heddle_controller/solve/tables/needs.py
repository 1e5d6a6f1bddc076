"""How many exact-match entries paths need: by switch, and by pair of NICs.

Counted as ``plan.programs`` writes them. At a switch that all QPs of a pair leave by
the same arc, the pair is one entry; where they part, every QP is one, told apart by
its source port, of which there are only so many. A hop that the underlay would make
by itself needs none (``model.underlay``). Entries are written from a plan by code of
their own, and tests hold the two counts together on every kind of fabric.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import SOURCE_PORT_COUNT, Flows
from heddle_controller.model.plan import Paths
from heddle_controller.model.underlay import needs_entry


@dataclass(frozen=True, slots=True, eq=False)
class TableNeeds:
    """Entries at switches with a limited table: parallel columns, by pair, none zero."""

    pair: Ints
    """Number of the pair, as in ``pairs_of``."""
    switch: Ints
    entries: Ints

    def by_switch(self, node_count: int) -> Ints:
        """Entries of all pairs at each node, shape (nodes,)."""
        total = np.bincount(self.switch, weights=self.entries, minlength=node_count)
        return total.astype(np.int64)


def limited(fabric: Fabric) -> Bools:
    """Which nodes are switches whose tables have an end, shape (nodes,)."""
    nodes = fabric.structure.nodes
    result: Bools = (nodes.table_size != NONE) & (nodes.kind != NodeKind.NIC)
    return result


def pairs_of(flows: Flows) -> Ints:
    """Number of each flow's pair of source and destination, from 0, shape (flows,)."""
    codes = flows.source * (int(flows.destination.max(initial=0)) + 1) + flows.destination
    pair: Ints = np.unique(codes, return_inverse=True)[1]
    return pair


def entry_needs(fabric: Fabric, flows: Flows, paths: Paths, pair: Ints) -> TableNeeds:
    """Entries that paths need at switches of limited tables; ``pair`` is by flow."""
    tail = fabric.structure.tail[paths.arcs]
    use = np.flatnonzero(limited(fabric)[tail])
    if not len(use):
        empty = np.empty(0, dtype=np.int64)
        return TableNeeds(empty, empty, empty)
    path, arc = paths.owner()[use], paths.arcs[use]
    flow = paths.flow[path]
    codes, group = np.unique(pair[flow] * fabric.node_count + tail[use], return_inverse=True)
    low = np.full(len(codes), len(fabric.structure.tail), dtype=np.int64)
    high = np.full(len(codes), NONE, dtype=np.int64)
    np.minimum.at(low, group, arc)
    np.maximum.at(high, group, arc)
    left = paths.first[path + 1] - use
    needed = needs_entry(fabric.structure, arc, flows.destination[flow], left)
    each = np.bincount(group, weights=np.where(needed, paths.qp_count[path], 0))
    entries = np.where(low == high, each > 0, np.minimum(each, SOURCE_PORT_COUNT))
    rows = np.flatnonzero(entries)
    return TableNeeds(
        codes[rows] // fabric.node_count,
        codes[rows] % fabric.node_count,
        entries[rows].astype(np.int64),
    )
