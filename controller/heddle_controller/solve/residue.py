"""The last QPs of a rounded relaxation, placed all at once by constraint programming.

Rounding down leaves a few QPs over, one or two a commodity. Where placing them one
by one, and searching, ends above what is worth having, they are a small and hard
residue: whole numbers of QPs on candidate paths, such that no arc is above its
limit. CP-SAT (OR-Tools) decides that, within a budget of deterministic time, so
that equal input gives equal output.
"""

from __future__ import annotations

import numpy as np
from ortools.sat.python import cp_model

from heddle_controller.model.fabric import Floats, Ints
from heddle_controller.model.plan import Paths, starts
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.search import Search

MOST_CHOICES = 20_000
"""Pairs of a flow and a path beyond which the residue is not small."""
EFFORT_SECONDS = 2.0
"""Of CP-SAT's deterministic time."""
SCALE = 1000
"""Loads in whole Mbit/s: CP-SAT reckons in integers."""


def place_residue(
    assignment: Assignment, search: Search, rest: tuple[Ints, Ints, Ints], limit: Floats
) -> Paths | None:
    """Paths for the QPs of ``rest`` that keep every arc within ``limit``, or None.

    ``rest`` is in columns (flow row, first and last QP), none of them placed yet;
    ``limit`` is the utilisation allowed on each arc, shape (arcs + 1,).
    """
    choices = [search.chains.paths(flow) for flow in rest[0].tolist()]
    if not choices or sum(len(paths) for paths in choices) > MOST_CHOICES:
        return None
    model = cp_model.CpModel()
    uses: dict[int, list[tuple[cp_model.IntVar, int]]] = {}
    counts = []
    for row, (flow, paths) in enumerate(zip(rest[0].tolist(), choices, strict=True)):
        size = int(rest[2][row] - rest[1][row] + 1)
        mbps = round(float(assignment.unit[flow]) * SCALE)
        column = [model.new_int_var(0, size, "") for _ in range(len(paths))]
        model.add(sum(column) == size)
        for variable, path in zip(column, paths, strict=True):
            for arc in search.chains.trimmed(path).tolist():
                uses.setdefault(arc, []).append((variable, mbps))
        counts.append(column)
    for arc, terms in uses.items():
        room = limit[arc] / assignment.network.per_gbps[arc] - assignment.load[arc]
        model.add(sum(mbps * variable for variable, mbps in terms) <= int(room * SCALE))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = EFFORT_SECONDS
    if solver.solve(model) not in {cp_model.OPTIMAL, cp_model.FEASIBLE}:
        return None
    placed = [np.array([solver.value(variable) for variable in column]) for column in counts]
    return _as_paths(search, rest, choices, placed)


def _as_paths(
    search: Search, rest: tuple[Ints, Ints, Ints], choices: list[Ints], placed: list[Ints]
) -> Paths:
    """QPs by path, as paths between terminals."""
    rows: list[tuple[int, int, int]] = []
    arcs: list[Ints] = [np.empty(0, dtype=np.int64)]
    for row, (paths, count) in enumerate(zip(choices, placed, strict=True)):
        begin = int(rest[1][row])
        for path in np.flatnonzero(count).tolist():
            end = begin + int(count[path])
            rows.append((int(rest[0][row]), begin, end - 1))
            arcs.append(search.chains.trimmed(paths[path]))
            begin = end
    columns = np.array(rows, dtype=np.int64).reshape(-1, 3).T
    lengths = np.array([len(path) for path in arcs[1:]], dtype=np.int64)
    return Paths(columns[0], columns[1], columns[2], starts(lengths), np.concatenate(arcs))
