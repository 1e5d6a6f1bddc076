"""Which paths and backups use which arcs of a plan, before and after single losses.

Nothing is computed for all losses. Callers name the arcs and losses that they ask about, and the
answer takes time in proportion to these.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, distinct, starts
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.solve.losses.moves import (
    APART,
    MOVED,
    STRANDED,
    UNTOUCHED,
    SingleLosses,
    joined,
)


@dataclass(frozen=True, slots=True, eq=False)
class Uses:
    """Uses of some arcs by paths, ordered by arc and path."""

    arcs: Ints
    """The arcs, ascending."""
    first: Ints
    """Where the uses of each arc begin, shape (arcs + 1,)."""
    path: Ints
    """Path of each use."""

    def place(self) -> Ints:
        """Return the index in ``arcs`` of each use."""
        return np.repeat(np.arange(len(self.arcs), dtype=np.int64), np.diff(self.first))

    def on(self, arc: Ints) -> tuple[Ints, Ints]:
        """Return the uses of some arcs as pairs: index in ``arc``, and path. Arcs may repeat."""
        return joined(self.first, self.path, np.searchsorted(self.arcs, arc))


class Users:
    """The flows that have a path on each arc, kept from plan to plan.

    Flows are kept, not paths, since rows of paths change when flows are split and rows of flows do
    not. The new list of a changed arc is appended. The old list stays behind until the array is
    full and is compacted.
    """

    def __init__(self, arcs: int) -> None:
        self._begin: Ints = np.zeros(arcs, dtype=np.int64)
        self._count: Ints = np.zeros(arcs, dtype=np.int64)
        self._flow: Ints = np.empty(0, dtype=np.int64)
        self._end = 0

    def of(self, arcs: Ints) -> tuple[Ints, Ints]:
        """Return the flows on some arcs as pairs: index in ``arcs``, and flow; ordered by both."""
        count = self._count[arcs]
        place = np.repeat(np.arange(len(arcs), dtype=np.int64), count)
        shift = self._begin[arcs] - np.cumsum(count) + count
        return place, self._flow[np.arange(len(place)) + shift[place]]

    def change(self, arcs: Ints, changed: Bools, paths: Paths) -> None:
        """Update the users of arcs after some flows got other paths.

        Args:
            arcs: All arcs that any of these flows used or uses, ascending.
            changed: Marks these flows, shape (flows,).
            paths: Their new paths.
        """
        place, flow = self.of(arcs)
        stays, width = ~changed[flow], len(changed)
        now = numbers(arcs, len(self._count))[paths.arcs] * width + paths.flow[paths.owner()]
        code = distinct(np.append(place[stays] * width + flow[stays], now))
        count = np.bincount(code // max(width, 1), minlength=len(arcs))
        self._count[arcs] = 0
        if self._end + len(code) > len(self._flow):
            every = self.of(np.arange(len(self._count)))[1]
            self._flow = np.empty(2 * (len(every) + len(code)), dtype=np.int64)
            self._flow[: len(every)], self._end = every, len(every)
            self._begin = np.cumsum(self._count) - self._count
        self._begin[arcs], self._count[arcs] = self._end + np.cumsum(count) - count, count
        self._flow[self._end : self._end + len(code)] = code % max(width, 1)
        self._end += len(code)


@dataclass(frozen=True, eq=False)
class Standing:
    """A plan with its users of arcs, and the paths that agents can move to their backup."""

    plan: Plan
    turns: Bools
    """Marks paths whose backup has an entry in some switch, shape (paths,)."""

    of_paths: Users
    """Flows by the arcs of their paths."""
    of_backups: Users
    """Flows by the arcs of backups that have an entry."""

    @cached_property
    def takes_turns(self) -> bool:
        """Whether any flow has a phase."""
        return bool((self.plan.flows.phase != ANY_PHASE).any())

    @cached_property
    def first(self) -> Ints:
        """Where the paths of each flow begin, shape (flows + 1,)."""
        return starts(np.bincount(self.plan.paths.flow, minlength=len(self.plan.flows)))

    def rows(self, flow: Ints) -> tuple[Ints, Ints]:
        """Return all paths of some flows as pairs: index in ``flow``, and path."""
        count = self.first[flow + 1] - self.first[flow]
        place = np.repeat(np.arange(len(flow), dtype=np.int64), count)
        shift = self.first[flow] - np.cumsum(count) + count
        return place, np.arange(len(place)) + shift[place]

    def uses(self, arcs: Ints) -> Uses:
        """Return the uses of arcs by paths; ``arcs`` is ascending."""
        return self._uses(self.of_paths, self.plan.paths, arcs)

    def spares(self, arcs: Ints) -> Uses:
        """Return the uses of arcs by backups that have an entry; ``arcs`` is ascending."""
        return self._uses(self.of_backups, self.plan.backups, arcs)

    def _uses(self, users: Users, paths: Paths, arcs: Ints) -> Uses:
        place, flow = users.of(arcs)
        of, path = self.rows(flow)
        if len(of) > len(flow):  # not every path of a flow uses the arc
            some = paths.take(path)
            hit = np.zeros(len(path), dtype=np.bool_)
            owner = some.owner()
            hit[owner[some.arcs == arcs[place[of[owner]]]]] = True
            if paths is self.plan.backups:
                hit &= self.turns[path]
            of, path = of[hit], path[hit]
        place = place[of]
        return Uses(arcs, starts(np.bincount(place, minlength=len(arcs))), path)

    def gbps(self, path: Ints) -> Floats:
        """Return the rate of some paths in Gbit/s."""
        return self.plan.paths.gbps(self.plan.flows, path)

    def qps(self, path: Ints) -> Floats:
        """Return the number of QPs of some paths, as floats."""
        paths = self.plan.paths
        return (paths.last_qp[path] - paths.first_qp[path] + 1).astype(np.float64)

    def unit(self, path: Ints) -> Floats:
        """Return the Gbit/s that one QP of each path asks for."""
        flows, flow = self.plan.flows, self.plan.paths.flow[path]
        return np.asarray(flows.gbps[flow] / flows.qps[flow])

    def total(self, value: Floats, place: Ints, path: Ints, count: int) -> Floats:
        """Add up values of paths in each place, as loads add up: a job's largest phase counts.

        Args:
            value: A value for each use.
            place: Place of each use, 0 to ``count - 1``.
            path: Path of each use.
            count: Number of places.
        """
        if not self.takes_turns:
            return np.bincount(place, value, count).astype(np.float64, copy=False)
        flows, flow = self.plan.flows, self.plan.paths.flow[path]
        phase = flows.phase[flow]
        found = np.bincount(place, np.where(phase == ANY_PHASE, value, 0.0), count)
        rest = np.flatnonzero(phase != ANY_PHASE)
        jobs, phases = max(len(flows.job_names), 1), max(len(flows.phase_names), 1)
        share, of_share = np.unique(place[rest] * jobs + flows.job[flow[rest]], return_inverse=True)
        slot, of_slot = np.unique(of_share * phases + phase[rest], return_inverse=True)
        most = np.zeros(len(share))
        np.maximum.at(most, slot // phases, np.bincount(of_slot, value[rest], len(slot)))
        return np.asarray(found + np.bincount(share // jobs, most, count))

    def fates(self, losses: SingleLosses, loss: Ints, path: Ints) -> Ints:
        """Return the fate of each path after the loss in the same position.

        It is ``UNTOUCHED``, ``MOVED``, ``STRANDED`` or ``APART``.
        """
        plan = self.plan
        fate = np.full(len(path), UNTOUCHED)
        rows = np.flatnonzero(losses.breaks(loss, plan.paths.take(path)))
        held = self.turns[path[rows]]
        held &= ~losses.breaks(loss[rows], plan.backups.take(path[rows]))
        fate[rows] = np.where(held, MOVED, STRANDED)
        rows = rows[~held]
        fate[rows[losses.cuts_off(loss[rows], plan.paths.take(path[rows]))]] = APART
        return fate

    def members(self, losses: SingleLosses, loss: Ints, arc: Ints) -> tuple[Ints, Ints]:
        """Return who uses each arc after the loss in the same position, moved paths included.

        The results are pairs: index in ``arc``, and path.
        """
        plan, arcs = self.plan, distinct(arc)
        place, path = self.uses(arcs).on(arc)
        stays = ~losses.breaks(loss[place], plan.paths.take(path))
        spare, turned = self.spares(arcs).on(arc)
        comes = losses.breaks(loss[spare], plan.paths.take(turned))
        spare, turned = spare[comes], turned[comes]
        comes = ~losses.breaks(loss[spare], plan.backups.take(turned))
        return (
            np.concatenate([place[stays], spare[comes]]),
            np.concatenate([path[stays], turned[comes]]),
        )

    def broken(self, losses: SingleLosses, loss: Ints) -> tuple[Ints, Ints]:
        """Return the paths that losses break, as pairs: index in ``loss``, and path; by both."""
        place, arc = losses.arcs_of(loss)
        at, path = self.uses(distinct(arc)).on(arc)
        width = max(len(self.plan.paths), 1)
        code = distinct(place[at] * width + path)
        return code // width, code % width


@dataclass(frozen=True, slots=True, eq=False)
class Turned:
    """Turns: moves of paths to their backups that put load on some arcs they did not use."""

    place: Ints
    """Index of the arc of each turn."""
    path: Ints
    """Path of each turn."""
    _row: Ints
    """Row of each turn's path in both tables."""
    _ways: Ints
    """Arcs of the paths, padded."""
    _spares: Ints
    """Arcs of their backups, padded."""

    @classmethod
    def on(cls, standing: Standing, spares: Uses) -> Turned:
        """Return the turns on to some arcs, given ``Standing.spares`` of these arcs."""
        plan, place, path = standing.plan, spares.place(), spares.path
        met = np.zeros(len(plan.paths), dtype=np.bool_)
        met[path] = True
        rows = np.flatnonzero(met)
        ways, others = (arc_table(paths.take(rows)) for paths in (plan.paths, plan.backups))
        row = numbers(rows, len(met))[path]
        news = ~(ways[row] == spares.arcs[place][:, None]).any(axis=1)
        return cls(place[news], path[news], row[news], ways, others)

    def after(self, losses: SingleLosses) -> tuple[Ints, Ints]:
        """Return pairs of a turn and a loss that causes it."""
        loss, also = losses.on(self._ways), losses.on(self._spares)
        of_turn = np.where(shared(loss, also), NONE, loss)[:, self._row]
        kind, turn, step = np.nonzero(of_turn != NONE)
        return turn, of_turn[kind, turn, step]


def shared(losses: Ints, others: Ints) -> Bools:
    """Mark losses that also occur in the same kind and row of ``others``.

    Both arrays are results of ``SingleLosses.on``, shape (kinds, rows, steps).
    """
    both = np.zeros(losses.shape, dtype=np.bool_)
    for step in range(others.shape[2]):
        both |= losses == others[:, :, step, None]
    return both


def numbers(rows: Ints, count: int) -> Ints:
    """Return the index of each row in ``rows``, by row, shape (count,); undefined for others."""
    found = np.empty(count, dtype=np.int64)
    found[rows] = np.arange(len(rows))
    return found


def arc_table(paths: Paths) -> Ints:
    """Return the arcs of each path as one row of a table, padded with ``NONE``."""
    lengths = np.diff(paths.first)
    table = np.full((len(paths), max(int(lengths.max(initial=0)), 1)), NONE, dtype=np.int64)
    table[np.arange(table.shape[1]) < lengths[:, None]] = paths.arcs
    return table
