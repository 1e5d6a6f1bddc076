"""Small problems as an integer programme: whole QPs on paths that make the worst link least full.

First the worst utilisation of all arcs is minimised, then, at that value, the excess of each tier's
worst arc over its bound. Paths longer than the candidates are also tried, since the relaxation does
not tell what whole QPs may gain by them. Paths that go down and up again are the last resort, used
only while a link is overloaded.

Loads add up as in ``phased_loads``: a job with several phases puts its worst phase on an arc. Flows
between the same terminals, with the same rate of a QP, and with the same job and phase where that
matters, form one group. An integer variable counts how many of its QPs take each path.

CP-SAT (OR-Tools) solves the programme within a budget of deterministic time, starting from the
existing assignment, so that equal input gives equal output and no plan gets worse.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.solve import cp_sat
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.attempt import PlanningProblem, tier_worst
from heddle_controller.solve.commodities import LINEAR
from heddle_controller.solve.phases import phased_jobs
from heddle_controller.solve.search.qp_groups import QpGroup, path_rows, put_in_numbers
from heddle_controller.solve.search.search import TOLERANCE, Search

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_MOST_CHOICES = 3000
"""Pairs of a group and a path above which a problem is not small."""
_EFFORT_SECONDS = 0.3
"""CP-SAT's deterministic time for each of the two objectives."""
_WORTH = 1e-6
"""Smallest relative gain that counts."""
FINE = 1 << 22
"""Steps in which the largest rate of a QP is counted, since CP-SAT computes with integers."""
FINE_RATIO = 1000
"""Largest denominator of the ratio of two capacities. A finer ratio is rounded."""

_Turn = tuple[int, int]
"""A job with several phases and one of its phases; ``LINEAR`` and ``ANY_PHASE`` for other flows."""
_Key = tuple[int, int, int, float, _Turn]
"""Terminals, class, rate of one QP in Gbit/s, and turn: QPs that agree in these are equal."""


def solve_small(problem: PlanningProblem, assignment: Assignment) -> None:
    """Lower the worst utilisation of a small assignment, in place, where that is possible.

    An assignment whose fullest arc is at its proven bound stays as it is. ``fairness`` weighs other
    arcs that are too full against the slowest flow.
    """
    # What the candidates can reach is no bound here, since longer paths may reach more.
    problem = replace(problem, lp_tiers=None)
    search = Search(assignment, problem.candidates, problem.target(), problem.deadline)
    if not _above_bound(problem, assignment):
        return
    groups = _groups(search, search.chains.paths)
    if not groups:
        return
    groups = _groups(search, search.chains.with_longer) or groups
    # Try more paths only if the problem with fewer was solved: more paths take longer.
    if (
        _lower(problem, search, groups)
        and problem.network.tiered
        and _worst(problem, assignment) > 1 + _WORTH
    ):
        groups = _groups(search, search.chains.with_detours)
        if groups and _above_bound(problem, assignment):
            _lower(problem, search, groups)


def _above_bound(problem: PlanningProblem, assignment: Assignment) -> bool:
    """Return whether the worst arc is above its bound and there is time left."""
    bound = problem.target().overall * (1 + _WORTH)
    return _worst(problem, assignment) > bound and not problem.deadline.passed()


def _lower(problem: PlanningProblem, search: Search, groups: dict[_Key, QpGroup]) -> bool:
    """Move QPs to the paths that the programme gives them, if that is better.

    Returns whether it is proven that these paths allow nothing better.
    """
    assignment = search.assignment
    before = _worst(problem, assignment)
    programme = _Programme(problem, search, groups)
    counts = programme.solve()
    if counts is None:
        return False
    assignment.journal.clear()
    for group, count in zip(groups.values(), counts, strict=True):
        put_in_numbers(search, group, count)
    if _worst(problem, assignment) >= before * (1 - _WORTH):
        assignment.roll_back(0)
    return programme.proven


def _worst(problem: PlanningProblem, assignment: Assignment) -> float:
    return float(tier_worst(problem.network, assignment).max(initial=0.0))


def _groups(search: Search, ways: Callable[[int], Ints]) -> dict[_Key, QpGroup]:
    """Return chunks grouped by equal QPs; nothing where all groups together have too many paths.

    ``ways`` returns the paths of a flow. Flows that begin and end at one terminal are left out.
    """
    assignment = search.assignment
    flows, count = assignment.flows, 0
    several = set(phased_jobs(flows).tolist())
    found: dict[_Key, QpGroup] = {}
    for chunk, flow in enumerate(assignment.flow):
        ends = search.chains.candidates.ends_of(flows, flow)
        if ends[0] == ends[1]:
            continue
        unit, turn = assignment.unit_of(chunk), (LINEAR, ANY_PHASE)
        if int(flows.job[flow]) in several and flows.phase[flow] != ANY_PHASE:
            turn = int(flows.job[flow]), int(flows.phase[flow])
        key = (*ends, int(flows.traffic_class[flow]), unit, turn)
        if key not in found:
            found[key] = QpGroup([], ways(flow), unit)
            count += len(found[key].paths)
            if count > _MOST_CHOICES:
                return {}
        found[key].chunks.append(chunk)
    return found


class _Programme:
    """The integer programme.

    Loads are counted in steps of a rate, utilisation in steps of load on the fastest arc.
    """

    def __init__(
        self, problem: PlanningProblem, search: Search, of_key: dict[_Key, QpGroup]
    ) -> None:
        self._model = cp_sat.new_model()
        groups, turns = [*of_key.values()], [key[-1] for key in of_key]
        self._problem, self._search, self._groups = problem, search, groups
        network = problem.network
        self.proven = False
        """Whether the worst utilisation that was found is the least possible."""
        self._step = max(group.unit for group in groups) / FINE
        self._rates = [max(1, round(group.unit / self._step)) for group in groups]
        sizes = [sum(map(search.assignment.qps, group.chunks)) for group in groups]
        self._most = sum(rate * size for rate, size in zip(self._rates, sizes, strict=True))
        self._columns = [self._column(*one) for one in zip(groups, sizes, strict=True)]
        loads = self._loads(turns)
        self._per_step = self._step * float(network.per_gbps[[*loads]].min())
        """Utilisation that one step of load amounts to on the fastest arc."""
        self._tiers: dict[int, cp_model.IntVar] = {}
        for arc, load in loads.items():
            slower = float(network.per_gbps[arc]) * self._step / self._per_step
            ratio = Fraction(slower).limit_denominator(FINE_RATIO)
            tier = int(network.tier[arc])
            self._model.add(load * ratio.numerator <= self._worst_of(tier) * ratio.denominator)

    def _column(self, group: QpGroup, size: int) -> list[cp_model.IntVar]:
        """Return variables for a group's QPs on each path, with the present numbers as hints."""
        column = [self._model.new_int_var(0, size, "") for _ in range(len(group.paths))]
        self._model.add(sum(column) == size)
        assignment, row_of = self._search.assignment, path_rows(self._search, group)
        now: Ints = np.zeros(len(column), dtype=np.int64)
        for chunk in group.chunks:
            row = row_of.get(assignment.path[chunk].tobytes())
            if row is not None:
                now[row] += assignment.qps(chunk)
        for variable, number in zip(column, now.tolist(), strict=True):
            self._model.add_hint(variable, number)
        return column

    def _loads(self, turns: list[_Turn]) -> dict[int, cp_model.LinearExprT]:
        """Return the load of each arc that any path uses."""
        pad = self._problem.network.pad
        uses: dict[tuple[int, _Turn], list[cp_model.LinearExprT]] = defaultdict(list)
        for group, column, rate, turn in zip(
            self._groups, self._columns, self._rates, turns, strict=True
        ):
            for variable, path in zip(column, group.paths.tolist(), strict=True):
                for arc in path:
                    if arc != pad:
                        uses[arc, turn].append(variable * rate)
        loads: dict[int, list[cp_model.LinearExprT]] = defaultdict(list)
        heaviest: dict[tuple[int, int], cp_model.IntVar] = {}
        for (arc, (job, _)), terms in uses.items():
            if job == LINEAR:
                loads[arc].append(sum(terms))
                continue
            if (arc, job) not in heaviest:
                heaviest[arc, job] = self._model.new_int_var(0, self._most, "")
                loads[arc].append(heaviest[arc, job])
            self._model.add(heaviest[arc, job] >= sum(terms))
        return {arc: sum(terms) for arc, terms in loads.items()}

    def _worst_of(self, tier: int) -> cp_model.IntVar:
        """Return the worst utilisation of a tier as a variable, which is never below its target."""
        if tier not in self._tiers:
            least = self._steps(float(self._problem.target().bounds[tier]))
            most = max(least, FINE_RATIO * self._most)
            self._tiers[tier] = self._model.new_int_var(least, most, "")
        return self._tiers[tier]

    def _steps(self, utilization: float) -> int:
        """Return a utilisation in steps, rounded down: never above the QPs that it is made of."""
        return max(0, int(utilization * (1 - TOLERANCE) / self._per_step))

    def solve(self) -> list[Ints] | None:
        """Return how many QPs of each group take each of its paths; None if not found in time."""
        model, tiers = self._model, [*self._tiers.values()]
        least = self._steps(self._problem.target().overall)
        worst = model.new_int_var(least, max(least, FINE_RATIO * self._most), "")
        for tier in tiers:
            model.add(tier <= worst)
        model.minimize(worst)
        found = self._solved()
        if found is None:
            return None
        self.proven = found.best_objective_bound >= found.objective_value
        top = max(round(float(found.value(worst))), least)
        model.add(worst <= top)
        bounds = self._problem.target().bounds
        weights = [top // max(1, self._steps(float(bounds[tier]))) + 1 for tier in self._tiers]
        model.minimize(sum(w * tier for w, tier in zip(weights, tiers, strict=True)))
        self._hint(found)
        found = self._solved() or found
        return [np.array([found.value(x) for x in column], np.int64) for column in self._columns]

    def _hint(self, found: cp_model.CpSolver) -> None:
        self._model.clear_hints()  # type: ignore[no-untyped-call] # OR-Tools gives it no type
        for column in self._columns:
            for variable in column:
                self._model.add_hint(variable, found.value(variable))

    def _solved(self) -> cp_model.CpSolver | None:
        solver = cp_sat.new_solver(_EFFORT_SECONDS)
        # Several search strategies take turns, in an order that is always the same.
        solver.parameters.interleave_search = True
        remaining = self._problem.deadline.remaining()
        if remaining is not None:
            solver.parameters.max_time_in_seconds = remaining
        return solver if cp_sat.finds(solver, self._model) else None
