"""Loads of jobs whose phases take turns, and copies that share what does not change.

Such a job puts the greatest of its phases' loads on each arc. The table of a job has one row for
each phase and one column for each arc that the job has touched. Column 0 stands for all other arcs
and stays zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from heddle_controller.model.arrays import NONE, Floats, Ints, distinct, stable_order
from heddle_controller.model.flows import ANY_PHASE, Flows
from heddle_controller.model.plan import Paths

_T = TypeVar("_T")


def copied(one: _T, *own: str, **others: Any) -> _T:  # noqa: ANN401 - attributes are of any type
    """Return a shallow copy, with some attributes copied or replaced.

    Args:
        one: The object to copy.
        own: Names of attributes that are copied as well, by their method ``copy``.
        others: Attributes that have other values in the copy.
    """
    other = copy(one)
    for name in own:
        setattr(other, name, getattr(one, name).copy())
    for name, value in others.items():
        setattr(other, name, value)
    return other


class PhaseTable:
    """Load of each phase of one job on each arc that it uses.

    There may be several *layers* of loads. Then an array that a method takes or returns has a first
    axis of layers, and so has ``gbps`` where it is not one number.
    """

    def __init__(self, phases: Ints, arcs: int, layers: tuple[int, ...] = ()) -> None:
        """Make an empty table.

        Args:
            phases: Phases of the job, ascending.
            arcs: Number of arcs, padding included.
            layers: Number of layers; empty for a table without them.
        """
        self._phases = phases
        self._row = {int(phase): row for row, phase in enumerate(phases)}
        self._column: npt.NDArray[np.int32] = np.zeros(arcs, dtype=np.int32)
        """Column of each arc; 0 for arcs that are not used yet. Memory is taken only where columns
        are set."""
        self._known = 1
        self._load: Floats = np.zeros((*layers, len(phases), 16))
        self._worst: Floats = np.zeros((*layers, 16))

    def copy(self) -> PhaseTable:
        """Return another table with the same loads. Each can be changed without the other."""
        return copied(self, "_column", "_load", "_worst")

    def renumbered(self, now: Ints) -> PhaseTable:
        """Return a table with other numbers of phases, which shares the loads where it can.

        ``now`` has the new number of each phase. Change only one of the two tables.
        """
        phases = now[self._phases]
        order = np.argsort(phases)
        row = {int(phase): place for place, phase in enumerate(phases[order])}
        load = self._load if (np.diff(order) == 1).all() else self._load[..., order, :]
        return copied(self, _phases=phases[order], _row=row, _load=load)

    def load(self, arcs: Ints, phases: Ints, gbps: Floats, total: Floats) -> None:
        """Add many uses of arcs at once, and add the growth of each arc's load to ``total``."""
        if not len(arcs):
            return
        columns = self._columns(arcs, make=True)
        rows = np.searchsorted(self._phases, phases)
        before = self._worst.copy()
        layers = self._load.reshape(-1, *self._load.shape[-2:])
        for layer, each in zip(layers, np.atleast_2d(gbps), strict=True):
            np.add.at(layer, (rows, columns), each)
        self._worst = self._load.max(axis=-2)
        grown = self._worst - before
        used = distinct(arcs)
        total[..., used] += grown[..., self._columns(used, make=False)]

    def increase(self, arcs: Ints, phase: int, gbps: float | Floats) -> Floats:
        """Return by how much each arc's load would grow if the phase grew by ``gbps`` there."""
        columns = self._columns(arcs, make=False)
        worst = self._worst.take(columns, axis=-1)
        own = self._load[..., self._row[phase], :].take(columns, axis=-1)
        grown: Floats = np.maximum(worst, own + gbps) - worst
        return grown

    def decrease(self, arcs: Ints, phase: int, gbps: float) -> Floats:
        """Return by how much each arc's load would fall if the phase fell by ``gbps`` there.

        The table must be one without layers.
        """
        columns = self._columns(arcs, make=False)
        loads = self._load.take(columns, axis=1)
        loads[self._row[phase]] -= gbps
        fallen: Floats = self._worst[columns] - np.maximum.reduce(loads)
        return fallen

    def change(self, arcs: Ints, phase: int, gbps: float | Floats) -> Floats:
        """Change the phase's load on arcs, and return by how much the loads of the arcs change."""
        columns = self._columns(arcs, make=True)
        before = self._worst.take(columns, axis=-1)
        own = self._load[..., self._row[phase], :]  # a view: its changes are the table's
        own[..., columns] += gbps
        after = np.maximum.reduce(self._load.take(columns, axis=-1), axis=-2)
        self._worst[..., columns] = after
        change: Floats = after - before
        return change

    def _columns(self, arcs: Ints, *, make: bool) -> npt.NDArray[np.int32]:
        columns = self._column[arcs]
        if make and np.count_nonzero(columns) < columns.size:
            fresh = distinct(arcs[columns == 0])
            self._column[fresh] = np.arange(self._known, self._known + len(fresh))
            self._known += len(fresh)
            self._grow(self._known)
            columns = self._column[arcs]
        return columns

    def _grow(self, size: int) -> None:
        room = self._worst.shape[-1]
        if size <= room:
            return
        more = max(size, 2 * room) - room
        self._worst = np.concatenate([self._worst, np.zeros((*self._worst.shape[:-1], more))], -1)
        self._load = np.concatenate([self._load, np.zeros((*self._load.shape[:-1], more))], -1)


def loads_of_job(count: int, places: Ints, gbps: Floats, phase: Ints) -> Floats:
    """Return the load of one job's flows in each of ``count`` places: the greatest of its phases.

    ``places``, ``gbps`` and ``phase`` are parallel, with one element for each use of a place.
    """
    first, last = int(phase.min(initial=0)), int(phase.max(initial=0))
    if first == last:
        return np.bincount(places, gbps, count).astype(np.float64, copy=False)
    rows = last - first + 1
    sums = np.bincount((phase - first) * count + places, gbps, rows * count).reshape(rows, count)
    if first == ANY_PHASE:  # flows without a phase add to the worst phase
        return np.asarray(sums[0] + sums[1:].max(axis=0))
    return np.asarray(sums.max(axis=0))


def phase_tables(flows: Flows, arcs: int, layers: tuple[int, ...] = ()) -> dict[int, PhaseTable]:
    """Return an empty table for each job that has flows in more than one phase, by job row.

    ``arcs`` and ``layers`` are those of ``PhaseTable``.
    """
    jobs, phases = _job_phases(flows)
    first = np.flatnonzero(np.diff(jobs, prepend=-1))
    return {
        int(jobs[low]): PhaseTable(phases[low:high], arcs, layers)
        for low, high in pairwise([*first.tolist(), len(jobs)])
        if high - low > 1
    }


def add_loads(
    flows: Flows,
    paths: Paths,
    gbps: Floats,
    total: Floats,
    tables: tuple[Mapping[int, PhaseTable], Callable[[int], PhaseTable]],
) -> None:
    """Add the load of many paths at once to the tables of their jobs and to ``total``.

    Args:
        flows: The flows.
        paths: The paths.
        gbps: Rate of each use of an arc, parallel to ``paths.arcs``. If tables have layers, this
            and ``total`` have a first axis of layers.
        total: Gbit/s on each arc and the padding, changed in place.
        tables: The table of each job that has one, and what returns such a table for changes.
    """
    flow, arcs, owner = paths.flow, paths.arcs, paths.owner()
    known, table_of = tables
    linear = np.ones(len(flow), dtype=np.bool_)
    if known:
        linear = ~np.isin(flows.job[flow], list(known)) | (flows.phase[flow] == ANY_PHASE)
    keep = linear[owner]
    used = arcs[keep]
    for layer, each in zip(np.atleast_2d(total), np.atleast_2d(gbps), strict=True):
        np.add.at(layer, used, each[keep])
    rest = np.flatnonzero(~keep)
    rest = rest[stable_order(flows.job[flow[owner[rest]]])]
    used = flow[owner[rest]]
    first = np.flatnonzero(np.diff(flows.job[used], prepend=NONE))
    for low, high in pairwise([*first.tolist(), len(rest)]):
        rows, phases = rest[low:high], flows.phase[used[low:high]]
        table_of(int(flows.job[used[low]])).load(arcs[rows], phases, gbps[..., rows], total)


def only_appended(known: int, flows: Flows) -> bool:
    """Return whether flows from row ``known`` on leave the tables of earlier jobs as they are.

    That is so if their jobs have no earlier flows, or have no more than one phase.
    """
    jobs = distinct(flows.job[known:])
    earlier = np.intersect1d(jobs, flows.job[:known])
    return not len(earlier) or not np.isin(earlier, phased_jobs(flows)).any()


def phased_jobs(flows: Flows) -> Ints:
    """Return the rows of the jobs that have flows in more than one phase."""
    jobs, count = np.unique(_job_phases(flows)[0], return_counts=True)
    return jobs[count > 1]


def _job_phases(flows: Flows) -> Ints:
    """Return the pairs of job and phase that occur, shape (2, pairs)."""
    phased, phases = flows.phase != ANY_PHASE, int(flows.phase.max(initial=0)) + 1
    codes = distinct(flows.job[phased] * phases + flows.phase[phased])
    return np.stack([codes // phases, codes % phases])
