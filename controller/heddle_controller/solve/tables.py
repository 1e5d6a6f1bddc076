"""Keeps a plan within the exact-match tables of its switches.

A switch needs entries for the flows it has a choice for: one for a pair of NICs
whose QPs all leave by the same arc, one for each QP where they part. The count
here is never less than what programs come to. Where it exceeds a table, the plan
gives up, in this order: splitting flows at that switch (each goes back to the path
that most of its QPs had), then the flows of least priority, which are left to the
underlay and said to be.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.fabric import NONE, Bools, Ints, NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths
from heddle_controller.solve.network import Network

BOTH_WAYS = 2
"""Arcs of one cable."""


@dataclass(frozen=True, slots=True, eq=False)
class Fitted:
    """Paths that fit the tables, and what that cost."""

    paths: Paths
    dropped: dict[int, str]
    """Flows left to the underlay, with the reason."""
    notes: tuple[str, ...]


def fit_tables(network: Network, flows: Flows, paths: Paths) -> Fitted:
    """Gives up splits, then flows, until no switch needs more entries than it holds."""
    size = network.fabric.structure.nodes.table_size
    if (size == NONE).all() or not len(paths):
        return Fitted(paths, {}, ())
    joined = too_split(network, flows, paths)
    fitted = _unsplit(flows, paths, joined)
    dropped = _over_budget(network, flows, fitted, size, split=False)
    ids = network.fabric.structure.nodes.ids
    reasons = {
        flow: f"the table of {ids[switch]} is full ({size[switch]} entries):"
        " it is left to the underlay; raise table_size or its priority"
        for flow, switch in dropped.items()
    }
    kept = np.isin(fitted.flow, np.array(sorted(dropped), dtype=np.int64), invert=True)
    notes = [f"{len(joined)} flows are put on one path, to fit the tables"] if len(joined) else []
    if dropped:
        notes.append(f"{len(dropped)} flows are left to the underlay, to fit the tables")
    return Fitted(fitted.take(np.flatnonzero(kept)), reasons, tuple(notes))


def too_split(network: Network, flows: Flows, paths: Paths) -> Ints:
    """Rows of the flows whose splitting exceeds a table; none where tables have no limit."""
    size = network.fabric.structure.nodes.table_size
    if (size == NONE).all() or not len(paths):
        return np.empty(0, dtype=np.int64)
    chosen = _over_budget(network, flows, paths, size, split=True)
    return np.array(sorted(chosen), dtype=np.int64)


def _over_budget(
    network: Network, flows: Flows, paths: Paths, size: Ints, *, split: bool
) -> dict[int, int]:
    """Flows to give up, whole or only in their splits, and the switch that demands it."""
    needs = _needs(network, flows, paths)
    chosen: dict[int, int] = {}
    total = np.bincount(needs.switch, weights=needs.entries, minlength=network.fabric.node_count)
    for switch in np.flatnonzero((size != NONE) & (total > size)).tolist():
        excess = int(total[switch]) - int(size[switch])
        rows = np.flatnonzero(needs.switch == switch)
        if split:
            rows = rows[needs.entries[rows] > 1]
        weight, gbps = flows.weight[needs.flow[rows]], flows.gbps[needs.flow[rows]]
        order = np.lexsort((gbps, weight) if not split else (weight, -needs.entries[rows]))
        for row in rows[order].tolist():
            if excess <= 0:
                break
            excess -= int(needs.entries[row]) - (1 if split else 0)
            for flow in needs.flows_of(row):
                chosen.setdefault(flow, switch)
    return chosen


@dataclass(frozen=True, slots=True, eq=False)
class _Needs:
    """Entries by switch and pair of NICs, parallel columns."""

    switch: Ints
    entries: Ints
    flow: Ints
    """A flow of the pair."""
    pair: Ints
    pair_of_flow: Ints

    def flows_of(self, row: int) -> list[int]:
        """All flows of a row's pair."""
        found: list[int] = np.flatnonzero(self.pair_of_flow == self.pair[row]).tolist()
        return found


def _needs(network: Network, flows: Flows, paths: Paths) -> _Needs:
    """How many entries each pair needs at each switch on its way, at most."""
    pair_of_flow = flows.source * network.fabric.node_count + flows.destination
    use = np.flatnonzero(_needs_entry(network, flows, paths))
    path = paths.owner()[use]
    columns = np.stack([network.tail[paths.arcs[use]], pair_of_flow[paths.flow[path]]])
    places, first, inverse = np.unique(columns, axis=1, return_index=True, return_inverse=True)
    qps = np.bincount(inverse, weights=paths.qp_count[path], minlength=places.shape[1])
    ways = np.unique(np.stack([inverse, paths.arcs[use]]), axis=1)[0]
    parts = np.bincount(ways, minlength=places.shape[1]) > 1
    return _Needs(
        switch=places[0],
        entries=np.where(parts, qps, 1).astype(np.int64),
        flow=paths.flow[path[first]],
        pair=places[1],
        pair_of_flow=pair_of_flow,
    )


def _needs_entry(network: Network, flows: Flows, paths: Paths) -> Bools:
    """Marks each use of an arc that the underlay might not make by itself.

    Up and down a fabric of tiers, that is every step up with more than one way and
    every step down over parallel cables; anywhere else, every step between switches.
    """
    level = network.level
    tail, head = network.tail[paths.arcs], network.head[paths.arcs]
    between = (level[tail] != NodeKind.NIC) & (level[head] != NodeKind.NIC)
    if not network.tiered:
        every: Bools = between
        return every
    arcs = network.inner
    rising = level[network.head] > level[network.tail]
    ways_up = np.bincount(network.tail[arcs[rising[arcs]]], minlength=len(level))
    ends = np.minimum(network.tail, network.head) * len(level) + np.maximum(
        network.tail, network.head
    )
    _, link_of, cables = np.unique(ends, return_inverse=True, return_counts=True)
    up = rising[paths.arcs]
    # A core may reach a leaf over several spines; what falls from it is a choice.
    falls_by_choice = (cables[link_of[paths.arcs]] > BOTH_WAYS) | (level[tail] == NodeKind.CORE)
    choice = np.where(up, ways_up[tail] > 1, falls_by_choice)
    destined_twice = network.nic_arc[flows.destination] == NONE
    owner = paths.owner()
    falls = np.cumsum(~up & between)
    valley = up & between & (falls > np.append(0, falls)[paths.first[:-1]][owner])
    crooked = np.zeros(len(paths), dtype=np.bool_)
    crooked[owner[valley]] = True
    crooked |= destined_twice[paths.flow]
    marked: Bools = between & (choice | crooked[owner])
    return marked


def _unsplit(flows: Flows, paths: Paths, rows: Ints) -> Paths:
    """Puts all QPs of some flows on the path that has most of them."""
    if not len(rows):
        return paths
    chosen = np.isin(paths.flow, rows)
    order = np.lexsort((-paths.qp_count, paths.flow))
    best = order[np.flatnonzero(np.diff(paths.flow[order], prepend=-1))]
    keep = ~chosen
    keep[best] = True
    kept = paths.take(np.flatnonzero(keep))
    whole = chosen[keep]
    return replace(
        kept,
        first_qp=np.where(whole, 0, kept.first_qp),
        last_qp=np.where(whole, flows.qps[kept.flow] - 1, kept.last_qp),
    )
