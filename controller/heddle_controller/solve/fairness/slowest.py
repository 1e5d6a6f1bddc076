"""Places the slowest flows, and those in their way, again by constraint programming.

Exchanges (``qp_swap``) swap two flows at a time. In a fabric that is full everywhere, a flow may
get a better place only if several flows change theirs at once, each taking what another leaves. The
question which QPs go where is then a small integer programme. As long as no arc carries more than
before, each keeps its level. So the rate of a QP on each of its paths is known, and the value of a
flow is a sum. CP-SAT (OR-Tools) maximises the least value of a neighbourhood within a budget of
deterministic time, so that equal input gives equal output. Levels are then computed again. If the
sorted values of all flows did not rise, the change is undone.

Where that finds nothing, fast flows have to wait: no QP counts with a higher rate than what would
help the slow flows. This leaves room on arcs that hold back only faster flows. These arcs may carry
as much as their tiers have to, as in ``qp_swap``. Where many flows are equally slow and cannot all
gain at once, one of them gains alone.

A neighbourhood is a slow flow, the flows on arcs that it could use, the flows on arcs that these
could use, and so on as long as they are few. A flow that cannot gain stays as it is, and the next
slowest is tried. This works only for jobs without phases, since their loads simply add up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints, distinct
from heddle_controller.model.flows import Flows
from heddle_controller.solve import cp_sat
from heddle_controller.solve.fairness.sharing import Shares
from heddle_controller.solve.network import Network
from heddle_controller.solve.search.qp_groups import QpGroup, path_rows, put_in_numbers
from heddle_controller.solve.search.search import Search

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_WORTH = 1e-4
"""Relative gain of the slowest flow below which nothing is moved."""
_CLOSE = 1e-3
"""Relative distance from the optimum at which the solver may stop."""
_MOST_CHOICES = 3_000
"""Most pairs of a flow and a path in a neighbourhood."""
MOST_STUCK = 2
"""Neighbourhoods in a row without gain after which the search ends."""
MOST_LOOKED_AT = 200
"""Most slow flows to look at for one that could gain."""
_EFFORT_SECONDS = 0.1
"""Deterministic time of CP-SAT for each neighbourhood."""
EFFORT_IN_ALL = 0.25
"""Deterministic time of CP-SAT for one plan in all."""
SECONDS_A_CHOICE = 2e-5
"""Time counted for building each choice in the model: about what it takes."""
_SCALE = 1_000_000
"""Factor for rates (whole kbit/s) and values (millionths), since CP-SAT computes in integers."""

_Column: TypeAlias = "list[cp_model.IntVar]"
"""QPs of one flow on each of its paths."""


@dataclass(frozen=True, slots=True)
class _Terms:
    """Conditions under which a slow flow is helped."""

    headroom: float
    """Most that a QP counts with, as a multiple of the mean rate of the slow flow's QPs."""
    alone: bool = False
    """Whether other flows that are as slow need not gain with it."""


TERMS = (_Terms(inf), _Terms(1.1), _Terms(1.4, alone=True))
"""Conditions to try for each slow flow, in order."""


@dataclass(slots=True)
class _Part:
    """A flow of a neighbourhood."""

    flow: int
    group: QpGroup
    rate: Floats
    """Gbit/s of one QP on each path, shape (paths,)."""
    qps: int
    column: _Column


def raise_slowest(search: Search, shares: Shares) -> bool:
    """Place slow flows again while the sorted values of all flows rise.

    ``shares`` are those of the search's assignment, which is changed in place. Returns whether
    anything was moved.
    """
    stuck: set[int] = set()
    effort, failed, moved = EFFORT_IN_ALL, 0, False
    while failed < MOST_STUCK and effort > 0 and not search.chains.deadline.passed():
        slow = _slowest(search, shares, stuck)
        if slow is None:
            break
        for terms in TERMS:
            if effort <= 0:
                break
            around = _Neighbourhood(search, shares, stuck, slow, terms)
            counts, spent = around.solve(min(effort, _EFFORT_SECONDS))
            effort -= spent
            after = _placed(search, around.parts, counts, shares) if counts else None
            if after is not None:
                shares, failed, moved = after, 0, True
                break
        else:
            stuck.add(slow)
            failed += 1
    return moved


def _slowest(search: Search, shares: Shares, stuck: set[int]) -> int | None:
    """Return the flow of least value that might gain, or None.

    Slow flows that cannot gain are added to ``stuck``.
    """
    assignment = search.assignment
    flows, network = assignment.flows, assignment.network
    routed = distinct(shares.flow)
    order = routed[np.argsort(shares.value[routed], kind="stable")]
    for flow in order[: MOST_LOOKED_AT + len(stuck)].tolist():
        if flow in stuck:
            continue
        level = shares.level[sole_arcs(network, flows, flow)]
        best = shares.level[search.chains.paths(flow)].min(axis=1, initial=inf)
        rate = min(float(assignment.unit[flow]), level.min(initial=inf), best.max(initial=0.0))
        if rate * flows.qps[flow] > shares.ratio[flow] * flows.gbps[flow] * (1 + _WORTH):
            return int(flow)
        stuck.add(flow)
    return None


def sole_arcs(network: Network, flows: Flows, flow: int) -> Ints:
    """Return the arcs of the flow's single-homed NICs, which all its QPs cross; 0 to 2 arcs."""
    out, into = network.nic_arc[[flows.source[flow], flows.destination[flow]]].tolist()
    return np.array([*[out] * (out != NONE), *[into ^ 1] * (into != NONE)], dtype=np.int64)


def _placed(
    search: Search, parts: Sequence[_Part], counts: Sequence[Ints], before: Shares
) -> Shares | None:
    """Move QPs to their new paths and return the shares; undo it and return None if no better."""
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
    """A slow flow and the flows around it, with given levels of arcs."""

    def __init__(
        self, search: Search, shares: Shares, stuck: set[int], slow: int, terms: _Terms
    ) -> None:
        self.parts: list[_Part] = []
        self._slow, self._alone = slow, terms.alone
        self._most = terms.headroom * float(shares.ratio[slow] * search.assignment.unit[slow])
        """Most Gbit/s that a QP counts with."""
        self._rate: Floats = np.minimum(shares.rate, self._most)
        """Gbit/s that a QP of each chunk counts with, shape (chunks,)."""
        self._search, self._shares, self._stuck = search, shares, stuck
        self._assignment = search.assignment
        flows = self._assignment.flows
        self._value = shares.value
        self._per_rate: Floats = 1 / (flows.gbps * flows.weight)
        """Value of one Gbit/s to each flow, shape (flows,)."""
        self._chunks: dict[int, list[int]] = {}
        for chunk, flow in enumerate(self._assignment.flow):
            self._chunks.setdefault(flow, []).append(chunk)
        self._model = cp_sat.new_model()

    def solve(self, effort: float) -> tuple[list[Ints] | None, float]:
        """Return the QPs of each part on each of its paths, and the effort spent.

        The first is None if no better placement was found.
        """
        self.parts = [self._part(flow) for flow in self._around(self._slow)]
        self._limit_arcs()
        least = self._least_value(self._value[self._slow])
        self._model.maximize(least)
        solver = cp_sat.new_solver(effort)
        solver.parameters.relative_gap_limit = _CLOSE
        # The model is small and its relaxation tight: presolving it would take most of the time.
        solver.parameters.cp_model_presolve = False
        solver.parameters.linearization_level = 2
        found = cp_sat.finds(solver, self._model)
        spent = float(solver.response_proto.deterministic_time)
        spent += SECONDS_A_CHOICE * sum(len(part.column) for part in self.parts)
        if not found:
            return None, spent
        values = [[solver.value(number) for number in part.column] for part in self.parts]
        return [np.array(column, dtype=np.int64) for column in values], spent

    def _qps(self, flow: int) -> int:
        return sum(map(self._assignment.qps, self._chunks[flow]))

    def _ends(self, flow: int) -> Ints:
        return sole_arcs(self._assignment.network, self._assignment.flows, flow)

    def _rates(self, flow: int) -> Floats:
        """Return the Gbit/s that a QP of a flow would get on each of its paths."""
        paths, level = self._search.chains.paths(flow), self._shares.level
        ends = level[self._ends(flow)].tolist()
        most = min([self._most, float(self._assignment.unit[flow]), *ends])
        rates: Floats = np.minimum(level[paths].min(axis=1, initial=inf), most)
        return rates

    def _around(self, slow: int) -> list[int]:
        """Return the flow, those that it could meet, those that these could meet, and so on.

        It ends when the flows have more than ``_MOST_CHOICES`` paths.
        """
        flows, known, new = [slow], set[int](), [slow]
        room = _MOST_CHOICES - len(self._search.chains.paths(slow))
        while new:
            arcs = self._reached(new).difference(known)
            known |= arcs
            met = {self._assignment.flow[c] for a in arcs for c in self._assignment.members(a)}
            new = []
            # The best-off flows come first, since they have most to give.
            for flow in sorted(met.difference(flows), key=lambda f: (-self._value[f], f)):
                room -= len(self._search.chains.paths(flow))
                if room < 0:
                    return flows
                flows.append(flow)
                new.append(flow)
        return flows

    def _reached(self, flows: Iterable[int]) -> set[int]:
        """Return the arcs that some flows could use."""
        arcs = {arc for flow in flows for arc in self._search.chains.paths(flow).ravel().tolist()}
        return arcs - {self._assignment.network.pad}

    def _part(self, flow: int) -> _Part:
        """Add a flow to the model, with its number of QPs on each path as variables."""
        paths, qps = self._search.chains.paths(flow), self._qps(flow)
        group = QpGroup(list(self._chunks[flow]), paths, float(self._assignment.unit[flow]))
        column = [self._model.new_int_var(0, qps, "") for _ in paths]
        self._model.add(sum(column) == qps)
        held = np.zeros(len(paths), dtype=np.int64)
        rows = path_rows(self._search, group)
        for chunk in group.chunks:
            row = rows.get(self._assignment.path[chunk].tobytes())
            if row is not None:
                held[row] += self._assignment.qps(chunk)
        for number, count in zip(column, held.tolist(), strict=True):
            self._model.add_hint(number, count)
        return _Part(flow, group, self._rates(flow), qps, column)

    def _least_value(self, before: float) -> cp_model.IntVar:
        """Add a variable for the least value of flows that must gain; the others may not lose."""
        enough = ceil(float(before) * (1 + _WORTH) * _SCALE)
        most = ceil(_SCALE / float(self._assignment.flows.weight.min()))
        least = self._model.new_int_var(enough, max(enough, most), "")
        for part in self.parts:
            worth = np.rint(part.rate * self._per_rate[part.flow] * _SCALE).astype(np.int64)
            value = _sum_of(part.column, worth)
            if self._stays(part.flow):
                held = sum(self._rate[c] * self._assignment.qps(c) for c in part.group.chunks)
                # Rounding may have lowered each summand.
                least_of = int(held * self._per_rate[part.flow] * _SCALE) - part.qps
                self._model.add(value >= least_of)
            else:
                self._model.add(value >= least)
        return least

    def _stays(self, flow: int) -> bool:
        """Whether a flow need not gain."""
        if flow == self._slow:
            return False
        tied = bool(self._value[flow] <= self._value[self._slow] * (1 + _WORTH))
        return flow in self._stuck or (self._alone and tied)

    def _limit_arcs(self) -> None:
        """Limit for each arc what it carries, and what it serves.

        It carries what flows ask for: at most as much as before, or as it may carry, if that is
        more. It serves the rates that the levels give: at most as much as before, or its capacity.
        """
        network = self._assignment.network
        capacity = network.fabric.structure.capacity
        carried, served = self._assignment.load.copy(), self._shares.served(self._most)
        allowed = np.maximum(1.0, self._search.enough[:-1] if self._most < inf else 1.0)
        most = np.maximum(carried[:-1], allowed * capacity)
        can = np.maximum(served[:-1], capacity)
        uses: dict[int, list[tuple[int, int]]] = {network.pad: []}
        sole: set[int] = set()
        for number, part in enumerate(self.parts):
            ends = self._ends(part.flow).tolist()
            sole.update(ends)
            for chunk in part.group.chunks:
                path, qps = self._assignment.path[chunk], self._assignment.qps(chunk)
                carried[path] -= part.group.unit * qps
                served[[*path.tolist(), *ends]] -= self._rate[chunk] * qps
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

    def _limit(self, column: _Column, gbps: Sequence[float], room: float) -> None:
        """Limit the Gbit/s of some QPs, given for one QP of each column, to the room in all."""
        kbps = np.array([int(each * _SCALE) for each in gbps], dtype=np.int64)
        self._model.add(_sum_of(column, kbps) <= ceil((room + 1e-6) * _SCALE))


def _sum_of(column: _Column, weights: Ints) -> cp_model.LinearExprT:
    from ortools.sat.python.cp_model_helper import LinearExpr  # noqa: PLC0415 - see cp_sat

    return LinearExpr.weighted_sum(column, weights.tolist())
