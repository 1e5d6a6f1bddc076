"""Keeping victim flows off the paths of an incast, where that costs nothing.

An over-full link into a NIC delays, by PFC, all flows that share a link with the flows to that NIC.
Two measures separate them. Neither makes a link fuller than the fullest of its tier, nor fills one
beyond line rate:

- Chunks between the same two switches that are alike change places, so that flows of an incast
  use links that other flows of incasts use already. No link carries more or less.
- A victim moves to a path without an incast, where links have room.

Links that are over-full themselves are left alone: there, the place of each flow decides how fast
it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, distinct
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Paths, arc_loads, exposed_paths
from heddle_controller.solve.assignment import Assignment, merged_chunks, with_nics
from heddle_controller.solve.attempt import PlanningProblem, loaded, tier_worst
from heddle_controller.solve.phases import phased_jobs

_TOLERANCE = 1e-9
_ROUNDS = 4
"""Most passes over all groups. Each group follows where the others put their incasts."""
_MOST_GROUPS, _MOST_VICTIMS = 1000, 1000
"""Most groups of places, and most victims, that are looked at. Each takes less than 0.1 ms."""


def with_victims_apart(problem: PlanningProblem, assignment: Assignment) -> Assignment | None:
    """Return the assignment with fewer victims of incasts, or None. QPs are numbered anew."""
    flows, network = problem.flows, problem.network
    into = network.nic_arc[flows.destination]
    asked = np.bincount(flows.destination, flows.gbps, network.fabric.node_count)
    most = asked[flows.destination] * network.per_gbps[into]
    if not ((into != NONE) & (most > 1 + _TOLERANCE)).any() or (flows.job == flows.job[0]).all():
        return None
    inner = merged_chunks(assignment, renumber=True)
    paths = with_nics(network, flows, inner)
    full = arc_loads(network.arc_count, flows, paths) * network.per_gbps[:-1] > 1 + _TOLERANCE

    def victims(inner: Paths) -> Bools:
        return exposed_paths(flows.job, with_nics(network, flows, inner), full)

    before = exposed_paths(flows.job, paths, full)
    if not before.any() or problem.deadline.passed():
        return None
    incast = ((into != NONE) & full[into ^ 1])[inner.flow]
    exchanged = _exchanged(inner, incast, _groups(problem, inner, full, (incast, before)))
    apart = loaded(problem, exchanged)
    _move(problem, apart, incast, np.flatnonzero(victims(exchanged)))
    after = merged_chunks(apart, renumber=True)
    fewer = _flow_count(after, victims(after)) < _flow_count(inner, before)
    return apart if fewer else None


def _flow_count(paths: Paths, marked: Bools) -> int:
    """Return the number of flows with a marked path."""
    return len(distinct(paths.flow[marked]))


def _groups(
    problem: PlanningProblem, inner: Paths, full: Bools, marks: tuple[Bools, Bools]
) -> list[Ints]:
    """Return rows of paths that may change places, by group.

    Each group has at least one path of an incast and one exposed path. ``marks`` marks the paths of
    incasts, and the exposed paths.
    """
    flows, terminal = problem.flows, problem.network.terminal
    over = np.bincount(inner.owner(), full[inner.arcs], minlength=len(inner)) > 0
    turning = np.isin(flows.job, phased_jobs(flows)) & (flows.phase != ANY_PHASE)
    hops = np.diff(inner.first)  # 0 within one leaf
    rows = np.flatnonzero((hops > 0) & ~over & ~turning[inner.flow])
    if not len(rows):
        return []
    flow, qps = inner.flow[rows], inner.qp_count[rows]
    ends = terminal[flows.source[flow]], terminal[flows.destination[flow]]
    alike = hops[rows], qps, (flows.gbps / flows.qps)[flow], *ends
    order = np.lexsort(alike)
    new = np.zeros(len(rows), dtype=np.bool_)
    for column in alike:
        new[1:] |= np.diff(column[order]) != 0
    group = np.cumsum(new)
    counts = [np.bincount(group[mark[rows[order]]], minlength=group[-1] + 1) for mark in marks]
    some = np.split(rows[order], np.flatnonzero(new))
    return [some[number] for number in np.flatnonzero(np.logical_and(*counts)).tolist()]


def _exchanged(inner: Paths, incast: Bools, groups: list[Ints]) -> Paths:
    """Return the paths with places exchanged within groups, so that incasts share links."""
    led = inner.arcs[incast[inner.owner()]]
    fed: Ints = np.bincount(led, minlength=int(inner.arcs.max(initial=0)) + 1)
    some = [_Group.of(inner, incast, rows) for rows in groups[:_MOST_GROUPS]]
    for _ in range(_ROUNDS):
        if not [one for one in some if one.settle(fed)]:
            break
    place = np.arange(len(inner))
    for one in some:
        place[one.rows] = one.rows[one.place]
    moved = inner.take(place)
    return Paths(inner.flow, inner.first_qp, inner.last_qp, inner.first, moved.arcs)


@dataclass(slots=True, eq=False)
class _Group:
    """Chunks that may change places."""

    rows: Ints
    ways: Ints
    """Arcs of each place, shape (rows, hops)."""
    crowd: Ints
    """Greater for places that many others equal. Equal places have equal values."""
    leads: Ints
    """Which of the rows belong to an incast."""
    place: Ints
    """Index in ``ways`` of each row's current place."""

    @classmethod
    def of(cls, inner: Paths, incast: Bools, rows: Ints) -> _Group:
        """Return a group of rows at the places that the paths give them."""
        ways = inner.take(rows).arcs.reshape(len(rows), -1)
        _, kind, count = np.unique(ways, axis=0, return_inverse=True, return_counts=True)
        crowd = count[kind.ravel()] * len(rows) + kind.ravel()
        return cls(rows, ways, crowd, np.flatnonzero(incast[rows]), np.arange(len(rows)))

    def settle(self, fed: Ints) -> bool:
        """Move incasts to places that others pass already, and return whether any moved.

        ``fed`` is the number of incast paths on each arc, and is updated.
        """
        before = self.place[self.leads]
        np.subtract.at(fed, self.ways[before], 1)
        passed = np.count_nonzero(fed[self.ways] > 0, axis=1)
        held = np.zeros(len(self.rows), dtype=np.bool_)
        held[before] = True
        # Places passed most come first, then those with most equals, then the current ones, so that
        # nothing moves in vain.
        best = np.lexsort((~held, -self.crowd, -passed))[: len(before)]
        free = best[~held[best]]
        held[best] = False
        movers, given = self.leads[held[before]], before[held[before]]
        displaced = np.argsort(self.place)[free]
        self.place[movers], self.place[displaced] = free, given
        np.add.at(fed, self.ways[self.place[self.leads]], 1)
        return bool(len(movers))


def _move(problem: PlanningProblem, apart: Assignment, incast: Bools, victims: Ints) -> None:
    """Move victims to paths without an incast, where links have room."""
    network, flows = problem.network, problem.flows
    cap = network.by_tier(np.minimum(tier_worst(network, apart), 1.0) + _TOLERANCE, np.inf)
    fed = np.zeros(network.arc_count + 1, dtype=np.bool_)
    for chunk in np.flatnonzero(incast).tolist():
        fed[apart.path[chunk]] = True
    for chunk in victims[:_MOST_VICTIMS].tolist():
        if not fed[apart.path[chunk]].any():
            continue  # it shares only the link of its NIC
        flow = apart.flow[chunk]
        ends = problem.candidates.ends_of(flows, flow)
        paths = problem.candidates.of_class(*ends, int(flows.traffic_class[flow]))
        paths = paths[~fed[paths].any(axis=1)]
        if not len(paths):
            continue
        used = apart.used_after_move(chunk, apart.qps(chunk), paths)
        room = (used <= cap[paths]).all(axis=1)
        if room.any():
            most = np.where(room, used.max(axis=1), np.inf)
            path = paths[int(most.argmin())]
            apart.move(chunk, path[path != network.pad])
