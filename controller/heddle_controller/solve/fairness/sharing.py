"""Max-min fair rates of QPs that share links, by progressive filling.

Links do not know jobs. They give equal shares to the QPs that cross them. The rates of all QPs rise
together. A QP stops at its part of its flow's demand, or when an arc on its path is full. The rate
at which the QPs of a full arc stopped is the arc's *level*. A round fills every arc whose rising
QPs are not held back more by another arc. The levels of the other arcs can only grow meanwhile, so
order does not matter. There are as many rounds as the longest chain of full arcs that depend on one
another.

Of a job's phases only the heaviest counts on an arc, as everywhere. Chunks of the other phases also
get the arc's level, which is not more than they would really get.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import phased_loads
from heddle_controller.solve.assignment import Assignment

_TOLERANCE = 1e-9
"""Relative difference below which levels count as equal."""


class Shares:
    """Fair rates of an assignment's chunks. Rates are in Gbit/s of one QP."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        flows = assignment.flows
        self.flow = np.array(assignment.flow, dtype=np.int64)
        self._qps = np.array(assignment.last_qp) - np.array(assignment.first_qp) + 1.0
        self.rate: Floats = assignment.unit[self.flow]
        """Fair rate of a QP of each chunk, shape (chunks,)."""
        self.level: Floats = np.full(assignment.network.arc_count + 1, np.inf)
        """Level of each full arc, infinite for the others, shape (arcs + 1,)."""
        chunk, arc = self._uses()
        leads, full = self._heaviest(chunk, arc)
        kept = full[arc]
        self._fill(chunk[kept], arc[kept], leads[kept])
        total = np.bincount(self.flow, weights=self.rate * self._qps, minlength=len(flows))
        self.ratio: Floats = total / flows.gbps
        """Rate over demand of each flow, 0 to 1; shape (flows,)."""

    @cached_property
    def ceiling(self) -> Floats:
        """The most Gbit/s that a QP of each flow can get on any path, shape (flows,).

        The limit is the QP's demand and, at each of its two NICs, the level of the best usable
        link.
        """
        network, flows = self._assignment.network, self._assignment.flows
        up = np.flatnonzero(network.usable & (network.level[network.tail] == NodeKind.NIC))
        most: Floats = self._assignment.unit.copy()
        for ends, arcs in ((flows.source, up), (flows.destination, up ^ 1)):
            best = np.zeros(network.fabric.node_count)
            np.maximum.at(best, network.tail[up], self.level[arcs])
            np.minimum(most, best[ends], out=most)
        return most

    @cached_property
    def value(self) -> Floats:
        """Rate of each flow divided by its demand and by its job's priority, shape (flows,)."""
        values: Floats = self.ratio / self._assignment.flows.weight
        return values

    @cached_property
    def sorted_values(self) -> list[float]:
        """Values of all flows, ascending, rounded so that equal ones compare as equal."""
        values: list[float] = np.sort(np.round(self.value, 6)).tolist()
        return values

    def served(self, most: float = np.inf) -> Floats:
        """Return the Gbit/s that all QPs on each arc get together, shape (arcs + 1,).

        No QP counts with more than ``most``. QPs of all phases are added up. The last element is
        for the padding.
        """
        chunk, arc = self._uses()
        weights = (np.minimum(self.rate, most) * self._qps)[chunk]
        count = self._assignment.network.arc_count + 1
        return np.bincount(arc, weights=weights, minlength=count).astype(np.float64)

    def _uses(self) -> tuple[Ints, Ints]:
        """Return chunk and arc of every use of an arc, including arcs of NICs."""
        network, flows = self._assignment.network, self._assignment.flows
        paths = self._assignment.path
        lengths = np.fromiter(map(len, paths), dtype=np.int64, count=len(paths))
        rows = np.arange(len(paths), dtype=np.int64)
        source, destination = flows.source[self.flow], flows.destination[self.flow]
        # A chunk without arcs stays within its leaf, or has no path and uses nothing.
        here = (lengths > 0) | (network.terminal[source] == network.terminal[destination])
        out = np.where(here, network.nic_arc[source], NONE)
        into = np.where(here, network.nic_arc[destination], NONE)
        chunk = [np.repeat(rows, lengths), rows[out != NONE], rows[into != NONE]]
        arc = [*paths, out[out != NONE], into[into != NONE] ^ 1]
        return np.concatenate(chunk), np.concatenate(arc)

    def _heaviest(self, chunk: Ints, arc: Ints) -> tuple[Bools, Bools]:
        """Mark the uses in the heaviest phase of their job, and the arcs that demands overfill.

        Uses of arcs that are not overfilled, and uses without a phase, are marked, too.
        """
        flows, count = self._assignment.flows, self._assignment.network.arc_count
        job, phase = flows.job[self.flow][chunk], flows.phase[self.flow][chunk]
        gbps = (self.rate * self._qps)[chunk]
        load = phased_loads(count, arc, gbps, job, phase)
        full = load * self._assignment.network.per_gbps[:-1] > 1 + _TOLERANCE
        leads = np.ones(len(chunk), dtype=np.bool_)
        rows = np.flatnonzero(full[arc] & (phase != ANY_PHASE))
        if len(rows):
            keys = np.stack([arc[rows], job[rows], phase[rows]])
            groups, group = np.unique(keys, axis=1, return_inverse=True)
            weight = np.bincount(group, weights=gbps[rows])
            order = np.lexsort((-weight, groups[1], groups[0]))
            begins = np.any(np.diff(groups[:2, order], axis=1, prepend=-1), axis=0)
            best = np.zeros(len(weight), dtype=np.bool_)
            best[order[begins]] = True
            leads[rows] = best[group]
        return leads, full

    def _fill(self, chunk: Ints, arc: Ints, leads: Bools) -> None:
        """Run rounds of filling until no rising chunk crosses a full arc."""
        capacity = self._assignment.network.fabric.structure.capacity
        rising = np.zeros(len(self.flow), dtype=np.bool_)
        rising[chunk] = True
        limit = self.rate.copy()
        self.rate[rising] = 0.0
        room = capacity.copy()
        while len(chunk):
            weight = np.where(leads, self._qps[chunk], 0.0)
            width = np.bincount(arc, weights=weight, minlength=len(capacity))
            level = np.where(width > 0, room / np.maximum(width, 1.0), np.inf)
            lowest = np.full(len(limit), np.inf)
            np.minimum.at(lowest, chunk, level[arc])
            lower = leads & (np.minimum(lowest, limit)[chunk] < level[arc] * (1 - _TOLERANCE))
            final = np.bincount(arc[lower], minlength=len(capacity)) == 0
            stops = rising & (limit <= lowest)
            at_final = final[arc] & (level[arc] <= lowest[chunk] * (1 + _TOLERANCE))
            stops[chunk[at_final]] = True
            filled = arc[at_final]
            self.level[filled] = level[filled]
            self.rate[stops] = np.minimum(lowest, limit)[stops]
            gone = stops[chunk]
            used = np.where(leads, self.rate[chunk] * self._qps[chunk], 0.0)
            room -= np.bincount(arc[gone], weights=used[gone], minlength=len(capacity))
            room = np.maximum(room, 0.0)
            rising &= ~stops
            chunk, arc, leads = chunk[~gone], arc[~gone], leads[~gone]
