"""Loads after every single loss: only what a loss changes is looked at.

A *cell* is an arc after a loss on which a path came or went; elsewhere loads are those of the plan.
Loads follow the rule of the project (``model.load``): what may always run adds up, and of each
job's phases the greatest counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

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

    def sums(self, each: Floats) -> Floats:
        """What the users of each arc have together, given what each path has; shape (arcs,)."""
        arc = np.repeat(np.arange(len(self.first) - 1), np.diff(self.first))
        found = np.bincount(arc, weights=each[self.path], minlength=len(self.first) - 1)
        return found.astype(np.float64)

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
        rest = np.flatnonzero(phase != ANY_PHASE)
        found = np.bincount(place, np.where(phase == ANY_PHASE, value, 0.0), count)
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
class Standing:
    """A plan while nothing is lost: what losses of both kinds are compared with."""

    plan: Plan
    uses: Uses
    rates: Amounts
    """Gbit/s of each path."""
    qps: Amounts
    left: Paths
    """What each path leaves when it turns to its backup: the arcs that this has not."""
    taken: Paths
    """What it takes then."""

    @classmethod
    def of(cls, plan: Plan) -> Standing:
        """Of a plan."""
        return cls(
            plan,
            Uses.of(plan.paths, 2 * plan.fabric.link_count),
            Amounts.of(plan, plan.paths.gbps(plan.flows)),
            Amounts.of(plan, plan.paths.qp_count.astype(np.float64)),
            _apart_from(plan.paths, plan.backups),
            _apart_from(plan.backups, plan.paths),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """Arcs that a loss changes, ordered by loss and arc; arrays of shape (cells,)."""

    loss: Ints
    arc: Ints
    load: Floats
    """Gbit/s; 0 on what was lost."""
    qps: Floats
    """QPs that are there, by the rule of loads; those on what was lost count too."""
    freed: Floats
    """Gbit/s of what went from here, added up."""

    @classmethod
    def of(cls, standing: Standing, losses: SingleLosses, moves: Moves) -> Cells:
        """All cells of all losses."""
        plan, rates = standing.plan, standing.rates
        arcs = 2 * plan.fabric.link_count
        is_moved = moves.fate == MOVED
        moved, halted = np.flatnonzero(is_moved), np.flatnonzero(~is_moved)
        left_row, left_arc = _steps(standing.left, moves.path[moved])
        halted_row, halted_arc = _steps(plan.paths, moves.path[halted])
        came_row, came_arc = _steps(standing.taken, moves.path[moved])
        row = np.concatenate([moved[left_row], halted[halted_row], moved[came_row]])
        sign = np.full(len(row), -1.0)
        sign[len(row) - len(came_row) :] = 1.0
        code = moves.loss[row] * arcs + np.concatenate([left_arc, halted_arc, came_arc])
        codes, place = ranked(code)
        loss, arc = codes // arcs, codes % arcs
        changes = arc, place, moves.path[row], sign
        load = _sums(rates, standing.uses, changes)
        load[losses.takes(loss, arc)] = 0.0
        qps = _sums(standing.qps, standing.uses, changes)
        freed = np.bincount(place, np.where(sign < 0, rates.each[moves.path[row]], 0.0), len(codes))
        return cls(loss, arc, load, qps, freed.astype(np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class Survey:
    """Every single loss of one kind, and what it changes of a plan."""

    standing: Standing
    losses: SingleLosses
    moves: Moves
    cells: Cells

    @property
    def plan(self) -> Plan:
        """The plan."""
        return self.standing.plan

    @classmethod
    def of(cls, standing: Standing, losses: SingleLosses) -> Survey:
        """Of some losses."""
        moves = Moves.of(standing.plan, losses)
        return cls(standing, losses, moves, Cells.of(standing, losses, moves))


def _sums(amounts: Amounts, uses: Uses, changes: tuple[Ints, Ints, Ints, Floats]) -> Floats:
    """What there is in cells.

    ``changes`` are the arc of each cell, then the cell, the path and the sign of each change.
    """
    arc, place, path, sign = changes
    if not (amounts.phase != ANY_PHASE).any():
        base = uses.sums(amounts.each)[arc]
        return np.asarray(base + amounts.total(place, path, sign, len(arc)))
    stood, by = uses.on(arc)
    every = np.concatenate([stood, place]), np.concatenate([by, path])
    return amounts.total(*every, np.concatenate([np.ones(len(by)), sign]), len(arc))


def _apart_from(paths: Paths, others: Paths) -> Paths:
    """The paths without those arcs that the other path of the same row has too."""
    arcs = int(max(paths.arcs.max(initial=0), others.arcs.max(initial=0))) + 1
    owner = paths.owner()
    alone = ~among(
        owner * arcs + paths.arcs, np.sort(others.owner() * arcs + others.arcs, kind="stable")
    )
    first = starts(np.bincount(owner[alone], minlength=len(paths)))
    return replace(paths, first=first, arcs=paths.arcs[alone])


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
    plan, moves, uses = survey.plan, survey.moves, survey.standing.uses
    width, arcs = max(len(plan.paths), 1), 2 * plan.fabric.link_count
    if not len(loss):
        none = np.empty(0, dtype=np.int64)
        return none, none
    begin, end = np.searchsorted(moves.loss, [loss[0], loss[-1] + 1])
    broken = moves.loss[begin:end] * width + moves.path[begin:end]
    place, path = uses.on(arc)
    stays = ~among(loss[place] * width + path, broken)
    looked = np.zeros(len(survey.losses), dtype=np.bool_)
    looked[loss] = True
    moved = looked[moves.loss[begin:end]] & (moves.fate[begin:end] == MOVED)
    moved = begin + np.flatnonzero(moved)
    row, step = _steps(plan.backups, moves.path[moved])
    row = moved[row]
    codes, code = loss * arcs + arc, moves.loss[row] * arcs + step
    at = np.minimum(np.searchsorted(codes, code), len(codes) - 1)
    there = np.flatnonzero(codes[at] == code)
    return (
        np.concatenate([place[stays], at[there]]),
        np.concatenate([path[stays], moves.path[row[there]]]),
    )
