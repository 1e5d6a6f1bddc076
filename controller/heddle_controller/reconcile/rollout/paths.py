"""What the new paths of a pair of NICs say of switches and entries: order, and detours.

**Order.** ``Crossings`` says how far from its destination each switch lies on the new paths.

**Detours.** Once routing has settled the underlay brings packets nearer to their destination with
every hop. So do entries on a way that is a shortest one of the whole fabric: it is as short on any
part of the fabric that has all its links. An entry on a longer way, a *detour*, may send them
further off first, and is right only as long as they go on that way to its end. Should a switch
beyond it turn them aside instead, because it has its entry of a newer plan already and the way
of that is lost, they may come back.

So before anything changes beyond a detour it is made *guarded*: the same next hop, but at risk by
every link of the new ways of its pair, too. Then it leads on only while all that packets can
meet there carries, whether it is old or new. See the package for the whole argument.

Small operations on entries as columns that the ledger is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, distinct
from heddle_controller.model.fabric import Fabric, NodeKind, State, Structure
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.model.program import COLUMNS, Entries, no_entries
from heddle_controller.model.underlay import underlay
from heddle_controller.plan.diff import match_codes

_NONE = no_entries()


def appended(parts: Sequence[Entries]) -> Entries:
    """All entries of several sets, one set after the other."""
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
    """All entries of several sets, sorted by switch and match."""
    together = appended(parts)
    (codes,) = match_codes([together])
    if (codes[1:] >= codes[:-1]).all():  # as where nothing is held but what is wanted
        return together
    return together.take(np.argsort(codes, kind="stable"))


def cut(entries: Entries, lengths: Ints) -> list[Entries]:
    """The entries in consecutive parts of these lengths, without copying any."""
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
    """The same entries with another stage."""
    return replace(entries, stage=stage)


def dead(entries: Entries, fabric: Fabric) -> Bools:
    """Whether each entry sends packets over a link that is down, here or further on."""
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
    """A few keys out of many, to gather values by; keys are ascending, each once."""

    keys: Ints

    def index(self, key: Ints) -> tuple[Ints, Bools]:
        """Row in ``keys`` of each key, and whether it is there at all."""
        if not len(self.keys):
            return np.zeros(len(key), dtype=np.int64), np.zeros(len(key), dtype=np.bool_)
        row = np.minimum(np.searchsorted(self.keys, key), len(self.keys) - 1)
        return row, self.keys[row] == key

    def least(self, key: Ints, values: Ints, start: int) -> Ints:
        """The least value of each of ``keys``, at most ``start``."""
        row, known = self.index(key)
        result = np.full(len(self.keys), start, dtype=np.int64)
        np.minimum.at(result, row[known], values[known])
        return result

    def greatest(self, key: Ints, values: Ints) -> Ints:
        """The greatest value of each of ``keys``, at least ``NONE``."""
        row, known = self.index(key)
        result = np.full(len(self.keys), NONE, dtype=np.int64)
        np.maximum.at(result, row[known], values[known])
        return result

    def marked(self, key: Ints) -> Bools:
        """Which of ``keys`` are named."""
        row, known = self.index(key)
        result = np.zeros(len(self.keys), dtype=np.bool_)
        result[row[known]] = True
        return result

    def of(self, values: Ints, key: Ints, other: int) -> Ints:
        """The value that each key's group has, ``other`` for keys without a group."""
        if not len(self.keys):
            return np.full(len(key), other, dtype=np.int64)
        row, known = self.index(key)
        return np.where(known, values[row], other)


def pair_codes(source: Ints, destination: Ints, nodes: int) -> Ints:
    """A number for each pair of NICs; ``nodes`` is the fabric's node count."""
    return source * nodes + destination


def rows_between(entries: Entries, pairs: Groups, nodes: int) -> Ints:
    """Rows of the entries of some pairs, ascending, in little more time than there are such."""
    near = np.zeros(nodes, dtype=np.bool_)
    near[pairs.keys // nodes] = True
    rows = np.flatnonzero(near[entries.source])
    codes = pair_codes(entries.source[rows], entries.destination[rows], nodes)
    return rows[pairs.index(codes)[1]]


def flows_between(plan: Plan, pairs: Ints) -> tuple[Ints, Ints]:
    """Rows of the flows of some pairs, ascending, each once, and the place of the pair of each.

    In little more time than there are such.
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
    """The paths of the flows of some pairs, likewise."""
    flows, place = flows_between(plan, pairs)
    first = np.searchsorted(plan.paths.flow, flows)
    count = np.searchsorted(plan.paths.flow, flows, side="right") - first
    shift = np.repeat(first - (np.cumsum(count) - count), count)
    return plan.paths.take(np.arange(len(shift)) + shift), np.repeat(place, count)


@dataclass(frozen=True, slots=True, eq=False)
class Crossings:
    """Switches on the paths of some pairs, sorted by pair and switch."""

    pairs: Ints
    """The pairs asked for, ascending."""
    codes: Ints
    """Index into ``pairs`` times nodes, plus switch."""
    depth: Ints
    """Switches at most between it and the destination, on any path of the pair."""
    nodes: int

    def lookup(self, switch: Ints, pair: Ints) -> Ints:
        """Depth of a switch on the paths of a pair, ``NONE`` where they do not pass it."""
        if not len(self.codes):
            return np.full(len(switch), NONE, dtype=np.int64)
        index = np.minimum(np.searchsorted(self.pairs, pair), len(self.pairs) - 1)
        code = index * self.nodes + switch
        at = np.minimum(np.searchsorted(self.codes, code), len(self.codes) - 1)
        found = (self.pairs[index] == pair) & (self.codes[at] == code)
        return np.where(found, self.depth[at], NONE)

    def crossed(self) -> Ints:
        """Those of ``pairs`` that have paths, ascending."""
        return self.pairs[distinct(self.codes // self.nodes)]


LONGEST = 64
"""Switches on any path; an order that takes more has a circle in it."""


def crossings_of(plan: Plan, pairs: Ints) -> Crossings:
    """Every switch on the paths of the pairs, with its depth.

    Where paths of one pair share a switch, the longest way from there counts. Paths
    of shortest or up-and-down routing always agree on an order. Should two paths of
    a pair cross two switches in opposite orders, theirs is left to the stages of the
    program (depth ``NONE``), which follow each path by itself.
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
    """Longest way from each of so many rows over the steps given, and which rows go on for ever."""
    depth = lifted(np.zeros(count, dtype=np.int64), upstream, downstream)
    return depth, depth == LONGEST


def lifted(depth: Ints, upstream: Ints, downstream: Ints) -> Ints:
    """These depths, each raised above all that its steps lead to; ``LONGEST`` steps at most."""
    for _ in range(LONGEST):
        further = depth.copy()
        np.maximum.at(further, upstream, depth[downstream] + 1)
        if (further == depth).all():
            break
        depth = further
    return depth


def detours(entries: Entries, structure: Structure) -> Bools:
    """Which entries send packets on a way longer than the shortest of the whole fabric.

    An entry's risk is every link between switches of its way, or of its ways where QPs part
    further on. They are shortest ways if each link can be come to from its end that is
    further away, by nothing but steps towards the destination.
    """
    reach = underlay(structure).reach
    result = np.zeros(len(entries), dtype=np.bool_)
    if not len(entries) or not reach.distance.size:
        return result
    place = reach.place[entries.destination]
    owner, links = _risks(entries)
    shortest = reach.distance[reach.row[entries.switch], place]
    result[:] = np.bincount(owner, minlength=len(entries)) != shortest
    some = result[owner]  # one way of so many links is a shortest: seldom is there more to ask
    owner, links = owner[some], links[some]
    ends = np.stack([structure.links.a[links], structure.links.b[links]])
    far = reach.distance[reach.row[ends], place[owner]].astype(np.int64)
    upper = np.where(far[0] > far[1], ends[0], ends[1])
    lower = np.where(far[0] > far[1], ends[1], ends[0])
    off_path = ~_met(entries, owner, upper, lower) | (abs(far[0] - far[1]) != 1)
    result[result] = np.bincount(owner[off_path], minlength=len(entries))[result] > 0
    return result


def _met(entries: Entries, owner: Ints, upper: Ints, lower: Ints) -> Bools:
    """Whether the upper end of each link is come to from its entry's switch by going down."""
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
    """Row of the entry and link, of every risk of a primary."""
    owner = np.repeat(np.arange(len(entries)), np.diff(entries.risk_first))
    mine = entries.risk_links >= 0
    return owner[mine], entries.risk_links[mine]


@dataclass(frozen=True, slots=True, eq=False)
class NewPaths:
    """Links between switches that the paths of some pairs have in a plan."""

    pairs: Ints
    """Ascending, each once."""
    first: Ints
    """Where the links of each pair begin, shape (pairs + 1,)."""
    links: Ints

    def guarded(self, entries: Entries, pair: Ints) -> Entries:
        """The same entries, at risk by the links of their pairs' ways as well."""
        if not len(entries):
            return entries
        row = Groups(self.pairs).index(pair)[0]
        length = np.diff(self.first)[row]
        owner = np.repeat(np.arange(len(entries)), length)
        within = np.arange(len(owner)) - np.repeat(np.cumsum(length) - length, length)
        more = self.links[np.repeat(self.first[row], length) + within]
        before = np.repeat(np.arange(len(entries)), np.diff(entries.risk_first))
        codes = np.unique(
            np.stack([np.append(before, owner), np.append(entries.risk_links, more)]), axis=1
        )
        # Of each entry the risks of the primary first, ascending, then those of the backup.
        order = np.lexsort([np.where(codes[1] < 0, ~codes[1], codes[1]), codes[1] < 0, codes[0]])
        first = np.searchsorted(codes[0], np.arange(len(entries) + 1))
        return replace(entries, risk_first=first.astype(np.int64), risk_links=codes[1, order])


def new_paths(plan: Plan, pairs: Ints) -> NewPaths:
    """The ways of some pairs of NICs, by their codes."""
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
