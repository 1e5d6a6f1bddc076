"""Loads of arcs if no QP sent more than a given rate, for several such rates at once.

They tell what an arc could give each QP if all QPs on it sent what they ask for: the rate at which
the clipped load is equal to the arc's capacity. They also tell how many QPs ask for more than each
rate. If QPs ask for many different rates, a few of these stand for all. Loads are exact at these
rates, and taken as linear in between. So where another phase of a job is the heaviest from some
rate in between, they are a little too high there, and the arc seems to give a little less.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, distinct_floats
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.solve.assignment import Assignment, merged_chunks
from heddle_controller.solve.phases import PhaseTable, add_loads, phase_tables

_TOLERANCE = 1e-9
_SAME = 1e-6
"""Relative difference up to which rates count as one, the greater of the two."""
MOST_RATES = 8
"""Most rates at which loads are kept."""


class ClippedLoads:
    """Loads of an assignment's arcs at a few rates. It does not follow the assignment's changes."""

    def __init__(self, assignment: Assignment) -> None:
        network, flows = assignment.network, assignment.flows
        paths = merged_chunks(assignment, renumber=False)
        arcs = network.arc_count + 1
        self._unit = assignment.unit
        self._job, self._phase = flows.job.tolist(), flows.phase.tolist()
        self._capacity = np.append(network.fabric.structure.capacity, np.inf)
        rates = distinct_floats(np.sort(self._unit[paths.flow]))
        rates = rates[np.append(np.diff(rates) > rates[1:] * _SAME, True)[: len(rates)]]
        if len(rates) > MOST_RATES:
            rates = rates[np.linspace(0, len(rates) - 1, MOST_RATES).astype(np.int64)]
        self.rates: Floats = np.append(0.0, rates)
        """Rates in Gbit/s of one QP, ascending, shape (rates,). The first is 0, the last is the
        greatest that any QP asks for."""
        rates = self.rates
        self._step = np.diff(rates)[:, None]
        self.load: Floats = np.zeros((len(rates), arcs))
        """Gbit/s on each arc and the padding at each rate, shape (rates, arcs + 1)."""
        self._tables = phase_tables(flows, arcs, (len(rates),))
        sent: Floats = np.minimum(self._unit[paths.flow], rates[:, None]) * paths.qp_count
        tables = self._tables, self._tables.__getitem__
        add_loads(flows, paths, sent[:, paths.owner()], self.load, tables)

    def add(self, flow: int, qps: int, path: Ints) -> None:
        """Add QPs of a flow to a path; a negative number removes them."""
        gbps, table = self._gbps(flow, qps), self._table(flow)
        if table is not None:
            gbps = table.change(path, self._phase[flow], gbps)
        self.load[:, path] += gbps

    def with_more(self, flow: int, qps: int, arcs: Ints) -> Floats:
        """Return the loads of arcs if they carried more QPs of a flow, shape (rates, arcs)."""
        gbps, table = self._gbps(flow, qps), self._table(flow)
        if table is not None:
            gbps = table.increase(arcs, self._phase[flow], gbps)
        loads: Floats = self.load.take(arcs, axis=1) + gbps
        return loads

    def stretches(self, load: Floats, arcs: Ints) -> tuple[Floats, Floats]:
        """Return how many QPs of each arc ask for each rate, and how far these are stretched.

        The stretch of a QP is what it asks for over what the arc could give it if all its QPs sent
        what they ask for, or 0 if that is no less.

        Args:
            load: Loads of the arcs, shape (rates, arcs).
            arcs: The arcs. Each may be there several times.

        Returns:
            QPs and their stretch at each rate but the first, shape (rates - 1, arcs).
        """
        room = self._capacity.take(arcs)
        over = load[1:] > room * (1 + _TOLERANCE)
        below, column = over.argmax(axis=0), np.arange(len(arcs))
        asking = (load[1:] - load[:-1]) / self._step
        rising = asking[below, column]
        rising[rising <= 0] = 1.0
        level = self.rates.take(below) + (room - load[below, column]) / rising
        level[~over[-1]] = np.inf
        stretch = np.where(over, self.rates[1:, None] / level, 0.0)
        asking[:-1] -= asking[1:]
        return np.maximum(asking, 0.0), stretch

    def _gbps(self, flow: int, qps: int) -> Floats:
        gbps: Floats = (np.minimum(self._unit[flow], self.rates) * qps)[:, None]
        return gbps

    def _table(self, flow: int) -> PhaseTable | None:
        return None if self._phase[flow] == ANY_PHASE else self._tables.get(self._job[flow])
