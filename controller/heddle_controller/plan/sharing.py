"""Gives the jobs of a plan turns in time, from what an iteration of each puts on links.

A job computes, and then its phases follow one another. Each phase takes as long as its slowest flow
or its fullest link would without other traffic. Some flows send at unknown times, because their job
has no iteration or a flow of it has no bytes, phase or path. What they ask for counts as used at
all times. A job that finds too little left on a link is then treated in the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints, distinct
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.job import Iteration
from heddle_controller.model.plan import Plan, Turn, arc_loads, utilization
from heddle_controller.traffic.turns import STEPS, Cycle, turns_of

_EVEN = 1e-9
_FEW = 2
"""Fewest jobs that can share a link."""
MOST_JOBS = 32
"""Largest group of jobs that share links, directly or through others, to be given turns.

A larger group has too many links to look at.
"""


def turns_in(plan: Plan, iterations: Iterable[Iteration]) -> tuple[Turn, ...]:
    """Return the turns of those jobs of a plan that gain by them, sorted by job name.

    The time taken depends on the uses of links by jobs with iterations, and on how many jobs share
    links. If no link is overloaded, nothing is done.

    Args:
        plan: The plan.
        iterations: At most one for each job. Jobs without flows in the plan are ignored.
    """
    used = utilization(plan.fabric, plan.loads)
    told = {one.job: one for one in iterations}
    if len(told) < _FEW or not (used > 1 + _EVEN).any():
        return ()
    bursts = _bursts(plan, told)
    known, left = _known(plan, bursts)
    found: list[Turn] = []
    for jobs, arcs in _meeting(bursts, known, left):
        links = _distinct(bursts.used[:, arcs] / left[arcs], np.isin(bursts.job, jobs))
        cycles = [_cycle(bursts, job, told, links) for job in jobs.tolist()]
        found += turns_of(cycles).values()
    return tuple(sorted(found, key=lambda turn: turn.job))


@dataclass(frozen=True, slots=True, eq=False)
class _Bursts:
    """Bursts: the phases of jobs with iterations, in order of job and phase."""

    names: tuple[str, ...]
    """Names of these jobs."""
    rows: Ints
    """Index of each of these jobs in the plan's ``job_names``."""
    job: Ints
    """Index into ``names`` of each burst."""
    seconds: Floats
    """How long each burst takes without other traffic."""
    arcs: Ints
    """Overloaded arcs that some burst uses, ascending."""
    used: Floats
    """Part of each of these arcs that each burst uses, shape (bursts, arcs)."""
    qps: Floats
    """Mean number of QPs of a flow of each of these jobs."""


def _bursts(plan: Plan, told: dict[str, Iteration]) -> _Bursts:
    flows, paths, capacity = plan.flows, plan.paths, plan.fabric.structure.capacity
    sends = np.isfinite(flows.bytes) & (flows.phase != ANY_PHASE)
    sends[[*plan.unrouted]] = False
    whole = np.bincount(flows.job[~sends], minlength=len(flows.job_names)) == 0
    rows = np.array(
        [row for row, name in enumerate(flows.job_names) if name in told and whole[row]],
        dtype=np.int64,
    )
    mine = np.isin(flows.job, rows)
    width = int(flows.phase.max(initial=0)) + 1
    code, burst_of = np.unique(flows.job[mine] * width + flows.phase[mine], return_inverse=True)
    burst = np.full(len(flows), -1)
    burst[mine] = burst_of
    alone = np.zeros(len(code))
    np.maximum.at(alone, burst_of, flows.bytes[mine] * 8e-9 / flows.gbps[mine])
    owner = paths.owner()
    flow = paths.flow[owner]
    uses = np.flatnonzero(burst[flow] >= 0)
    size = (flows.bytes[paths.flow] * paths.qp_count / flows.qps[paths.flow])[owner[uses]]
    arc, at = paths.arcs[uses], burst[flow[uses]]
    place, cell = np.unique(at * len(capacity) + arc, return_inverse=True)
    busy = np.bincount(cell, size * 8e-9 / capacity[arc])  # seconds, of a burst and an arc
    row, on = place // len(capacity), place % len(capacity)
    np.maximum.at(alone, row, busy)
    full = utilization(plan.fabric, plan.loads)[on] > 1 + _EVEN
    arcs, column = np.unique(on[full], return_inverse=True)
    used = np.zeros((len(code), len(arcs)))
    used[row[full], column] = busy[full] / alone[row[full]]
    names = tuple(flows.job_names[one] for one in rows.tolist())
    own = flows.job[mine]
    qps = np.bincount(own, flows.qps[mine])[rows] / np.bincount(own)[rows]
    return _Bursts(names, rows, np.searchsorted(rows, code // width), alone, arcs, used, qps)


def _known(plan: Plan, bursts: _Bursts) -> tuple[Bools, Floats]:
    """Mark jobs that have enough room beside flows of unknown times; return what these leave.

    The second array is the part of each arc that is left, above 0, shape (arcs,).
    """
    flows, paths = plan.flows, plan.paths
    most = _most(bursts)
    known = np.ones(len(bursts.names), dtype=np.bool_)
    capacity = plan.fabric.structure.capacity
    while True:
        others = ~np.isin(flows.job, bursts.rows[known])
        loads = arc_loads(len(capacity), flows, paths.take(np.flatnonzero(others[paths.flow])))
        left = np.maximum(1 - (loads / capacity)[bursts.arcs], 0)
        held = known & ((most > left + _EVEN) & (left < 1)).any(axis=1)
        if not held.any():
            return known, np.maximum(left, _EVEN)  # no marked job uses an arc with nothing left
        known &= ~held


def _most(bursts: _Bursts) -> Floats:
    """Return the largest part of each arc that a burst of each job uses, shape (jobs, arcs)."""
    most = np.zeros((len(bursts.names), len(bursts.arcs)))
    np.maximum.at(most, bursts.job, bursts.used)
    return most


def _meeting(bursts: _Bursts, known: Bools, left: Floats) -> Iterator[tuple[Ints, Ints]]:
    """Yield groups of jobs that share arcs, directly or through others, and these arcs' columns."""
    most = _most(bursts) * known[:, None]
    shared = np.flatnonzero(
        (np.count_nonzero(most, axis=0) >= _FEW) & (most.sum(axis=0) > left * (1 + _EVEN))
    )
    member = np.arange(len(known))
    for users in np.unique(most[:, shared] > 0, axis=1).T:
        together = distinct(member[users])
        member[np.isin(member, together)] = together[0]
    for one in distinct(member).tolist():
        jobs = np.flatnonzero(member == one)
        if _FEW <= len(jobs) <= MOST_JOBS:
            yield jobs, shared[most[jobs][:, shared].any(axis=0)]


def _distinct(used: Floats, some: Bools) -> Floats:
    """Drop arcs of which every burst uses at most as much as of another arc.

    Bursts that fit on that arc also fit on the dropped one. The result has shape (bursts, arcs).
    """
    told = np.unique(np.where(some[:, None], used, 0).round(6), axis=1)
    order = np.argsort(-told.sum(axis=0), kind="stable")
    kept: list[Floats] = []
    for column in told.T[order]:
        if not any((column <= other).all() for other in kept):
            kept.append(column)
    return np.stack(kept, axis=1)


def _cycle(bursts: _Bursts, job: int, told: dict[str, Iteration], used: Floats) -> Cycle:
    """Return one iteration of a job, as what it uses of some links over time."""
    name, own = bursts.names[job], bursts.job == job
    one, seconds = told[name], bursts.seconds[own]
    if one.network_seconds:
        seconds = seconds * (one.network_seconds / seconds.sum())
    edges = one.compute_seconds + np.concatenate([[0.0], np.cumsum(seconds)])
    length = float(edges[-1])
    steps = np.linspace(0, length, STEPS + 1)
    ends = np.minimum(edges[1:, None], steps[None, 1:])
    begins = np.maximum(edges[:-1, None], steps[None, :-1])
    within = np.maximum(ends - begins, 0) * (STEPS / length)
    return Cycle(name, length, used[own].T @ within, float(bursts.qps[job]))
