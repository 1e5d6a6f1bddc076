"""How evenly loads could be spread at best, computed by other means than the planner's.

The method is linear programmes for HiGHS (scipy). Over all existing paths, a commodity is a
divisible flow: what enters a node leaves it, and NICs forward nothing. Over given paths, each
commodity divides over its paths, in any parts or in whole QPs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from heddle_controller.model.arrays import Bools, Floats
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.flows import ANY_PHASE, Flows

Ways = Callable[[int], Sequence[Sequence[int]]]
"""Returns the arcs of each path that a flow may take, given the flow's row."""
Group = tuple[int, int]
"""Job and phase."""
ALWAYS: Group = (-1, -1)
"""Group of the flows that may run at any time."""
Seat = tuple[int, bool]
"""A node, and whether packets there may only go down."""


@dataclass(slots=True)
class _Rows:
    """A sparse matrix under construction, with its right-hand side."""

    row: list[int] = field(default_factory=list)
    column: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    limit: list[float] = field(default_factory=list)

    def add(self, terms: dict[int, float], limit: float) -> None:
        """Add a row."""
        self.row += [len(self.limit)] * len(terms)
        self.column += terms
        self.value += terms.values()
        self.limit.append(limit)

    def matrix(self, columns: int) -> coo_array:
        """Return the matrix as scipy requires."""
        place = (np.array(self.row, dtype=np.int64), np.array(self.column, dtype=np.int64))
        return coo_array((np.array(self.value), place), shape=(len(self.limit), columns))


@dataclass(slots=True)
class _Programme:
    """Minimises column 0, the worst utilisation of the arcs that count."""

    fabric: Fabric
    counted: Bools
    limit: Floats
    """Utilisation that each arc may not exceed; infinite for no limit."""
    columns: int = 1
    equal: _Rows = field(default_factory=_Rows)
    below: _Rows = field(default_factory=_Rows)
    uses: dict[int, dict[Group, dict[int, float]]] = field(default_factory=dict)
    """Gbit/s that a unit of a column puts on an arc, by arc and group."""

    def column(self) -> int:
        """Add a column, with values of at least 0."""
        self.columns += 1
        return self.columns - 1

    def use(self, arc: int, group: Group, column: int, gbps: float = 1.0) -> None:
        """Let a column load an arc."""
        on_arc = self.uses.setdefault(arc, {}).setdefault(group, {})
        on_arc[column] = on_arc.get(column, 0.0) + gbps

    def close(self) -> None:
        """Add the loads by the rule: the worst phase of each job, summed over jobs."""
        capacity = self.fabric.structure.capacity
        for arc in self.uses:
            if self.counted[arc]:
                self.below.add(self._load(arc) | {0: -float(capacity[arc])}, 0.0)
            elif np.isfinite(self.limit[arc]):
                self.below.add(self._load(arc), float(capacity[arc] * self.limit[arc]))

    def _load(self, arc: int) -> dict[int, float]:
        """Return an arc's load as a sum of columns; add one for each job with phases."""
        groups = self.uses[arc]
        load = dict(groups.get(ALWAYS, {}))
        worst: dict[int, int] = {}
        for group, terms in groups.items():
            if group == ALWAYS:
                continue
            if group[0] not in worst:
                worst[group[0]] = self.column()
            self.below.add(terms | {worst[group[0]]: -1.0}, 0.0)
        return load | dict.fromkeys(worst.values(), 1.0)

    def least(self, whole: Sequence[int] = ()) -> float:
        """Return the optimum, with some columns in whole numbers."""
        self.close()
        cost = np.zeros(self.columns)
        cost[0] = 1.0
        integral = np.zeros(self.columns, dtype=np.int64)
        integral[list(whole)] = 1
        below, equal = self.below.matrix(self.columns), self.equal.matrix(self.columns)
        rules = [
            LinearConstraint(below.tocsr(), -np.inf, self.below.limit),
            LinearConstraint(equal.tocsr(), self.equal.limit, self.equal.limit),
        ]
        result = milp(cost, constraints=rules, integrality=integral, bounds=Bounds(0.0, np.inf))
        assert result.success, result.message
        return float(result.fun)


def group_of(flows: Flows, row: int) -> Group:
    """Return the job and phase that a flow belongs to."""
    phase = int(flows.phase[row])
    return ALWAYS if phase == ANY_PHASE else (int(flows.job[row]), phase)


def arcs_of_tier(fabric: Fabric, tier: str) -> Bools:
    """Return which arcs belong to a tier."""
    arcs: Bools = fabric.structure.tier_of_arc == fabric.structure.tiers.index(tier)
    return arcs


def _programme(fabric: Fabric, counted: Bools | None, limit: Floats | None = None) -> _Programme:
    arcs = 2 * fabric.link_count
    everything = np.ones(arcs, dtype=np.bool_)
    return _Programme(
        fabric,
        everything if counted is None else counted,
        np.full(arcs, np.inf) if limit is None else limit,
    )


def least_over_all_paths(
    fabric: Fabric,
    flows: Flows,
    rows: Sequence[int],
    counted: Bools | None = None,
    *,
    up_down: bool = False,
) -> float:
    """Return the least worst utilisation (of counted arcs) over all ways to carry some flows.

    Each of the flows must have a path. With ``up_down``, packets go up and then down, as in a
    fabric of tiers; flows without such a path are excepted.
    """
    if not len(rows):
        return 0.0
    programme = _programme(fabric, counted)
    supply: dict[tuple[int, bool, Group], dict[int, float]] = {}
    for row in rows:
        source, destination = int(flows.source[row]), int(flows.destination[row])
        strict = up_down and is_joined(fabric, source, destination, up_down=True)
        nodes = supply.setdefault((destination, strict, group_of(flows, row)), {})
        nodes[source] = nodes.get(source, 0.0) + float(flows.gbps[row])
    for (destination, strict, group), nodes in supply.items():
        _conserve(programme, destination, group, nodes, up_down=strict)
    return programme.least()


def _conserve(
    programme: _Programme,
    destination: int,
    group: Group,
    nodes: dict[int, float],
    *,
    up_down: bool,
) -> None:
    """Add that what enters a node leaves it; nodes are doubled for the way up and down."""
    balance: dict[Seat, dict[int, float]] = {(node, False): {} for node in nodes}
    for arc, tail, head in steps(programme.fabric, destination, up_down=up_down):
        if programme.fabric.structure.nodes.kind[tail[0]] == NodeKind.NIC and tail[0] not in nodes:
            continue
        column = programme.column()
        balance.setdefault(tail, {})[column] = 1.0
        balance.setdefault(head, {})[column] = -1.0
        programme.use(arc, group, column)
    for (node, falls), terms in balance.items():
        if node != destination:
            programme.equal.add(terms, 0.0 if falls else nodes.get(node, 0.0))


def steps(
    fabric: Fabric, destination: int, *, up_down: bool = False
) -> Iterator[tuple[int, Seat, Seat]]:
    """Yield usable arcs towards a NIC with the seats that they join; no other NIC forwards."""
    structure = fabric.structure
    kind = structure.nodes.kind
    for arc in np.flatnonzero(fabric.plannable).tolist():
        tail, head = int(structure.tail[arc]), int(structure.head[arc])
        if kind[head] == NodeKind.NIC and head != destination:
            continue
        falls = up_down and bool(kind[head] < kind[tail])
        yield arc, (tail, False), (head, falls)
        if falls:
            yield arc, (tail, True), (head, True)


def least_over_paths(
    fabric: Fabric,
    flows: Flows,
    ways: Ways,
    rows: Sequence[int],
    counted: Bools | None = None,
    *,
    limit: Floats | None = None,
    whole: bool = False,
) -> float:
    """Return the same over given paths of each flow, in whole QPs if ``whole``.

    Arcs that are not counted keep to ``limit``, the utilisations by arc.
    """
    if not len(rows):
        return 0.0
    programme = _programme(fabric, counted, limit)
    integral: list[int] = []
    for row in rows:
        unit = float(flows.gbps[row] / flows.qps[row])
        columns = {}
        for way in ways(row):
            column = programme.column()
            columns[column] = 1.0
            for arc in way:
                programme.use(arc, group_of(flows, row), column, unit)
        programme.equal.add(columns, float(flows.qps[row]))
        integral += columns
    return programme.least(integral if whole else ())


def simple_paths(fabric: Fabric, source: int, destination: int) -> list[list[int]]:
    """Return all loop-free paths over usable links through no NIC; for small fabrics only."""
    structure = fabric.structure
    first, arcs = structure.out
    nic = structure.nodes.kind == NodeKind.NIC
    found: list[list[int]] = []
    stack: list[tuple[int, list[int], frozenset[int]]] = [(source, [], frozenset([source]))]
    while stack:
        node, path, seen = stack.pop()
        if node == destination:
            found.append(path)
            continue
        for arc in arcs[first[node] : first[node + 1]].tolist():
            head = int(structure.head[arc])
            if (
                fabric.plannable[arc]
                and head not in seen
                and (head == destination or not nic[head])
            ):
                stack.append((head, [*path, arc], seen | {head}))
    return found


def is_joined(
    fabric: Fabric,
    source: int,
    destination: int,
    without: frozenset[int] = frozenset(),
    *,
    up_down: bool = False,
) -> bool:
    """Return whether usable links, except those rows in ``without``, join two nodes."""
    further: dict[Seat, list[Seat]] = {}
    for arc, tail, head in steps(fabric, destination, up_down=up_down):
        if arc >> 1 not in without:
            further.setdefault(tail, []).append(head)
    stack: list[Seat] = [(source, False)]
    seen = {*stack}
    while stack:
        for seat in further.get(stack.pop(), ()):
            if seat not in seen:
                seen.add(seat)
                stack.append(seat)
    return any(node == destination for node, _ in seen)
