"""Loads after every single loss: only what a loss changes is looked at.

A *cell* is an arc after a loss on which a path came or went; elsewhere loads are those of the plan.
Loads follow the rule of the project (``model.load``): what may always run adds up, and of each
job's phases the greatest counts.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, among, starts
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.solve.losses.moves import MOVED, Moves, SingleLosses


def ranked(codes: Ints) -> tuple[Ints, Ints]:
    """Each value once, ascending, and the place of each element among them."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    new = np.ones(len(codes), dtype=np.bool_)
    new[1:] = ordered[1:] != ordered[:-1]
    place = np.empty(len(codes), dtype=np.int64)
    place[order] = np.cumsum(new) - 1
    return ordered[new], place


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """Uses of arcs by paths, ordered by arc."""

    first: Ints
    """Where each arc's begin, shape (arcs + 1,)."""
    path: Ints

    @classmethod
    def of(cls, paths: Paths, arcs: int) -> Uses:
        """Those of all paths."""
        order = np.argsort(paths.arcs, kind="stable")
        return cls(starts(np.bincount(paths.arcs, minlength=arcs)), paths.owner()[order])

    def on(self, arcs: Ints) -> tuple[Ints, Ints]:
        """Place in ``arcs`` and path of every use of these arcs."""
        count = np.diff(self.first)[arcs]
        place = np.repeat(np.arange(len(arcs), dtype=np.int64), count)
        within = np.arange(len(place)) - np.repeat(np.cumsum(count) - count, count)
        return place, self.path[self.first[arcs][place] + within]


@dataclass(frozen=True, slots=True, eq=False)
class Amounts:
    """Something that paths put on arcs, Gbit/s or QPs, added up by the rule of loads."""

    each: Floats
    """Of each path."""
    job: Ints
    phase: Ints
    jobs: int
    phases: int

    @classmethod
    def of(cls, plan: Plan, each: Floats) -> Amounts:
        """The uses by the paths of a plan."""
        flows, flow = plan.flows, plan.paths.flow
        counts = max(len(flows.job_names), 1), max(len(flows.phase_names), 1)
        return cls(each, flows.job[flow], flows.phase[flow], *counts)

    def total(self, place: Ints, path: Ints, sign: Floats, count: int) -> Floats:
        """Sums of uses of ``count`` places by paths; those of sign -1 are taken away."""
        value, phase = self.each[path] * sign, self.phase[path]
        always = phase == ANY_PHASE
        found = np.bincount(place[always], weights=value[always], minlength=count)
        rest = np.flatnonzero(~always)
        if not len(rest):
            return found.astype(np.float64)
        code = (place[rest] * self.jobs + self.job[path[rest]]) * self.phases + phase[rest]
        codes, slot = np.unique(code, return_inverse=True)
        sums = np.bincount(slot, weights=value[rest])
        share = codes // self.phases
        begins = np.flatnonzero(np.append(True, share[1:] != share[:-1]))
        most = np.maximum.reduceat(sums, begins)
        of = share[begins] // self.jobs
        return np.asarray(found + np.bincount(of, weights=np.maximum(most, 0.0), minlength=count))


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Arcs that a loss changes, ordered by loss and arc; arrays of shape (cells,)."""

    loss: Ints
    arc: Ints
    load: Floats
    """Gbit/s; 0 on what was lost."""
    freed: Floats
    """Gbit/s of what went from here, added up."""

    @classmethod
    def of(cls, plan: Plan, losses: SingleLosses, moves: Moves, uses: Uses) -> Cells:
        """All cells of all losses."""
        amounts = Amounts.of(plan, plan.paths.gbps(plan.flows))
        arcs = 2 * plan.fabric.link_count
        gone_row, gone_arc = _steps(plan.paths, moves.path)
        moved = moves.rows(MOVED)
        came_row, came_arc = _steps(plan.backups, moves.path[moved])
        came_row = moved[came_row]
        # A step that path and backup share, such as that of the NIC, changes nothing.
        gone = gone_row * arcs + gone_arc
        came = came_row * arcs + came_arc
        stays = among(gone, np.sort(came))
        same = among(came, np.sort(gone[stays]))
        gone_row, gone_arc = gone_row[~stays], gone_arc[~stays]
        came_row, came_arc = came_row[~same], came_arc[~same]
        row = np.concatenate([gone_row, came_row])
        sign = np.concatenate([np.full(len(gone_row), -1.0), np.ones(len(came_row))])
        code = moves.loss[row] * arcs + np.concatenate([gone_arc, came_arc])
        codes, place = ranked(code)
        loss, arc = codes // arcs, codes % arcs
        load = _loads(plan, amounts, uses, (arc, place, moves.path[row], sign))
        load[losses.takes(loss, arc)] = 0.0
        left = np.where(sign < 0, amounts.each[moves.path[row]], 0.0)
        freed = np.bincount(place, weights=left, minlength=len(codes))
        return cls(loss, arc, load, freed.astype(np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Every single loss of one kind, and what it changes of a plan."""

    plan: Plan
    uses: Uses
    losses: SingleLosses
    moves: Moves
    cells: Cells

    @classmethod
    def of(cls, plan: Plan, uses: Uses, losses: SingleLosses) -> Survey:
        """Of some losses."""
        moves = Moves.of(plan, losses)
        return cls(plan, uses, losses, moves, Cells.of(plan, losses, moves, uses))


def _loads(
    plan: Plan, amounts: Amounts, uses: Uses, changes: tuple[Ints, Ints, Ints, Floats]
) -> Floats:
    """Loads of cells: ``changes`` are the arc of each, then place, path and sign of each change."""
    arc, place, path, sign = changes
    if not (amounts.phase != ANY_PHASE).any():
        return np.asarray(plan.loads[arc] + amounts.total(place, path, sign, len(arc)))
    stood, by = uses.on(arc)
    every = np.concatenate([stood, place]), np.concatenate([by, path])
    return amounts.total(*every, np.concatenate([np.ones(len(by)), sign]), len(arc))


def _steps(paths: Paths, rows: Ints) -> tuple[Ints, Ints]:
    """Place in ``rows`` and arc of every step of some paths."""
    some = paths.take(rows)
    return some.owner(), some.arcs


def worst_of(survey: Survey) -> Floats:
    """Utilisation of the worst arc after each loss, shape (losses,)."""
    plan, losses, cells = survey.plan, survey.losses, survey.cells
    capacity = plan.fabric.structure.capacity
    worst = np.zeros(len(losses))
    np.maximum.at(worst, cells.loss, cells.load / capacity[cells.arc])
    return np.maximum(worst, _elsewhere(plan.loads / capacity, losses, cells))


def left_of(survey: Survey) -> Floats:
    """Utilisation of the worst arc after each loss, were nothing that it breaks carried."""
    plan, losses, cells = survey.plan, survey.losses, survey.cells
    capacity = plan.fabric.structure.capacity
    left = np.zeros(len(losses))
    stays = np.maximum(plan.loads[cells.arc] - cells.freed, 0.0) / capacity[cells.arc]
    stays[losses.takes(cells.loss, cells.arc)] = 0.0
    np.maximum.at(left, cells.loss, stays)
    return np.maximum(left, _elsewhere(plan.loads / capacity, losses, cells))


def _elsewhere(used: Floats, losses: SingleLosses, cells: Cells) -> Floats:
    """The fullest arc of the plan that a loss neither takes nor changes."""
    order = np.argsort(-used, kind="stable")
    known = cells.loss * len(used) + cells.arc
    rank = np.zeros(len(losses), dtype=np.int64)
    open_ = np.arange(len(losses))
    while len(open_):
        arc = order[rank[open_]]
        changed = among(open_ * len(used) + arc, known)
        open_ = open_[changed | losses.takes(open_, arc)]
        rank[open_] += 1
        open_ = open_[rank[open_] < len(used)]
    return np.where(rank < len(used), used[order[np.minimum(rank, len(used) - 1)]], 0.0)


def members(survey: Survey, loss: Ints, arc: Ints) -> tuple[Ints, Ints]:
    """Place and path of every use of some arcs, each after a loss.

    ``loss`` and ``arc`` are parallel, ordered by loss and arc, none twice.
    """
    plan, moves, uses = survey.plan, survey.moves, survey.uses
    width, arcs = max(len(plan.paths), 1), 2 * plan.fabric.link_count
    broken = moves.loss * width + moves.path
    place, path = uses.on(arc)
    stays = ~among(loss[place] * width + path, broken)
    moved = moves.rows(MOVED)
    moved = moved[np.isin(moves.loss[moved], loss)]
    row, step = _steps(plan.backups, moves.path[moved])
    row = moved[row]
    codes, code = loss * arcs + arc, moves.loss[row] * arcs + step
    at = np.minimum(np.searchsorted(codes, code), max(len(codes) - 1, 0))
    there = np.flatnonzero(codes[at] == code) if len(codes) else np.empty(0, dtype=np.int64)
    return (
        np.concatenate([place[stays], at[there]]),
        np.concatenate([path[stays], moves.path[row[there]]]),
    )
