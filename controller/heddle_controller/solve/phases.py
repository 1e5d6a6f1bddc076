"""Loads of jobs whose phases take turns.

Such a job puts the greatest of its phases' loads on each arc. The table of a job
holds one row a phase and one column for each arc that it has touched; column 0
stands for all others and stays zero.

Copies that share what does not change.
"""

from __future__ import annotations

from copy import copy
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.flows import ANY_PHASE, Flows

_T = TypeVar("_T")


def copied(one: _T, *own: str, **others: Any) -> _T:  # noqa: ANN401 - attributes are of any type
    """A copy that shares all attributes, but for those named.

    Args:
        one: What is copied.
        own: Attributes of which it has a copy of its own, as their method ``copy`` makes it.
        others: Attributes that are something else in the copy.
    """
    other = copy(one)
    for name in own:
        setattr(other, name, getattr(one, name).copy())
    for name, value in others.items():
        setattr(other, name, value)
    return other


class PhaseTable:
    """Load of each phase of one job on each arc it uses."""

    def __init__(self, phases: Ints, arcs: int) -> None:
        """``arcs`` are so many, padding included."""
        self._row = {int(phase): row for row, phase in enumerate(phases)}
        self._column: npt.NDArray[np.int32] = np.zeros(arcs, dtype=np.int32)
        """Of each arc; memory is taken where a column is noted."""
        self._known = 1
        self._load: Floats = np.zeros((len(phases), 16))
        self._worst: Floats = np.zeros(16)

    def copy(self) -> PhaseTable:
        """Another with the same loads, changed apart from this one."""
        return copied(self, "_column", "_load", "_worst")

    def load(self, arcs: Ints, phases: Ints, gbps: Floats, total: Floats) -> None:
        """Takes in many uses at once and adds what they amount to to ``total``."""
        if not len(arcs):
            return
        columns = self._columns(arcs, make=True)
        rows = np.array([self._row[phase] for phase in phases.tolist()], dtype=np.int64)
        before = self._worst.copy()
        np.add.at(self._load, (rows, columns), gbps)
        self._worst = self._load.max(axis=0)
        grown = self._worst - before
        used = np.unique(arcs)
        total[used] += grown[self._columns(used, make=False)]

    def increase(self, arcs: Ints, phase: int, gbps: float) -> Floats:
        """What each arc's load would grow by if the phase grew by ``gbps`` there."""
        columns = self._columns(arcs, make=False)
        worst = self._worst[columns]
        own = self._load[self._row[phase]][columns]
        grown: Floats = np.maximum(worst, own + gbps) - worst
        return grown

    def decrease(self, arcs: Ints, phase: int, gbps: float) -> Floats:
        """What each arc's load would fall by if the phase fell by ``gbps`` there."""
        columns = self._columns(arcs, make=False)
        loads = self._load.take(columns, axis=1)
        loads[self._row[phase]] -= gbps
        fallen: Floats = self._worst[columns] - np.maximum.reduce(loads)
        return fallen

    def change(self, arcs: Ints, phase: int, gbps: float) -> Floats:
        """Changes the phase's load on arcs and returns what the arcs' loads change by."""
        columns = self._columns(arcs, make=True)
        before = self._worst[columns]
        own = self._load[self._row[phase]]  # a view: its changes are the table's
        own[columns] += gbps
        after = np.maximum.reduce(self._load.take(columns, axis=1))
        self._worst[columns] = after
        change: Floats = after - before
        return change

    def _columns(self, arcs: Ints, *, make: bool) -> npt.NDArray[np.int32]:
        columns = self._column[arcs]
        if make and np.count_nonzero(columns) < columns.size:
            fresh = np.unique(arcs[columns == 0])
            self._column[fresh] = np.arange(self._known, self._known + len(fresh))
            self._known += len(fresh)
            self._grow(self._known)
            columns = self._column[arcs]
        return columns

    def _grow(self, size: int) -> None:
        room = len(self._worst)
        if size <= room:
            return
        more = max(size, 2 * room) - room
        self._worst = np.concatenate([self._worst, np.zeros(more)])
        self._load = np.concatenate([self._load, np.zeros((len(self._load), more))], axis=1)


def loads_of_job(count: int, places: Ints, gbps: Floats, phase: Ints) -> Floats:
    """What flows of one job amount to in each of some places: the greatest of its phases.

    ``places``, ``gbps`` and ``phase`` are parallel, an element a use of a place.
    """
    first, last = int(phase.min(initial=0)), int(phase.max(initial=0))
    if first == last:
        return np.bincount(places, gbps, count).astype(np.float64, copy=False)
    rows = last - first + 1
    sums = np.bincount((phase - first) * count + places, gbps, rows * count).reshape(rows, count)
    if first == ANY_PHASE:  # these add up with whatever else there is
        return np.asarray(sums[0] + sums[1:].max(axis=0))
    return np.asarray(sums.max(axis=0))


def phase_tables(flows: Flows, arcs: int) -> dict[int, PhaseTable]:
    """An empty table for each job that has flows in more than one phase, by job row.

    ``arcs`` are so many, padding included.
    """
    jobs, phases = _job_phases(flows)
    first = np.flatnonzero(np.diff(jobs, prepend=-1))
    return {
        int(jobs[low]): PhaseTable(phases[low:high], arcs)
        for low, high in pairwise([*first.tolist(), len(jobs)])
        if high - low > 1
    }


def only_appended(known: int, flows: Flows) -> bool:
    """Whether flows from row ``known`` on leave the table of each earlier job as it is.

    So it is where their jobs have no flows before them, or no more than one phase.
    """
    jobs = np.unique(flows.job[known:])
    earlier = np.intersect1d(jobs, flows.job[:known])
    return not len(earlier) or not np.isin(earlier, phased_jobs(flows)).any()


def phased_jobs(flows: Flows) -> Ints:
    """Rows of the jobs that have flows in more than one phase."""
    jobs, count = np.unique(_job_phases(flows)[0], return_counts=True)
    return jobs[count > 1]


def _job_phases(flows: Flows) -> Ints:
    """The pairs of job and phase that there are, shape (2, pairs)."""
    phased, phases = flows.phase != ANY_PHASE, int(flows.phase.max(initial=0)) + 1
    codes = np.unique(flows.job[phased] * phases + flows.phase[phased])
    return np.stack([codes // phases, codes % phases])
