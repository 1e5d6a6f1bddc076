"""What each QP gets where it meets others: max-min fair levels, by progressive filling.

Links do not know jobs; they give the QPs that cross them equal parts. All QPs rise
together, one stops at its part of its flow's demand or when an arc on its way is full;
how high the QPs of a full arc came is the arc's *level*. A round fills every arc whose
rising QPs are held back by no other arc more; the levels of the others only grow
meanwhile, so order does not matter, and there are as many rounds as full arcs depend on
one another.

Of a job's phases only the heaviest counts on an arc, as everywhere. Chunks of the others
are given the arc's level too, which is not more than they get.
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
"""Relative; levels this close are equal."""


class Shares:
    """Fair rates of an assignment's chunks. Rates are Gbit/s of one QP."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        flows = assignment.flows
        self.flow = np.array(assignment.flow, dtype=np.int64)
        self._qps = np.array(assignment.last_qp) - np.array(assignment.first_qp) + 1.0
        self.rate: Floats = assignment.unit[self.flow]
        """Of each chunk, shape (chunks,)."""
        self.level: Floats = np.full(assignment.network.arc_count + 1, np.inf)
        """Rate on each full arc, infinite on the others; shape (arcs + 1,)."""
        chunk, arc = self._uses()
        leads, full = self._heaviest(chunk, arc)
        kept = full[arc]
        self._fill(chunk[kept], arc[kept], leads[kept])
        total = np.bincount(self.flow, weights=self.rate * self._qps, minlength=len(flows))
        self.ratio: Floats = total / flows.gbps
        """Rate over demand of each flow, 0 to 1; shape (flows,)."""

    @cached_property
    def ceiling(self) -> Floats:
        """What the usable links of its NICs leave a QP of each flow on any path; shape (flows,).

        That is the level of the best link of either NIC.
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
        """Rate over demand, over the priority of its job, of each flow; shape (flows,)."""
        values: Floats = self.ratio / self._assignment.flows.weight
        return values

    @cached_property
    def sorted_values(self) -> list[float]:
        """Values of all flows, ascending, rounded so that equal ones compare as equal."""
        values: list[float] = np.sort(np.round(self.value, 6)).tolist()
        return values

    def served(self, most: float = np.inf) -> Floats:
        """Gbit/s that all QPs on each arc get together, and on the padding; shape (arcs + 1,).

        No QP is counted with more than ``most``; those of all phases are added up.
        """
        chunk, arc = self._uses()
        weights = (np.minimum(self.rate, most) * self._qps)[chunk]
        count = self._assignment.network.arc_count + 1
        return np.bincount(arc, weights=weights, minlength=count).astype(np.float64)

    def _uses(self) -> tuple[Ints, Ints]:
        """Chunk and arc of every use of an arc, those of NICs too."""
        network, flows = self._assignment.network, self._assignment.flows
        paths = self._assignment.path
        lengths = np.fromiter(map(len, paths), dtype=np.int64, count=len(paths))
        rows = np.arange(len(paths), dtype=np.int64)
        source, destination = flows.source[self.flow], flows.destination[self.flow]
        # A chunk of no arcs stays within its leaf, or has no path and uses nothing.
        here = (lengths > 0) | (network.terminal[source] == network.terminal[destination])
        out = np.where(here, network.nic_arc[source], NONE)
        into = np.where(here, network.nic_arc[destination], NONE)
        chunk = [np.repeat(rows, lengths), rows[out != NONE], rows[into != NONE]]
        arc = [*paths, out[out != NONE], into[into != NONE] ^ 1]
        return np.concatenate(chunk), np.concatenate(arc)

    def _heaviest(self, chunk: Ints, arc: Ints) -> tuple[Bools, Bools]:
        """The uses that count, and the arcs that fill up when all get what they ask for."""
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
        """Rounds, until nothing rises that a full arc could stop."""
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
