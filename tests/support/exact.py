"""The best that any plan of whole QPs could do, computed by other means than the planner's.

The method is integer programmes for HiGHS (scipy), over all existing paths and not over anybody's
candidates. QPs flow through the arcs in whole numbers: what enters a node leaves it, and NICs
forward nothing. A flow of whole numbers is a sum of whole paths and of circles, which only add
load. QPs of one rate, class, job and phase to one NIC are one commodity.

The reference keeps the rules of a plan. Links that are down or in maintenance take no new paths,
and flows that only such links join have none. Flows of class latency take paths of fewest hops. The
load of an arc is the worst phase of each job, summed over jobs; flows without a phase always add.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from heddle_controller.model.arrays import Bools, Floats
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import ANY_PHASE, Flows, TrafficClass

NODES = 20_000
"""Branches after which HiGHS gives up; a count, so that all machines get the same result."""
CLOSE = 1e-6
"""Relative tolerance within which figures are equal; HiGHS computes with that precision."""

Hops = dict[int, int]
"""Hops to a NIC from every node that reaches it."""


@dataclass(frozen=True, slots=True)
class Least:
    """A least worst utilisation; both ends are equal if it was found exactly."""

    low: float
    """No assignment is below this."""
    high: float
    """Some assignment of whole QPs reaches this."""

    @property
    def exact(self) -> bool:
        """Whether the optimum is known."""
        return self.high - self.low <= CLOSE * max(1.0, self.high)


@dataclass(frozen=True, slots=True)
class Commodity:
    """QPs that are alike except for the NIC they leave."""

    destination: int
    latency: bool
    job: int
    phase: int
    unit: float
    """Gbit/s of a QP."""


@dataclass(slots=True)
class _Rows:
    """Rows of a sparse matrix under construction, each with its limits."""

    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)

    def add(self, terms: Mapping[int, float], low: float, high: float) -> None:
        """Add a row."""
        self.row += [len(self.low)] * len(terms)
        self.column += terms
        self.value += terms.values()
        self.low.append(low)
        self.high.append(high)

    def rule(self, columns: int) -> LinearConstraint:
        """Return the rows as scipy requires."""
        place = (np.array(self.row, dtype=np.int64), np.array(self.column, dtype=np.int64))
        matrix = coo_array((np.array(self.value), place), shape=(len(self.low), columns))
        return LinearConstraint(matrix.tocsr(), self.low, self.high)


class Exact:
    """What can be done with some flows on one fabric."""

    def __init__(self, fabric: Fabric, flows: Flows) -> None:
        self.fabric, self.flows = fabric, flows
        structure = fabric.structure
        self._nic = structure.nodes.kind == NodeKind.NIC
        self._ends = [*zip(structure.tail.tolist(), structure.head.tolist(), strict=True)]
        self._hops: dict[int, Hops] = {}
        self.between_switches: Bools = ~self._nic[structure.tail] & ~self._nic[structure.head]

    @cached_property
    def routed(self) -> list[int]:
        """Rows of the flows whose ends are joined by usable links."""
        pairs = zip(self.flows.source.tolist(), self.flows.destination.tolist(), strict=True)
        return [row for row, (a, b) in enumerate(pairs) if a in self.hops(b)]

    def hops(self, destination: int) -> Hops:
        """Return the hops to a NIC over usable links; packets pass through no other NIC."""
        if destination not in self._hops:
            before: dict[int, list[int]] = {}
            for arc in np.flatnonzero(self.fabric.plannable).tolist():
                tail, head = self._ends[arc]
                before.setdefault(head, []).append(tail)
            found, queue = {destination: 0}, deque([destination])
            while queue:
                node = queue.popleft()
                if node != destination and self._nic[node]:
                    continue
                for tail in before.get(node, ()):
                    if tail not in found:
                        found[tail] = found[node] + 1
                        queue.append(tail)
            self._hops[destination] = found
        return self._hops[destination]

    def usable(self, commodity: Commodity, sources: Iterable[int]) -> list[int]:
        """Return the arcs that QPs of a commodity may cross."""
        hops, leaving = self.hops(commodity.destination), {*sources}
        arcs = []
        for arc in np.flatnonzero(self.fabric.plannable).tolist():
            tail, head = self._ends[arc]
            if tail == commodity.destination or head not in hops:
                continue
            if (self._nic[head] and head != commodity.destination) or (
                self._nic[tail] and tail not in leaving
            ):
                continue
            if not commodity.latency or hops[tail] == hops[head] + 1:
                arcs.append(arc)
        return arcs

    @cached_property
    def commodities(self) -> dict[Commodity, dict[int, int]]:
        """QPs that leave each NIC, by commodity."""
        flows, found = self.flows, dict[Commodity, dict[int, int]]()
        phased = {
            job
            for job in flows.job.tolist()
            if len({*flows.phase[flows.job == job].tolist()} - {ANY_PHASE}) > 1
        }
        for row in self.routed:
            # A job with a single phase adds up like one without phases.
            turns = int(flows.job[row]) in phased and int(flows.phase[row]) != ANY_PHASE
            commodity = Commodity(
                int(flows.destination[row]),
                bool(flows.traffic_class[row] == TrafficClass.LATENCY),
                int(flows.job[row]) if turns else -1,
                int(flows.phase[row]) if turns else ANY_PHASE,
                float(flows.gbps[row] / flows.qps[row]),
            )
            sources = found.setdefault(commodity, {})
            source = int(flows.source[row])
            sources[source] = sources.get(source, 0) + int(flows.qps[row])
        return found

    def least(
        self,
        counted: Bools | None = None,
        limit: float = inf,
        *,
        whole: bool = True,
    ) -> Least:
        """Return the least worst utilisation of counted arcs (all), with no arc above ``limit``.

        With ``whole``, QPs are in whole numbers; otherwise they divide at will.
        """
        if not self.commodities:
            return Least(0.0, 0.0)
        everything = np.ones(2 * self.fabric.link_count, dtype=np.bool_)
        programme = _Programme(self, everything if counted is None else counted, limit)
        return programme.solve(whole=whole)


class _Programme:
    """Minimises column 0, the worst utilisation of the arcs that count."""

    def __init__(self, exact: Exact, counted: Bools, limit: float) -> None:
        self._columns = 1
        self._whole: list[int] = []
        self._most: list[float] = [inf]
        self._rows = _Rows()
        load: dict[int, dict[int, dict[int, dict[int, float]]]] = {}
        for commodity, sources in exact.commodities.items():
            balance: dict[int, dict[int, float]] = {node: {} for node in sources}
            for arc in exact.usable(commodity, sources):
                tail, head = exact._ends[arc]
                column = self._column(float(sum(sources.values())))
                self._whole.append(column)
                balance.setdefault(tail, {})[column] = 1.0
                balance.setdefault(head, {})[column] = -1.0
                of_arc = load.setdefault(arc, {}).setdefault(commodity.job, {})
                of_arc.setdefault(commodity.phase, {})[column] = commodity.unit
            for node, terms in balance.items():
                if node != commodity.destination:
                    supply = float(sources.get(node, 0))
                    self._rows.add(terms, supply, supply)
        capacity: Floats = exact.fabric.structure.capacity
        for arc, jobs in load.items():
            total: dict[int, float] = {}
            for phases in jobs.values():
                total |= self._worst_phase(phases)
            total = {column: gbps / float(capacity[arc]) for column, gbps in total.items()}
            if counted[arc]:
                self._rows.add(total | {0: -1.0}, -inf, 0.0)
            if limit < inf:
                self._rows.add(total, -inf, limit)

    def _column(self, most: float = inf) -> int:
        self._most.append(most)
        self._columns += 1
        return self._columns - 1

    def _worst_phase(self, phases: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
        """Return the columns that add up to what one job puts on an arc."""
        if len(phases) == 1:
            return dict(*phases.values())
        total = dict(phases.get(ANY_PHASE, {}))
        worst = self._column()
        for phase, terms in phases.items():
            if phase != ANY_PHASE:
                self._rows.add(dict(terms) | {worst: -1.0}, -inf, 0.0)
        return total | {worst: 1.0}

    def solve(self, *, whole: bool) -> Least:
        cost = np.zeros(self._columns)
        cost[0] = 1.0
        integral = np.zeros(self._columns, dtype=np.int64)
        integral[self._whole if whole else []] = 1
        result = milp(
            cost,
            constraints=[self._rows.rule(self._columns)],
            integrality=integral,
            bounds=Bounds(0.0, np.array(self._most)),
            options={"node_limit": NODES, "mip_rel_gap": 0.0},
        )
        high = inf if result.x is None else float(result.fun)
        if result.success:
            return Least(high, high)
        # 2 is infeasible, 3 unbounded; scipy has no name for the limit on branches (4).
        assert result.status in {1, 4}, result.message
        return Least(float(result.mip_dual_bound or 0.0), high)
