"""Order and detours: what the new paths of a pair of NICs mean for switches and entries.

**Order.** ``Crossings`` says how far from its destination each switch lies on the new paths.

**Detours.** Once routing has converged, the underlay brings packets nearer to their destination
with every hop. So do entries on a shortest path of the whole fabric: that path is still a shortest
one in any part of the fabric that has all its links. An entry on a longer path, a *detour*, may
send packets further away first, and works only while they follow that path to its end. A switch
beyond it may already have its entry of a newer plan. If the path of that entry is lost, the switch
turns packets aside, and they may come back.

So before anything changes beyond a detour, it is made *guarded*: it keeps its next hop, but is also
at risk by every link of the new paths of its pair. It is then used only while everything that
packets can meet beyond it is up, old or new. See the package for the whole argument.

The module also has the small operations on columns of entries that the ledger is made with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, distinct, ranges
from heddle_controller.model.fabric import Fabric, NodeKind, State, Structure
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.model.program import COLUMNS, Entries, no_entries
from heddle_controller.model.underlay import underlay
from heddle_controller.plan.diff import match_codes

_NONE = no_entries()


def appended(parts: Sequence[Entries]) -> Entries:
    """Return the entries of several sets, one set after the other."""
    parts = [part for part in parts if len(part)]
    if len(parts) < 2:  # noqa: PLR2004 - one is whole already, and most pushes have none
        return parts[0] if parts else no_entries()
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS
    }
    lengths = np.concatenate([np.diff(part.risk_first) for part in parts])
    return Entries(
        **columns,
        risk_first=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        risk_links=np.concatenate([part.risk_links for part in parts]),
    )


def joined_entries(parts: Sequence[Entries]) -> Entries:
    """Return the entries of several sets, sorted by switch and match."""
    together = appended(parts)
    (codes,) = match_codes([together])
    if (codes[1:] >= codes[:-1]).all():  # the case if only wanted entries are held
        return together
    return together.take(np.argsort(codes, kind="stable"))


def cut(entries: Entries, lengths: Ints) -> list[Entries]:
    """Split entries into consecutive parts of these lengths, mostly as views of the columns."""
    parts, end = [], 0
    for length in lengths.tolist():
        begin, end = end, end + length
        if not length:
            parts.append(_NONE)
            continue
        risks = entries.risk_first[begin : end + 1]
        columns = {name: getattr(entries, name)[begin:end] for name in COLUMNS}
        links = entries.risk_links[risks[0] : risks[-1]]
        parts.append(Entries(**columns, risk_first=risks - risks[0], risk_links=links))
    return parts


def with_stage(entries: Entries, stage: Ints) -> Entries:
    """Return the same entries with another stage."""
    return replace(entries, stage=stage)


def dead(entries: Entries, fabric: Fabric) -> Bools:
    """Return which entries send packets over a link that is down, here or further on."""
    down = fabric.effective == State.DOWN
    if not down.any():
        return np.zeros(len(entries), dtype=np.bool_)
    lost: Bools = down[entries.primary >> 1]
    owner = np.repeat(np.arange(len(entries)), np.diff(entries.risk_first))
    mine = entries.risk_links >= 0  # a dead backup alone loses no packet
    lost[owner[mine][down[entries.risk_links[mine]]]] = True
    return lost


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """A few distinct keys, ascending, by which values can be grouped."""

    keys: Ints

    def index(self, key: Ints) -> tuple[Ints, Bools]:
        """Return the row in ``keys`` of each key, and whether the key is there at all."""
        if not len(self.keys):
            return np.zeros(len(key), dtype=np.int64), np.zeros(len(key), dtype=np.bool_)
        row = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return row, self.keys[row] == key

    def least(self, key: Ints, values: Ints, start: int) -> Ints:
        """Return the least value of each of ``keys``, at most ``start``.

        ``key`` and ``values`` are parallel; rows with other keys are ignored.
        """
        row, known = self.index(key)
        result = np.full(len(self.keys), start, dtype=np.int64)
        np.minimum.at(result, row[known], values[known])
        return result

    def greatest(self, key: Ints, values: Ints) -> Ints:
        """Return the greatest value of each of ``keys``, or ``NONE``; as ``least``."""
        row, known = self.index(key)
        result = np.full(len(self.keys), NONE, dtype=np.int64)
        np.maximum.at(result, row[known], values[known])
        return result

    def marked(self, key: Ints) -> Bools:
        """Return which of ``keys`` occur in ``key``, shape (keys,)."""
        row, known = self.index(key)
        result = np.zeros(len(self.keys), dtype=np.bool_)
        result[row[known]] = True
        return result

    def of(self, values: Ints, key: Ints, other: int) -> Ints:
        """Return for each key its element of ``values``, which is parallel with ``keys``.

        The result is ``other`` for a key that is not among ``keys``.
        """
        if not len(self.keys):
            return np.full(len(key), other, dtype=np.int64)
        row, known = self.index(key)
        return np.where(known, values[row], other)


def pair_codes(source: Ints, destination: Ints, nodes: int) -> Ints:
    """Return a code for each pair of NICs; ``nodes`` is the fabric's node count."""
    return source * nodes + destination


def rows_between(entries: Entries, pairs: Groups, nodes: int) -> Ints:
    """Return the rows of entries of some pairs, ascending.

    Besides one pass over the sources, it takes time only for entries with the same source NICs.
    """
    near = np.zeros(nodes, dtype=np.bool_)
    near[pairs.keys // nodes] = True
    rows = np.flatnonzero(near[entries.source])
    codes = pair_codes(entries.source[rows], entries.destination[rows], nodes)
    return rows[pairs.index(codes)[1]]


def flows_between(plan: Plan, pairs: Ints) -> tuple[Ints, Ints]:
    """Return the rows of the flows of some pairs, ascending, and the place in ``pairs`` of each.

    ``pairs`` are ascending codes, each once. Besides one pass over the sources, it takes time only
    for flows with the same source NICs.
    """
    if not len(pairs):
        return pairs, pairs
    flows, nodes = plan.flows, plan.fabric.node_count
    near = np.zeros(nodes, dtype=np.bool_)
    near[pairs // nodes] = True
    rows = np.flatnonzero(near[flows.source])
    code = pair_codes(flows.source[rows], flows.destination[rows], nodes)
    place, known = Groups(pairs).index(code)
    return rows[known], place[known]


def paths_between(plan: Plan, pairs: Ints) -> tuple[Paths, Ints]:
    """Return the paths of the flows of some pairs, and the place in ``pairs`` of each path."""
    flows, place = flows_between(plan, pairs)
    first, last = (np.searchsorted(plan.paths.flow, flows, side=side) for side in ("left", "right"))
    return plan.paths.take(ranges(first, last)), np.repeat(place, last - first)


@dataclass(frozen=True, slots=True, eq=False)
class Crossings:
    """Switches on the paths of some pairs, sorted by pair and switch."""

    pairs: Ints
    """The pairs that were asked for, ascending."""
    codes: Ints
    """Index into ``pairs`` times ``nodes``, plus the node row of the switch; ascending."""
    depth: Ints
    """Most switches that follow it on any path of the pair; ``NONE`` if there is no order."""
    nodes: int
    """The fabric's node count."""

    def lookup(self, switch: Ints, pair: Ints) -> Ints:
        """Return the depth of each switch on the paths of its pair; ``NONE`` if not on them."""
        if not len(self.codes):
            return np.full(len(switch), NONE, dtype=np.int64)
        index = np.minimum(np.searchsorted(self.pairs, pair), len(self.pairs) - 1)
        code = index * self.nodes + switch
        at = np.minimum(np.searchsorted(self.codes, code), len(self.codes) - 1)
        found = (self.pairs[index] == pair) & (self.codes[at] == code)
        return np.where(found, self.depth[at], NONE)

    def crossed(self) -> Ints:
        """Return those of ``pairs`` that have paths, ascending."""
        return self.pairs[distinct(self.codes // self.nodes)]


LONGEST = 64
"""More switches than any path has. An order that takes more steps has a circle in it."""


def crossings_of(plan: Plan, pairs: Ints) -> Crossings:
    """Return every switch on the paths of the pairs, with its depth.

    Where paths of one pair share a switch, the longest path from there counts. Paths
    of shortest or up-and-down routing always agree on an order. If two paths of a pair
    cross two switches in opposite orders, all switches of that pair get depth ``NONE``,
    and callers use the stages of the program, which follow each path by itself.
    """
    structure, nodes = plan.fabric.structure, plan.fabric.node_count
    pairs = distinct(pairs)
    paths, place = paths_between(plan, pairs)
    tail = structure.tail[paths.arcs]
    hop = np.flatnonzero(structure.nodes.kind[tail] != NodeKind.NIC)
    owner = paths.owner()[hop]
    code = place[owner] * nodes + tail[hop]
    codes, row = np.unique(code, return_inverse=True)
    follows = np.flatnonzero(owner[1:] == owner[:-1])
    depth, circular = longest(len(codes), row[follows], row[follows + 1])
    unordered = distinct(codes[circular] // nodes)
    depth[np.isin(codes // nodes, unordered)] = NONE
    return Crossings(pairs, codes, depth, nodes)


def longest(count: int, upstream: Ints, downstream: Ints) -> tuple[Ints, Bools]:
    """Return the longest path from each row over the steps given, and which rows never end.

    Steps lead from ``upstream`` to ``downstream``, which are parallel columns of rows.
    """
    depth = lifted(np.zeros(count, dtype=np.int64), upstream, downstream)
    return depth, depth == LONGEST


def lifted(depth: Ints, upstream: Ints, downstream: Ints) -> Ints:
    """Return depths raised above all that their steps lead to, after at most ``LONGEST`` rounds."""
    for _ in range(LONGEST):
        further = depth.copy()
        np.maximum.at(further, upstream, depth[downstream] + 1)
        if (further == depth).all():
            break
        depth = further
    return depth


def detours(entries: Entries, structure: Structure) -> Bools:
    """Return which entries send packets on a path longer than a shortest one of the whole fabric.

    The risk links of an entry are all links between switches of its path, or of its paths where
    QPs part further on. These are shortest paths if, from the entry's switch, each link can be
    reached at its end that is further away, by steps towards the destination only.
    """
    reach = underlay(structure).reach
    result = np.zeros(len(entries), dtype=np.bool_)
    if not len(entries) or not reach.distance.size:
        return result
    place = reach.place[entries.destination]
    owner, links = _risks(entries)
    shortest = reach.distance[reach.row[entries.switch], place]
    result[:] = np.bincount(owner, minlength=len(entries)) != shortest
    some = result[owner]  # one path of just so many links is a shortest; the rest is rare
    owner, links = owner[some], links[some]
    ends = np.stack([structure.links.a[links], structure.links.b[links]])
    far = reach.distance[reach.row[ends], place[owner]].astype(np.int64)
    upper = np.where(far[0] > far[1], ends[0], ends[1])
    lower = np.where(far[0] > far[1], ends[1], ends[0])
    off_path = ~_met(entries, owner, upper, lower) | (abs(far[0] - far[1]) != 1)
    result[result] = np.bincount(owner[off_path], minlength=len(entries))[result] > 0
    return result


def _met(entries: Entries, owner: Ints, upper: Ints, lower: Ints) -> Bools:
    """Return whether the upper end of each link is reached from its entry's switch by going down.

    The columns ``owner`` (row of the entry), ``upper`` and ``lower`` (node rows) are parallel.
    """
    nodes = 1 + max(int(column.max(initial=0)) for column in (entries.switch, upper, lower))
    begin, end = owner * nodes + upper, owner * nodes + lower
    found = np.arange(len(entries)) * nodes + entries.switch
    met = np.zeros(len(owner), dtype=np.bool_)
    for _ in range(LONGEST):
        fresh = ~met & np.isin(begin, found)
        if not fresh.any():
            break
        met |= fresh
        found = end[fresh]
    return met


def _risks(entries: Entries) -> tuple[Ints, Ints]:
    """Return the entry's row and the link of every risk of a primary."""
    owner = np.repeat(np.arange(len(entries)), np.diff(entries.risk_first))
    mine = entries.risk_links >= 0
    return owner[mine], entries.risk_links[mine]


@dataclass(frozen=True, slots=True, eq=False)
class NewPaths:
    """Links between switches on the paths of some pairs in a plan."""

    pairs: Ints
    """Codes of the pairs, ascending, each once."""
    first: Ints
    """Where the links of each pair begin in ``links``, shape (pairs + 1,)."""
    links: Ints
    """Link rows of each pair, one pair after the other."""

    def guarded(self, entries: Entries, pair: Ints) -> Entries:
        """Return the entries with the links of their pairs' paths as further risk links."""
        if not len(entries):
            return entries
        row = Groups(self.pairs).index(pair)[0]
        begin, end = self.first[row], self.first[row + 1]
        owner = np.repeat(np.arange(len(entries)), end - begin)
        more = self.links[ranges(begin, end)]
        before = np.repeat(np.arange(len(entries)), np.diff(entries.risk_first))
        codes = np.unique(
            np.stack([np.append(before, owner), np.append(entries.risk_links, more)]), axis=1
        )
        # The order of risk links: those of the primary first, then the backup's, ascending.
        order = np.lexsort([np.where(codes[1] < 0, ~codes[1], codes[1]), codes[1] < 0, codes[0]])
        first = np.searchsorted(codes[0], np.arange(len(entries) + 1))
        return replace(entries, risk_first=first.astype(np.int64), risk_links=codes[1, order])


def new_paths(plan: Plan, pairs: Ints) -> NewPaths:
    """Return the new paths of some pairs of NICs, given by their codes."""
    structure, pairs = plan.fabric.structure, distinct(pairs)
    if not len(pairs):
        return NewPaths(pairs, np.zeros(1, dtype=np.int64), np.empty(0, dtype=np.int64))
    paths, place = paths_between(plan, pairs)
    switch = structure.nodes.kind != NodeKind.NIC
    inner = switch[structure.tail[paths.arcs]] & switch[structure.head[paths.arcs]]
    codes = distinct(
        place[paths.owner()[inner]] * plan.fabric.link_count + (paths.arcs[inner] >> 1)
    )
    first = np.searchsorted(codes // plan.fabric.link_count, np.arange(len(pairs) + 1))
    return NewPaths(pairs, first.astype(np.int64), codes % plan.fabric.link_count)
