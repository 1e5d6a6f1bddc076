"""The slowest flows and those in their way, placed anew by constraint programming.

Exchanges (``deals``) swap two flows at a time. In a fabric that is full everywhere a flow
may get a better place only if several change theirs at once, each taking what another
leaves. Which QPs go where is then a small integer programme: while no arc carries more
than before, each keeps its level, so the rate of a QP on each of its paths is known and the
value of a flow is a sum. CP-SAT (OR-Tools) makes the least value of a neighbourhood as
great as it gets, within a budget of deterministic time, so that equal input gives equal
output. Levels are then found anew, and where the sorted values of all flows did not rise,
all is as it was.

A neighbourhood is a slow flow, the flows on arcs that it could use, those on the arcs of
these, and so on as long as they are few. A flow that cannot gain stays as it is, and the
next slowest is looked at. Jobs of one phase only: their loads simply add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf

import numpy as np
from ortools.sat.python import cp_model

from heddle_controller.model.fabric import NONE, Floats, Ints
from heddle_controller.solve.residue import Group, put_in_numbers, rows_of
from heddle_controller.solve.search import Search
from heddle_controller.solve.sharing import Shares

WORTH = 1e-3
"""Relative gain of the slowest flow below which nothing is moved."""
MOST_CHOICES = 3_000
"""Pairs of a flow and a path in a neighbourhood."""
MOST_STUCK = 3
"""Neighbourhoods in a row without gain before the search ends."""
MOST_LOOKED_AT = 200
"""Slow flows that are looked at for one that could gain."""
EFFORT_SECONDS = 0.1
"""Of CP-SAT's deterministic time, each time."""
EFFORT_IN_ALL = 0.4
"""The same, for one plan."""
SCALE = 1_000_000
"""Rates in whole kbit/s, values in millionths: CP-SAT reckons in integers."""
TOLERANCE = 1e-9

Column = list[cp_model.IntVar]
"""QPs of one flow on each of its paths."""


@dataclass(slots=True)
class _Part:
    """A flow of a neighbourhood."""

    flow: int
    group: Group
    rate: Floats
    """Gbit/s of one QP on each path, shape (paths,)."""
    qps: int
    column: Column


def raise_slowest(search: Search, shares: Shares) -> bool:
    """Places slow flows anew while the sorted values of all flows rise by it.

    ``shares`` are those of the search's assignment. Returns whether anything was moved.
    """
    stuck: set[int] = set()
    effort, failed, moved = EFFORT_IN_ALL, 0, False
    while failed < MOST_STUCK and effort > 0 and not search.chains.deadline.passed():
        around = _Neighbourhood(search, shares, stuck)
        slow = around.slowest()
        if slow is None:
            break
        counts, spent = around.solve(slow, min(effort, EFFORT_SECONDS))
        effort -= max(spent, EFFORT_SECONDS / 100)
        after = _placed(search, around.parts, counts, shares) if counts else None
        if after is None:
            stuck.add(slow)
            failed += 1
        else:
            shares, failed, moved = after, 0, True
    return moved


def _placed(
    search: Search, parts: Sequence[_Part], counts: Sequence[Ints], before: Shares
) -> Shares | None:
    """The shares once QPs are where they should be; None, all as it was, if that is no better."""
    assignment = search.assignment
    begin = len(assignment.journal)
    for part, count in zip(parts, counts, strict=True):
        put_in_numbers(search, part.group, count)
    after = Shares(assignment)
    if after.sorted_values > before.sorted_values:
        return after
    assignment.roll_back(begin)
    return None


class _Neighbourhood:
    """What stands around a slow flow, under given levels."""

    def __init__(self, search: Search, shares: Shares, stuck: set[int]) -> None:
        self.parts: list[_Part] = []
        self._search, self._shares, self._stuck = search, shares, stuck
        self._assignment = search.assignment
        flows = self._assignment.flows
        self._value = shares.value
        self._per_rate: Floats = 1 / (flows.gbps * flows.weight)
        """Value that each Gbit/s is to a flow."""
        self._chunks: dict[int, list[int]] = {}
        for chunk, flow in enumerate(self._assignment.flow):
            self._chunks.setdefault(flow, []).append(chunk)
        self._model = cp_model.CpModel()

    def slowest(self) -> int | None:
        """The flow of least value that might gain; those that cannot are noted as stuck."""
        order = np.argsort(self._value, kind="stable")
        for flow in order[: MOST_LOOKED_AT + len(self._stuck)].tolist():
            if flow in self._stuck or flow not in self._chunks:
                continue
            most = float(self._rates(flow).max(initial=0.0)) * self._qps(flow)
            if most * self._per_rate[flow] > self._value[flow] * (1 + WORTH):
                return int(flow)
            self._stuck.add(flow)
        return None

    def solve(self, slow: int, effort: float) -> tuple[list[Ints] | None, float]:
        """QPs of each part on each of its paths, if that helps; and the effort it took."""
        self.parts = [self._part(flow) for flow in self._around(slow)]
        self._limit_arcs()
        least = self._least_value(slow)
        self._model.maximize(least)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = effort
        solver.parameters.relative_gap_limit = WORTH
        # The model is small and its relaxation tight: presolving it would take most of the time.
        solver.parameters.cp_model_presolve = False
        solver.parameters.linearization_level = 2
        found = solver.solve(self._model) in {cp_model.OPTIMAL, cp_model.FEASIBLE}
        spent = float(solver.response_proto.deterministic_time)
        if not found:
            return None, spent
        values = [[solver.value(number) for number in part.column] for part in self.parts]
        return [np.array(column, dtype=np.int64) for column in values], spent

    def _qps(self, flow: int) -> int:
        return sum(map(self._assignment.qps, self._chunks[flow]))

    def _ends(self, flow: int) -> list[int]:
        """The arcs of single-homed NICs, which all QPs of a flow cross."""
        flows, network = self._assignment.flows, self._assignment.network
        out = int(network.nic_arc[flows.source[flow]])
        into = int(network.nic_arc[flows.destination[flow]])
        return ([out] if out != NONE else []) + ([into ^ 1] if into != NONE else [])

    def _rates(self, flow: int) -> Floats:
        """Gbit/s that a QP of a flow would get on each of its paths."""
        paths, level = self._search.chains.paths(flow), self._shares.level
        most = min([float(self._assignment.unit[flow]), *level[self._ends(flow)].tolist()])
        rates: Floats = np.minimum(level[paths].min(axis=1, initial=inf), most)
        return rates

    def _around(self, slow: int) -> list[int]:
        """The flow, those that it could meet, those that these could, as far as they are few."""
        flows, known, new = [slow], set[int](), [slow]
        room = MOST_CHOICES - len(self._search.chains.paths(slow))
        while new:
            arcs = self._reached(new).difference(known)
            known |= arcs
            met = {self._assignment.flow[c] for a in arcs for c in self._assignment.members(a)}
            new = []
            # Those best off first: they have most to give.
            for flow in sorted(met.difference(flows), key=lambda f: (-self._value[f], f)):
                room -= len(self._search.chains.paths(flow))
                if room < 0:
                    return flows
                flows.append(flow)
                new.append(flow)
        return flows

    def _reached(self, flows: Iterable[int]) -> set[int]:
        """Arcs that some flows could use."""
        arcs = {arc for flow in flows for arc in self._search.chains.paths(flow).ravel().tolist()}
        return arcs - {self._assignment.network.pad}

    def _part(self, flow: int) -> _Part:
        """A flow with a variable for each of its paths, all QPs being somewhere."""
        paths, qps = self._search.chains.paths(flow), self._qps(flow)
        group = Group(list(self._chunks[flow]), paths, float(self._assignment.unit[flow]))
        column = [self._model.new_int_var(0, qps, "") for _ in paths]
        self._model.add(sum(column) == qps)
        held = np.zeros(len(paths), dtype=np.int64)
        rows = rows_of(self._search, group)
        for chunk in group.chunks:
            row = rows.get(self._assignment.path[chunk].tobytes())
            if row is not None:
                held[row] += self._assignment.qps(chunk)
        for number, count in zip(column, held.tolist(), strict=True):
            self._model.add_hint(number, count)
        return _Part(flow, group, self._rates(flow), qps, column)

    def _least_value(self, slow: int) -> cp_model.IntVar:
        """The least value of those that are not stuck; the others may not lose."""
        enough = ceil(float(self._value[slow]) * (1 + WORTH) * SCALE)
        most = ceil(SCALE / float(self._assignment.flows.weight.min()))
        least = self._model.new_int_var(enough, max(enough, most), "")
        for part in self.parts:
            worth = np.rint(part.rate * self._per_rate[part.flow] * SCALE).astype(np.int64)
            value = _sum_of(part.column, worth)
            if part.flow in self._stuck:
                # Each summand may have been rounded down.
                self._model.add(value >= int(self._value[part.flow] * SCALE) - part.qps)
            else:
                self._model.add(value >= least)
        return least

    def _limit_arcs(self) -> None:
        """No arc may carry more than before, or than there is room for, nor serve more than it can.

        What an arc serves are rates under the levels; what it carries is what flows ask for.
        """
        network = self._assignment.network
        carried, served = self._assignment.load.copy(), self._shares.served()
        most = np.maximum(carried[:-1], network.fabric.structure.capacity)
        can = np.maximum(served[:-1], network.fabric.structure.capacity)
        uses: dict[int, list[tuple[int, int]]] = {network.pad: []}
        sole: set[int] = set()
        for number, part in enumerate(self.parts):
            ends = self._ends(part.flow)
            sole.update(ends)
            for chunk in part.group.chunks:
                path, qps = self._assignment.path[chunk], self._assignment.qps(chunk)
                carried[path] -= part.group.unit * qps
                served[[*path.tolist(), *ends]] -= self._shares.rate[chunk] * qps
            for row, path in enumerate(part.group.paths.tolist()):
                for arc in {*path, *ends}:
                    uses.setdefault(arc, []).append((number, row))
        del uses[network.pad]
        for arc, terms in uses.items():
            column = [self.parts[number].column[row] for number, row in terms]
            rates = [float(self.parts[number].rate[row]) for number, row in terms]
            units = [self.parts[number].group.unit for number, _ in terms]
            self._limit(column, rates, float(can[arc] - served[arc]))
            if arc not in sole:
                self._limit(column, units, float(most[arc] - carried[arc]))

    def _limit(self, column: Column, gbps: Sequence[float], room: float) -> None:
        """What some QPs get in all may not exceed the room."""
        kbps = np.array([int(each * SCALE) for each in gbps], dtype=np.int64)
        self._model.add(_sum_of(column, kbps) <= ceil((room + 1e-6) * SCALE))


def _sum_of(column: Column, weights: Ints) -> cp_model.LinearExprT:
    return cp_model.LinearExpr.weighted_sum(column, weights.tolist())
