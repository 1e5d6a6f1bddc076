"""How far from its destination each switch lies on the new paths of a pair of NICs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.model.program import Entries
from heddle_controller.reconcile.rollout.columns import Groups, distinct


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
