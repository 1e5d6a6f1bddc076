"""Counts of the exact-match entries that paths need, by switch and by pair of NICs.

They are counted as ``plan.programs`` writes them. If all QPs of a pair leave a switch by the same
arc, the pair needs one entry there. If QPs part, every QP needs one, told apart by its source port,
and there are only so many ports. A hop that the underlay would also take needs none
(``model.underlay``). Programs are written by code of their own. Tests compare the two counts on
every kind of fabric.

This module also ties flows that must stay together, so that they are planned as one. Where tables
have no room to split the QPs of a pair of NICs, all flows of the pair are *tied*: one path for all
of them needs one entry at a switch. Flows of a pair with more QPs than there are source ports are
tied as far as switches cannot tell them apart: by port if each has one QP, else all of them. For
the planner, tied flows are one flow with one QP, so search and colouring know nothing of tables and
ports. Afterwards each of the flows gets the path that was found.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, cut_rows, starts
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import ANY_PHASE, SOURCE_PORT_COUNT, Flows
from heddle_controller.model.plan import Paths, phased_loads
from heddle_controller.model.underlay import needs_entry


@dataclass(frozen=True, slots=True, eq=False)
class TableNeeds:
    """Entries needed at switches with limited tables, in parallel columns by pair; none is zero."""

    pair: Ints
    """Number of the pair, as in ``pairs_of``."""
    switch: Ints
    entries: Ints

    def by_switch(self, node_count: int) -> Ints:
        """Return the entries of all pairs at each node, shape (nodes,)."""
        total = np.bincount(self.switch, weights=self.entries, minlength=node_count)
        return total.astype(np.int64)


def limited(fabric: Fabric) -> Bools:
    """Mark switches that have a limited table, shape (nodes,)."""
    nodes = fabric.structure.nodes
    result: Bools = (nodes.table_size != NONE) & (nodes.kind != NodeKind.NIC)
    return result


def pairs_of(flows: Flows) -> Ints:
    """Return the number, from 0, of each flow's pair of source and destination; shape (flows,)."""
    codes = flows.source * (int(flows.destination.max(initial=0)) + 1) + flows.destination
    pair: Ints = np.unique(codes, return_inverse=True)[1]
    return pair


def entry_needs(fabric: Fabric, flows: Flows, paths: Paths, pair: Ints) -> TableNeeds:
    """Return the entries that paths need at switches with limited tables; ``pair`` is by flow."""
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


@dataclass(frozen=True, slots=True, eq=False)
class ColocatedFlows:
    """Flows to be planned, each on behalf of one flow or of several that are tied."""

    flows: Flows
    """The flows to be planned."""
    leader: Ints
    """For each of ``flows``, the first original flow that it represents."""
    stands: Ints
    """For each original flow, the row in ``flows`` that represents it."""
    tied: Bools
    """Marks the original flows that are tied."""
    qps: Ints
    """QPs of each original flow."""

    def expand(self, paths: Paths) -> Paths:
        """Return the paths of all original flows from the paths of ``flows``."""
        if not self.tied.any():
            return paths
        counts = np.bincount(paths.flow, minlength=len(self.flows))
        flow = np.repeat(np.arange(len(self.stands), dtype=np.int64), counts[self.stands])
        _, places = cut_rows(starts(counts), self.stands)
        every = paths.take(places)
        last_qp = np.where(self.tied[flow], self.qps[flow] - 1, every.last_qp)
        return replace(every, flow=flow, last_qp=last_qp)


def short_of_ports(flows: Flows) -> Bools:
    """Mark flows whose pair of NICs has several flows and more QPs than ports; shape (flows,)."""
    result = np.zeros(len(flows), dtype=np.bool_)
    sent = np.bincount(flows.source, weights=flows.qps)
    if sent.max(initial=0) > SOURCE_PORT_COUNT:  # a pair sends no more QPs than its source
        rows = np.flatnonzero(sent[flows.source] > SOURCE_PORT_COUNT)
        pair = pairs_of(flows.take(rows))
        crowded = np.bincount(pair, weights=flows.qps[rows]) > SOURCE_PORT_COUNT
        result[rows] = (crowded & (np.bincount(pair) > 1))[pair]
    return result


def colocation_groups(flows: Flows, pair: Ints, whole: Bools) -> Ints:
    """Return the number of the group that each flow must share a path with if it is tied.

    A group is a whole pair. In pairs that are short of ports and have only flows with one QP, it is
    the flows with the same port. ``pair`` is the number of each flow's pair. ``whole`` marks flows
    of pairs that must stay whole in any case.
    """
    if not short_of_ports(flows).any():
        return pair
    most = np.zeros(int(pair.max()) + 1, dtype=np.int64)
    np.maximum.at(most, pair, flows.qps)
    port = np.where(whole | (most[pair] > 1), 0, flows.source_ports())
    codes = pair * (int(port.max(initial=0)) + 1) + port
    group: Ints = np.unique(codes, return_inverse=True)[1]
    return group


def tie(flows: Flows, together: Ints, tied: Bools) -> ColocatedFlows:
    """Tie the flows that ``tied`` marks to those with the same number in ``together``.

    The flow that represents them has the rate that they need at the same time, by the rule of
    ``phased_loads``. Its phase is ``ANY_PHASE`` if their jobs or phases differ. It takes shortest
    paths if any of them must.
    """
    everyone = np.arange(len(flows), dtype=np.int64)
    if not tied.any():
        return ColocatedFlows(flows, everyone, everyone, tied, flows.qps)
    group = np.where(tied, together, len(flows) + everyone)
    _, leader, inverse = np.unique(group, return_index=True, return_inverse=True)
    order = np.argsort(leader)
    place = np.empty_like(order)
    place[order] = np.arange(len(order))
    leader, stands = leader[order], place[inverse]
    few = flows.take(leader)
    mixed = np.zeros(len(few), dtype=np.bool_)
    for column in (flows.job, flows.phase):
        np.logical_or.at(mixed, stands, column != column[leader[stands]])
    traffic_class, weight = few.traffic_class.copy(), few.weight.copy()
    np.maximum.at(traffic_class, stands, flows.traffic_class)
    np.maximum.at(weight, stands, flows.weight)
    merged = replace(
        few,
        gbps=phased_loads(len(few), stands, flows.gbps, flows.job, flows.phase),
        bytes=np.bincount(stands, weights=flows.bytes).astype(np.float64),
        qps=np.where(tied[leader], 1, few.qps),
        phase=np.where(mixed, ANY_PHASE, few.phase),
        traffic_class=traffic_class,
        weight=weight,
    )
    return ColocatedFlows(merged, leader, stands, tied, flows.qps)
