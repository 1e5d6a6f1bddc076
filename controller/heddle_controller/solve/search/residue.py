"""The few flows that search leaves too close together, placed anew by constraint programming.

Where arcs end above what is worth having, the flows on them are a small and hard
residue: whole numbers of QPs on candidate paths, such that no arc is above its limit.
Flows between the same terminals, of one rate a QP, are one set of such numbers. CP-SAT
(OR-Tools) decides that, within a budget of deterministic time, so that equal input
gives equal output. The flows on arcs that are too full are taken up first; if they
alone cannot be placed, also those on the arcs in their way that have no room for one
QP more, and so on outwards, as long as it stays small.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.solve import cp_sat
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.search.chains import TOLERANCE
from heddle_controller.solve.search.search import Search

if TYPE_CHECKING:
    from ortools.sat.python import cp_model

_MOST_CHOICES = 20_000
"""Pairs of a commodity and a path beyond which the residue is not small."""
MOST_RINGS = 6
"""Times that it is let grow."""
_EFFORT_SECONDS = 1.0
"""Of CP-SAT's deterministic time, each time."""
_SCALE = 1000
"""Loads in whole Mbit/s: CP-SAT reckons in integers."""

_Key = tuple[int, int, int, float]
"""Terminals, class and Gbit/s of one QP: what makes QPs alike."""


@dataclass(slots=True)
class QpGroup:
    """Chunks of QPs that are alike, and the paths they may take."""

    chunks: list[int]
    paths: Ints
    """Candidates, shape (paths, hops)."""
    unit: float
    """Gbit/s of one QP."""


def place_residue(search: Search, limit: Floats) -> bool:
    """Moves chunks such that no arc is above its limit; False leaves all as it was.

    ``limit`` is the utilisation allowed on each arc and the padding, shape (arcs + 1,).
    Jobs of one phase only: their loads simply add up.
    """
    assignment = search.assignment
    tight = _too_full(assignment, limit)
    for _ in range(MOST_RINGS):
        if not len(tight) or search.chains.deadline.passed():
            return False
        groups = _groups(search, _chunks_on(assignment, tight))
        if sum(len(group.paths) for group in groups) > _MOST_CHOICES:
            return False
        counts = _solve(assignment, groups, limit, search.chains.deadline.remaining())
        if counts is not None:
            for group, count in zip(groups, counts, strict=True):
                put_in_numbers(search, group, count)
            return True
        wider = _in_the_way(assignment, groups, limit)
        if not len(np.setdiff1d(wider, tight)):
            return False
        tight = np.union1d(tight, wider)
    return False


def _too_full(assignment: Assignment, limit: Floats) -> Ints:
    chosen = assignment.network.chosen
    return chosen[assignment.utilization()[chosen] > limit[chosen] + TOLERANCE]


def _chunks_on(assignment: Assignment, arcs: Ints) -> list[int]:
    """Chunks that use any of some arcs, ascending."""
    return sorted({chunk for arc in arcs.tolist() for chunk in assignment.members(arc)})


def _groups(search: Search, chunks: list[int]) -> list[QpGroup]:
    """The chunks by what makes their QPs alike."""
    assignment, flows = search.assignment, search.assignment.flows
    found: dict[_Key, QpGroup] = {}
    for chunk in chunks:
        flow = assignment.flow[chunk]
        ends = search.chains.candidates.ends_of(flows, flow)
        unit = assignment.unit_of(chunk)
        key = (*ends, int(flows.traffic_class[flow]), unit)
        group = found.setdefault(key, QpGroup([], search.chains.paths(flow), unit))
        group.chunks.append(chunk)
    return [*found.values()]


def _in_the_way(assignment: Assignment, groups: list[QpGroup], limit: Floats) -> Ints:
    """Arcs that the groups could use and that have no room for one QP more."""
    unit = max(group.unit for group in groups)
    arcs = np.unique(np.concatenate([group.paths.ravel() for group in groups]))
    arcs = arcs[arcs != assignment.network.pad]
    after = assignment.utilization()[arcs] + unit * assignment.network.per_gbps[arcs]
    full: Ints = arcs[after > limit[arcs] + TOLERANCE]
    return full


def _solve(
    assignment: Assignment, groups: list[QpGroup], limit: Floats, seconds: float | None
) -> list[Ints] | None:
    """QPs of each group on each of its paths, if some are found within all limits."""
    model = cp_sat.new_model()
    pad, per_gbps = assignment.network.pad, assignment.network.per_gbps
    load = assignment.load.copy()
    uses: dict[int, list[tuple[cp_model.IntVar, int]]] = {}
    columns: list[list[cp_model.IntVar]] = []
    for group in groups:
        size = sum(assignment.qps(chunk) for chunk in group.chunks)
        column = [model.new_int_var(0, size, "") for _ in range(len(group.paths))]
        model.add(sum(column) == size)
        mbps = round(group.unit * _SCALE)
        for variable, path in zip(column, group.paths.tolist(), strict=True):
            for arc in path:
                if arc != pad:
                    uses.setdefault(arc, []).append((variable, mbps))
        for chunk in group.chunks:
            load[assignment.path[chunk]] -= assignment.gbps(chunk)
        columns.append(column)
    for arc, terms in uses.items():
        room = limit[arc] / per_gbps[arc] - load[arc] + TOLERANCE
        # Rates are rounded to whole Mbit/s: one for each QP is what that may amount to.
        model.add(sum(mbps * variable for variable, mbps in terms) <= int(room * _SCALE))
    solver = cp_sat.new_solver(_EFFORT_SECONDS)
    if seconds is not None:
        solver.parameters.max_time_in_seconds = seconds
    if not cp_sat.finds(solver, model):
        return None
    return [
        np.array([solver.value(variable) for variable in column], dtype=np.int64)
        for column in columns
    ]


def path_rows(search: Search, group: QpGroup) -> dict[bytes, int]:
    """Row of each path of a group, by the bytes of its arcs without padding."""
    trimmed = [search.chains.trimmed(path) for path in group.paths]
    return {path.tobytes(): row for row, path in enumerate(trimmed)}


def put_in_numbers(search: Search, group: QpGroup, count: Ints) -> None:
    """Moves chunks of a group so that each path has its number of QPs; few are split."""
    assignment = search.assignment
    trimmed = [search.chains.trimmed(path) for path in group.paths]
    row_of = path_rows(search, group)
    left = count.copy()
    homeless: list[int] = []
    for chunk in group.chunks:
        row = row_of.get(assignment.path[chunk].tobytes())
        stay = 0 if row is None else min(int(left[row]), assignment.qps(chunk))
        if row is not None:
            left[row] -= stay
        if stay == 0:
            homeless.append(chunk)
        elif stay < assignment.qps(chunk):
            homeless.append(assignment.split(chunk, assignment.qps(chunk) - stay))
    for chunk in sorted(homeless, key=lambda c: -assignment.qps(c)):
        rest = chunk
        while left.any():
            size = assignment.qps(rest)
            fits = np.flatnonzero(left >= size)
            if len(fits):
                row = int(fits[left[fits].argmin()])
                left[row] -= size
                assignment.move(rest, trimmed[row])
                break
            row = int(left.argmax())
            piece = assignment.split(rest, int(left[row]))
            left[row] = 0
            assignment.move(piece, trimmed[row])
