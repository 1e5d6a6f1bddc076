"""Max-min fair rates of the chunks of an assignment, and the levels of its arcs.

Links do not know jobs. They give equal shares to the QPs that cross them (``filling``). The rate of
the fastest QP on a full arc is the arc's *level*: what it would give one more QP, if the others
made room.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints, distinct, stable_order
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.fair_rates import Filling
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import phased_loads
from heddle_controller.solve.assignment import Assignment

_TOLERANCE = 1e-9
"""Relative difference below which a load counts as the capacity."""
_FULL = 1e-6
"""The same for the sum of rates that progressive filling found."""


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
        self._fill()
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
        paths = self._assignment.chunks()
        lengths, rows = np.diff(paths.first), np.arange(len(paths), dtype=np.int64)
        source, destination = flows.source[self.flow], flows.destination[self.flow]
        # A chunk without arcs stays within its leaf, or has no path and uses nothing.
        here = (lengths > 0) | (network.terminal[source] == network.terminal[destination])
        out = np.where(here, network.nic_arc[source], NONE)
        into = np.where(here, network.nic_arc[destination], NONE)
        chunk = [paths.owner(), rows[out != NONE], rows[into != NONE]]
        arc = [paths.arcs, out[out != NONE], into[into != NONE] ^ 1]
        return np.concatenate(chunk), np.concatenate(arc)

    def _fill(self) -> None:
        """Find the rates of the chunks on overfilled arcs, and the levels of the arcs they fill."""
        flows, network = self._assignment.flows, self._assignment.network
        capacity = network.fabric.structure.capacity
        chunk, arc = self._uses()
        job, phase = flows.job[self.flow], flows.phase[self.flow]

        def loads() -> Floats:
            gbps = (self.rate * self._qps)[chunk]
            return phased_loads(network.arc_count, arc, gbps, job[chunk], phase[chunk])

        over = (loads() > capacity * (1 + _TOLERANCE))[arc]
        order = stable_order(chunk[over])
        chunk, arc = chunk[over][order], arc[over][order]
        if not len(chunk):
            return
        some = distinct(chunk)
        way = arc, np.bincount(chunk, minlength=len(self.flow))[some]
        job_of = np.where(phase == ANY_PHASE, NONE, job)
        filling = Filling(way, self.rate[some], job_of[some], phase[some], capacity)
        self.rate[some] = filling.rates(self._qps[None, some])[0]
        full = loads() >= capacity * (1 - _FULL)
        at_full = full[arc]
        self.level[arc[at_full]] = 0.0
        np.maximum.at(self.level, arc[at_full], self.rate[chunk[at_full]])
