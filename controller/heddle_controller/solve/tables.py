"""Limits of exact-match tables: which flows may be split, and which get no entries.

Entries are counted as ``plan.programs`` writes them, by switch and by pair of NICs. If all QPs of a
pair leave a switch by the same arc, the pair needs one entry there. If QPs part, every QP needs
one, told apart by its source port, and there are only so many ports. A hop that the underlay would
also take needs none (``model.underlay``). Programs are written by code of their own. Tests compare
the two counts on every kind of fabric.

Flows that must stay together are *tied*, so that they are planned as one. Where tables have no room
to split the QPs of a pair of NICs, all flows of the pair are tied: one path for all of them needs
one entry at a switch. Flows of a pair with more QPs than there are source ports are tied as far as
switches cannot tell them apart: by port if each has one QP, else all of them. For the planner, tied
flows are one flow with one QP, so search and colouring know nothing of tables and ports. Afterwards
each of the flows gets the path that was found.

Where paths need more entries than a table holds, the plan gives up, in this order:

1. *Splitting.* All QPs of a pair of NICs return to one path, which needs only one entry at each
   switch.
2. *Pairs.* Where even one entry a pair is too many, pairs are left to the underlay. Then pairs
   that have room again are taken back (a greedy cover), the most important first, and so are pairs
   that fit on another of their candidate paths.

Pairs that matter least go first. The weight of flows counts first (it includes priority and whether
a flow sends next to nothing), then fewest bytes for each freed entry, then the lowest rate. Where
bytes are not known, pairs that free most entries go first.

A pair is given up as a whole: if one of its flows keeps its entry, the other flows on the path need
no more. Each flow that is given up has its reason in the plan, and uses the underlay.

``Readmission`` takes pairs back: on the paths they had if the tables have room for them now, or
with all QPs on the candidate path that fits and has the least full links. Looking at candidates
takes time, so only the most important pairs are looked at.

Cost: O(paths x hops) array steps, for each of a few rounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from heddle_controller.model.arrays import (
    NONE,
    Bools,
    Floats,
    Ints,
    among,
    cut_rows,
    distinct,
    ranges,
    starts,
)
from heddle_controller.model.errors import size_words
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import ANY_PHASE, SOURCE_PORT_COUNT, Flows, TrafficClass
from heddle_controller.model.plan import Paths, arc_loads, join_paths, no_paths, phased_loads
from heddle_controller.model.underlay import needs_entry
from heddle_controller.solve.assignment import with_nics
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.network import Network


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


MOST_SOUGHT = 1000
"""Pairs without a fitting candidate after which the search for candidates ends."""


class Readmission:
    """The room in tables and the load of links while pairs are taken back."""

    def __init__(self, network: Network, candidates: Candidates, flows: Flows, room: Ints) -> None:
        """Start without load. ``room`` is the room in each node's table, updated in place."""
        self.network, self.candidates, self.flows, self.room = network, candidates, flows, room
        self._load: Floats = np.zeros(network.arc_count)
        self._vain = 0

    def load(self, paths: Paths) -> None:
        """Add the load of paths to the links."""
        self._load += arc_loads(self.network.arc_count, self.flows, paths)

    def keep(self, paths: Paths, switches: Ints, entries: Ints) -> bool:
        """Take paths back if each switch has room for its number of entries; else return False."""
        if (self.room[switches] < entries).any():
            return False
        self.room[switches] -= entries
        self.load(paths)
        return True

    def find(self, rows: Ints) -> Paths | None:
        """Return all flows of a pair (rows) on one path that has room, or None."""
        if self._vain >= MOST_SOUGHT:
            return None
        choice = self._choice(rows)
        tails = self.network.tail[choice.arcs]
        lacking = limited(self.network.fabric)[tails]
        at = np.flatnonzero(lacking)
        to = np.full(len(at), self.flows.destination[rows[0]])
        left = choice.first[choice.owner()[at] + 1] - at
        structure = self.network.fabric.structure
        lacking[at] = needs_entry(structure, choice.arcs[at], to, left)
        full = np.bincount(
            choice.owner(), weights=lacking & (self.room[tails] < 1), minlength=len(choice)
        )
        fits = np.flatnonzero(full == 0)
        if not len(fits):
            self._vain += 1
            return None
        best = int(fits[self._fullness(choice, float(self.flows.gbps[rows].sum()))[fits].argmin()])
        arcs, needing = choice.of(best), lacking[choice.first[best] : choice.first[best + 1]]
        self.room[self.network.tail[arcs[needing]]] -= 1
        found = Paths(
            rows,
            np.zeros_like(rows),
            self.flows.qps[rows] - 1,
            starts(np.full(len(rows), len(arcs))),
            np.tile(arcs, len(rows)),
        )
        self.load(found)
        return found

    def _choice(self, rows: Ints) -> Paths:
        """Return every path that all flows of a pair may take, from NIC to NIC."""
        network, flows = self.network, self.flows
        ends = flows.source[rows[0]], flows.destination[rows[0]]
        source, destination = (int(network.terminal[end]) for end in ends)
        if NONE in (source, destination):
            return no_paths()
        strictest = int(flows.traffic_class[rows].max())
        matrix = self.candidates.of_class(source, destination, strictest)
        lengths = (matrix != network.pad).sum(axis=1)
        flow = np.full(len(matrix), rows[0])
        inner = Paths(flow, flow, flow, starts(lengths), matrix[matrix != network.pad])
        return with_nics(network, flows, inner)

    def _fullness(self, choice: Paths, gbps: float) -> Floats:
        """Return the worst utilisation along each path if it carried ``gbps`` more."""
        after = (self._load[choice.arcs] + gbps) * self.network.per_gbps[choice.arcs]
        worst = np.zeros(len(choice))
        np.maximum.at(worst, choice.owner(), after)
        return worst


BOUNDLESS = np.iinfo(np.int64).max // 2
"""Room in a table without a limit."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedPaths:
    """Paths that fit the tables, and what had to be given up."""

    paths: Paths
    dropped: dict[int, str]
    """Reason for each flow that is left to the underlay, by row."""
    notes: tuple[str, ...]


def fit_tables(
    network: Network,
    candidates: Candidates,
    flows: Flows,
    paths: Paths,
    left: Mapping[int, str] | None = None,
) -> FittedPaths:
    """Give up splitting, then pairs, until no switch needs more entries than it holds.

    ``left`` are flows that were given up before, and why. They count as dropped, too.
    """
    fabric, before = network.fabric, dict(left or {})
    if not limited(fabric).any() or not len(paths):
        return FittedPaths(paths, before, _notes(np.zeros(len(flows), dtype=np.bool_), before))
    pair = pairs_of(flows)
    tied = np.isin(pair, _too_parted(fabric, flows, paths, pair))
    paths = _joined(flows, paths, pair, tied)
    needs = entry_needs(fabric, flows, paths, pair)
    room = _room(fabric, needs)
    full_at = _given_up(needs, needs.entries, room, _Rank(flows, pair))
    if not full_at:
        return FittedPaths(paths, before, _notes(tied, before))
    seats = Readmission(network, candidates, flows, room)
    paths, full_at = _taken_back(seats, needs, paths, pair, full_at)
    ids, size = fabric.structure.nodes.ids, fabric.structure.nodes.table_size
    dropped = before | {
        flow: f"the table of {ids[switch]} is full ({size[switch]} entries): it is left to"
        f" the underlay{_sending(flows, flow)}; raise table_size or its priority"
        for flow, switch in _by_flow(pair, full_at).items()
    }
    return FittedPaths(paths, dropped, _notes(tied, dropped))


def too_parted(network: Network, flows: Flows, paths: Paths, pair: Ints) -> Bools:
    """Mark flows of pairs whose splitting exceeds a table, shape (flows,).

    ``pair`` is the number of each flow's pair (``pairs_of``).
    """
    if not limited(network.fabric).any() or not len(paths):
        return np.zeros(len(flows), dtype=np.bool_)
    return np.isin(pair, _too_parted(network.fabric, flows, paths, pair))


def _too_parted(fabric: Fabric, flows: Flows, paths: Paths, pair: Ints) -> list[int]:
    needs = entry_needs(fabric, flows, paths, pair)
    return [*_given_up(needs, needs.entries - 1, _room(fabric, needs), _Rank(flows, pair))]


@dataclass(frozen=True, slots=True, eq=False)
class TableRoom:
    """How many entries each switch could still hold beside those of a plan."""

    fabric: Fabric
    left: Ints
    """Shape (nodes,); below 0 where the plan needs too many."""

    @classmethod
    def beside(cls, fabric: Fabric, flows: Flows, paths: Paths) -> TableRoom:
        """Count the entries of a whole plan."""
        return cls(fabric, _room(fabric, entry_needs(fabric, flows, paths, pairs_of(flows))))

    def after(self, flows: Flows, changed: Ints, old: Paths, new: Paths) -> TableRoom | None:
        """Return the room beside other paths; None if some switch has too little.

        Only pairs of NICs of changed flows are counted again.

        Args:
            flows: The flows of the new paths; those of the old ones come first.
            changed: Rows of all flows whose paths differ.
            old: The paths until now.
            new: All paths from now on.
        """
        if not limited(self.fabric).any():
            return self
        code = flows.source * self.fabric.node_count + flows.destination
        near = np.flatnonzero(among(code, distinct(code[changed])))
        mates = flows.take(near)
        pair, left = pairs_of(mates), self.left
        for sign, paths in ((1, old), (-1, new)):
            low, high = (np.searchsorted(paths.flow, near, side=side) for side in ("left", "right"))
            some = paths.take(ranges(low, high))
            some = replace(some, flow=np.searchsorted(near, some.flow))
            needs = entry_needs(self.fabric, mates, some, pair)
            left = left + sign * needs.by_switch(self.fabric.node_count)
        return None if (left < 0).any() else TableRoom(self.fabric, left)


def _room(fabric: Fabric, needs: TableNeeds) -> Ints:
    """Return the entries that each node could still hold; below 0 where it needs too many."""
    size = np.where(limited(fabric), fabric.structure.nodes.table_size, BOUNDLESS)
    return size - needs.by_switch(fabric.node_count)


class _Rank:
    """How important pairs are: their weight, rate and bytes."""

    def __init__(self, flows: Flows, pair: Ints) -> None:
        self.weight = np.zeros(int(pair.max(initial=-1)) + 1)
        np.maximum.at(self.weight, pair, flows.weight)
        self.gbps: Floats = np.zeros(len(self.weight))
        np.add.at(self.gbps, pair, flows.gbps)
        self.bytes: Floats = np.zeros(len(self.weight))
        np.add.at(self.bytes, pair, flows.bytes)

    def least_first(self, pairs: Ints, relief: Floats) -> list[int]:
        """Return pairs in the order in which to give them up. ``relief``, above 0, is by pair."""
        freed = relief[pairs]
        keys = self.gbps[pairs], -freed, self.bytes[pairs] / freed, self.weight[pairs]
        order = np.lexsort(keys)
        ordered: list[int] = pairs[order].tolist()
        return ordered

    def most_first(self, pairs: Iterable[int]) -> list[int]:
        """Return pairs in the order in which to take them back."""
        return sorted(pairs, key=lambda p: (-self.weight[p], -self.bytes[p], -self.gbps[p], p))


def _given_up(needs: TableNeeds, saving: Ints, room: Ints, rank: _Rank) -> dict[int, int]:
    """Return the pairs to give up so that no room is below 0, each with a switch that is too full.

    ``saving`` is what giving up the pair of each row frees at its switch. ``room`` is updated.
    """
    useful = (room[needs.switch] < 0) & (saving > 0)
    pairs = distinct(needs.pair[useful])
    helps = np.where(useful, np.minimum(saving, -room[needs.switch]), 0)
    relief = np.zeros(len(rank.weight))
    np.add.at(relief, needs.pair, helps)
    first = np.searchsorted(needs.pair, pairs, side="left")
    last = np.searchsorted(needs.pair, pairs, side="right")
    rows = {p: slice(a, b) for p, a, b in zip(pairs.tolist(), first, last, strict=True)}
    full_at: dict[int, int] = {}
    for one in rank.least_first(pairs, relief):
        switches, saved = needs.switch[rows[one]], saving[rows[one]]
        crowded = switches[(room[switches] < 0) & (saved > 0)]
        if len(crowded):
            full_at[one] = int(crowded[0])
            room[switches] += saved
    return full_at


def _joined(flows: Flows, paths: Paths, pair: Ints, tied: Bools) -> Paths:
    """Put all QPs of tied pairs on the path that carries most of their load.

    If a flow of the pair must take shortest paths, the path is one of such a flow.
    """
    if not tied.any():
        return paths
    latency = flows.traffic_class[paths.flow] == TrafficClass.LATENCY
    order = np.lexsort((-paths.gbps(flows), ~latency, pair[paths.flow]))
    best_of_pair = np.empty(int(pair.max()) + 1, dtype=np.int64)
    heads = order[np.flatnonzero(np.diff(pair[paths.flow[order]], prepend=-1))]
    best_of_pair[pair[paths.flow[heads]]] = heads
    whole = distinct(paths.flow[tied[paths.flow]])
    one = replace(
        paths.take(best_of_pair[pair[whole]]),
        flow=whole,
        first_qp=np.zeros_like(whole),
        last_qp=flows.qps[whole] - 1,
    )
    return _merged(paths.take(np.flatnonzero(~tied[paths.flow])), one)


def _merged(first: Paths, second: Paths) -> Paths:
    """Return the paths of two sets of flows, ordered by flow."""
    both = join_paths([first, second])
    return both.take(np.argsort(both.flow, kind="stable"))


def _taken_back(
    seats: Readmission, needs: TableNeeds, paths: Paths, pair: Ints, full_at: dict[int, int]
) -> tuple[Paths, dict[int, int]]:
    """Return the paths that stay, and the pairs that are still given up."""
    flows = seats.flows
    pair_of_path = pair[paths.flow]
    gone = np.isin(pair_of_path, [*full_at])
    seats.load(paths.take(np.flatnonzero(~gone)))
    left = dict(full_at)
    elsewhere: list[Paths] = []
    for one in _Rank(flows, pair).most_first(full_at):
        rows = np.flatnonzero(pair_of_path == one)
        low, high = np.searchsorted(needs.pair, [one, one + 1])
        if seats.keep(paths.take(rows), needs.switch[low:high], needs.entries[low:high]):
            gone[rows] = False
        else:
            found = seats.find(np.flatnonzero(pair == one))
            if found is None:
                continue
            elsewhere.append(found)
        del left[one]
    kept = paths.take(np.flatnonzero(~gone))
    return (_merged(kept, join_paths(elsewhere)) if elsewhere else kept), left


def _by_flow(pair: Ints, full_at: dict[int, int]) -> dict[int, int]:
    """Return the full switch of each flow whose pair was given up, by flow row."""
    rows = np.flatnonzero(np.isin(pair, [*full_at])).tolist()
    return {row: full_at[int(pair[row])] for row in rows}


def _sending(flows: Flows, flow: int) -> str:
    """Return words for how many bytes a flow sends; empty where that is not known."""
    size = float(flows.bytes[flow])
    return f", sending {size_words(size)} at a time" if np.isfinite(size) else ""


_TIED, _DROPPED = (
    f"flows are {what}, to fit the tables" for what in ("put on one path", "left to the underlay")
)


def is_told_anew(note: str) -> bool:
    """Return whether a note of a plan is one that ``fit_tables`` writes for each plan."""
    return _TIED in note or _DROPPED in note


def _notes(tied: Bools, dropped: dict[int, str]) -> tuple[str, ...]:
    notes = []
    if tied.any():
        notes.append(f"{tied.sum()} {_TIED}")
    if dropped:
        notes.append(
            f"{len(dropped)} {_DROPPED}: of least priority first, then of fewest bytes for an entry"
        )
    return tuple(notes)
