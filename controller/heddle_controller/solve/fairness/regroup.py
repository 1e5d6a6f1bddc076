"""Places the QPs of crowded arcs again, so that large ones share arcs with few others.

A link gives equal shares to the QPs on it. So a QP that asks for much gets a smaller part of that
from a link with many small QPs than from one with a few large ones, even if both links are equally
full. Exchanges of two equal QPs cannot mend this: several small ones have to make room for a large
one. So the QPs of two arcs are taken off and put back one by one, the largest first, each where it
adds least to the stretches of all (ruin and recreate: Schrimpf et al., Journal of Computational
Physics 159, 2000). The stretch of a QP on an arc is what it asks for over what the arc could give
it (``clipped_loads``). Stretches count with a high power, so that the greatest matter most. In some
trials one of the two arcs is filled first: large QPs gain from being together only once the small
ones are elsewhere. If the sum of stretches does not fall, the QPs stay where they were.

No arc becomes fuller than the fullest of its tier was. Effort is counted in chunks put back, and
random numbers come from a fixed seed, so that equal input gives equal output.

What an arc could give each QP, if all QPs on it sent what they ask for, is the rate at which its
*clipped load* is equal to its capacity: its load if no QP sent more than that rate. Clipped loads
are kept for several rates at once. They also tell how many QPs ask for more than each rate. If QPs
ask for many different rates, a few of these stand for all. Loads are exact at these rates, and
taken as linear in between. So where another phase of a job is the heaviest from some rate in
between, they are a little too high there, and the arc seems to give a little less.
"""

from __future__ import annotations

import random
from collections.abc import Iterable

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints, distinct, distinct_floats
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.solve.assignment import Assignment, merged_chunks
from heddle_controller.solve.phases import PhaseTable, add_loads, phase_tables
from heddle_controller.solve.search.search import Search

_TOLERANCE = 1e-9
_SAME = 1e-6
"""Relative difference up to which rates count as one, the greater of the two."""
MOST_RATES = 8
"""Most rates at which loads are kept."""


class ClippedLoads:
    """Loads of an assignment's arcs at a few rates. It does not follow the assignment's changes."""

    def __init__(self, assignment: Assignment) -> None:
        network, flows = assignment.network, assignment.flows
        paths = merged_chunks(assignment, renumber=False)
        arcs = network.arc_count + 1
        self._unit = assignment.unit
        self._job, self._phase = flows.job.tolist(), flows.phase.tolist()
        self._capacity = np.append(network.fabric.structure.capacity, np.inf)
        rates = distinct_floats(np.sort(self._unit[paths.flow]))
        rates = rates[np.append(np.diff(rates) > rates[1:] * _SAME, True)[: len(rates)]]
        if len(rates) > MOST_RATES:
            rates = rates[np.linspace(0, len(rates) - 1, MOST_RATES).astype(np.int64)]
        self.rates: Floats = np.append(0.0, rates)
        """Rates in Gbit/s of one QP, ascending, shape (rates,). The first is 0, the last is the
        greatest that any QP asks for."""
        rates = self.rates
        self._step = np.diff(rates)[:, None]
        self.load: Floats = np.zeros((len(rates), arcs))
        """Gbit/s on each arc and the padding at each rate, shape (rates, arcs + 1)."""
        self._tables = phase_tables(flows, arcs, (len(rates),))
        sent: Floats = np.minimum(self._unit[paths.flow], rates[:, None]) * paths.qp_count
        tables = self._tables, self._tables.__getitem__
        add_loads(flows, paths, sent[:, paths.owner()], self.load, tables)

    def add(self, flow: int, qps: int, path: Ints) -> None:
        """Add QPs of a flow to a path; a negative number removes them."""
        gbps, table = self._gbps(flow, qps), self._table(flow)
        if table is not None:
            gbps = table.change(path, self._phase[flow], gbps)
        self.load[:, path] += gbps

    def with_more(self, flow: int, qps: int, arcs: Ints) -> Floats:
        """Return the loads of arcs if they carried more QPs of a flow, shape (rates, arcs)."""
        gbps, table = self._gbps(flow, qps), self._table(flow)
        if table is not None:
            gbps = table.increase(arcs, self._phase[flow], gbps)
        loads: Floats = self.load.take(arcs, axis=1) + gbps
        return loads

    def stretches(self, load: Floats, arcs: Ints) -> tuple[Floats, Floats]:
        """Return how many QPs of each arc ask for each rate, and how far these are stretched.

        The stretch of a QP is what it asks for over what the arc could give it if all its QPs sent
        what they ask for, or 0 if that is no less.

        Args:
            load: Loads of the arcs, shape (rates, arcs).
            arcs: The arcs. Each may be there several times.

        Returns:
            QPs and their stretch at each rate but the first, shape (rates - 1, arcs).
        """
        room = self._capacity.take(arcs)
        over = load[1:] > room * (1 + _TOLERANCE)
        below, column = over.argmax(axis=0), np.arange(len(arcs))
        asking = (load[1:] - load[:-1]) / self._step
        rising = asking[below, column]
        rising[rising <= 0] = 1.0
        level = self.rates.take(below) + (room - load[below, column]) / rising
        level[~over[-1]] = np.inf
        stretch = np.where(over, self.rates[1:, None] / level, 0.0)
        asking[:-1] -= asking[1:]
        return np.maximum(asking, 0.0), stretch

    def _gbps(self, flow: int, qps: int) -> Floats:
        gbps: Floats = (np.minimum(self._unit[flow], self.rates) * qps)[:, None]
        return gbps

    def _table(self, flow: int) -> PhaseTable | None:
        return None if self._phase[flow] == ANY_PHASE else self._tables.get(self._job[flow])


_SQUARED = 3
"""How often stretches are squared: they count to the power of 8. The higher the power is, the less
all but the greatest count."""
_EFFORT = 10_000
"""Most chunks that are put back in all."""
_EFFORT_EACH = 15
"""Most chunks that are put back for each chunk of the plan."""
_PATIENCE = 150
"""Trials in a row without gain after which the search ends."""
_TIRED = 3.0
"""Failures in a row at an arc that make it half as urgent."""
_MOST_TAKEN = 70
"""Most chunks that are taken off at a time."""
_FILLING = 0.4
"""Part of the trials in which one of the two arcs is filled first."""
_DRAWN = 24
"""Paths drawn for a chunk, besides those over the two arcs, where there are more than twice as
many."""
_WORTH = 1.01
"""Factor by which the greatest stretch must exceed the greatest utilisation, and by which stretches
on an arc must differ. If they do less, QPs already get the same part of what they ask for."""


def regroup(search: Search) -> bool:
    """Place the QPs of crowded arcs of a search's assignment again; return whether any moved."""
    return _Regrouping(search).run()


class _Regrouping:
    """The search. It changes an assignment in place."""

    def __init__(self, search: Search) -> None:
        self._assignment, self._chains = search.assignment, search.chains
        network = self._assignment.network
        structure = network.fabric.structure
        self._loads = ClippedLoads(self._assignment)
        self._chosen = chosen = np.zeros(network.arc_count + 1, dtype=np.bool_)
        """Marks the arcs that paths can choose. Others do not count."""
        chosen[network.chosen] = True
        used = np.where(chosen, self._assignment.utilization(), 0.0)
        most = np.maximum(structure.worst_by_tier(used[:-1]), 1.0)
        limit = network.by_tier(most, np.inf)[:-1] * structure.capacity * (1 + _TOLERANCE)
        self._limit: Floats = np.append(np.where(chosen[:-1], limit, np.inf), np.inf)
        """Gbit/s that each arc may carry, and the padding."""
        asking, stretch = self._stretches(np.arange(len(chosen)))
        self._worth = bool(stretch[asking > _TOLERANCE].max(initial=0.0) > used.max() * _WORTH)
        self._cost = _sum(asking, stretch)
        """Stretches of the QPs on each arc, to the power and added up."""
        self._mixed = _mixed(asking, stretch)
        """Marks arcs that stretch some QPs more than others."""
        self._failed = np.zeros(len(chosen))
        """Trials in a row that failed at each arc."""
        self._urgency = self._urgencies(np.arange(len(chosen)))
        """How much each arc needs relief, and how promising that still is."""
        self._random = random.Random(0)  # noqa: S311 - nothing secret
        self._effort = min(_EFFORT, _EFFORT_EACH * len(self._assignment.flow))

    def run(self) -> bool:
        """Relieve the most crowded arcs as long as that helps; return whether anything moved."""
        moved, failed = False, 0
        while self._worth and failed < _PATIENCE and self._effort > 0:
            arc = int(self._urgency.argmax())
            if not self._mixed[arc] or self._chains.deadline.passed():
                break
            if self._relieve(arc):
                moved, failed, self._failed[arc] = True, 0, 0
            else:
                failed += 1
                self._failed[arc] += 1
            self._urgency[[arc]] = self._urgencies(np.array([arc]))
        return moved

    def _urgencies(self, arcs: Ints) -> Floats:
        stretch = np.where(self._mixed[arcs], self._cost[arcs], 0.0) ** (0.5**_SQUARED)
        return np.asarray(stretch / (1 + self._failed[arcs] / _TIRED))

    def _relieve(self, arc: int) -> bool:
        """Place the chunks of an arc, and of another one that they could use, again if it helps."""
        assignment, members = self._assignment, self._chains.members(arc)
        large = max(members, key=assignment.unit_of)
        ways = self._chains.paths(assignment.flow[large])
        others = distinct(ways[(ways != assignment.network.pad) & (ways != arc)])
        if len(ways) <= 1 or not len(others):
            return False
        other = int(self._random.choice(others.tolist()))
        chunks = sorted({*members, *self._chains.members(other)})
        chunks = self._random.sample(chunks, min(len(chunks), _MOST_TAKEN))
        chunks.sort(key=assignment.unit_of, reverse=True)
        old, new = [assignment.path[chunk] for chunk in chunks], list[Ints]()
        self._add(chunks, old, -1)
        fill = self._random.choice((arc, other)) if self._random.random() < _FILLING else None
        for chunk in chunks:
            path = self._best(chunk, (arc, other), fill)
            if path is None:
                break
            self._add([chunk], [path], 1)
            new.append(path)
        else:
            touched = distinct(np.concatenate([*old, *new]))
            asking, stretch = self._stretches(touched)
            after = _sum(asking, stretch)
            if after.sum() < self._cost[touched].sum() * (1 - _TOLERANCE):
                self._cost[touched], self._mixed[touched] = after, _mixed(asking, stretch)
                self._urgency[touched] = self._urgencies(touched)
                for chunk, path, was in zip(chunks, new, old, strict=True):
                    if not np.array_equal(path, was):
                        assignment.move(chunk, path)
                return True
        self._add(chunks[: len(new)], new, -1)
        self._add(chunks, old, 1)
        return False

    def _stretches(self, arcs: Ints) -> tuple[Floats, Floats]:
        """Return the present stretches as ``ClippedLoads.stretches`` does; 0 where none count."""
        asking, stretch = self._loads.stretches(self._loads.load[:, arcs], arcs)
        asking[:, ~self._chosen[arcs]] = 0.0
        return asking, stretch

    def _add(self, chunks: Iterable[int], paths: Iterable[Ints], sign: int) -> None:
        for chunk, path in zip(chunks, paths, strict=True):
            qps = sign * self._assignment.qps(chunk)
            self._loads.add(self._assignment.flow[chunk], qps, path)

    def _best(self, chunk: int, near: tuple[int, int], fill: int | None) -> Ints | None:
        """Return the path on which a chunk adds least, or None if it makes each too full.

        If there are many paths, those over the two arcs ``near`` and some others are compared. A
        path over the arc ``fill`` comes before all others.
        """
        self._effort -= 1
        flow = self._assignment.flow[chunk]
        ways = self._chains.paths(flow)
        if len(ways) > 2 * _DRAWN:
            compared = ((ways == near[0]) | (ways == near[1])).any(axis=1)
            compared[self._random.sample(range(len(ways)), _DRAWN)] = True
            ways = ways[compared]
        arcs = ways.ravel()
        more = self._loads.with_more(flow, self._assignment.qps(chunk), arcs)
        both = np.concatenate([self._loads.load.take(arcs, axis=1), more], axis=1)
        before, after = _sum(*self._loads.stretches(both, np.concatenate([arcs, arcs]))).reshape(
            2, -1
        )
        after[more[-1] > self._limit.take(arcs)] = np.inf
        cost = (after - before).reshape(ways.shape).sum(axis=1)
        if fill is not None:
            over = (ways == fill).any(axis=1)
            if cost[over].min(initial=np.inf) < np.inf:
                cost[~over] = np.inf
        least = cost.min(initial=np.inf)
        if least == np.inf:
            return None
        row = self._random.choice(np.flatnonzero(cost <= least + _TOLERANCE).tolist())
        return self._chains.trimmed(ways[row])


def _sum(asking: Floats, stretch: Floats) -> Floats:
    """Return the stretches of all QPs on each arc, to the power and added up, shape (arcs,)."""
    for _ in range(_SQUARED):  # a power takes much longer
        stretch = stretch * stretch
    total: Floats = (asking * stretch).sum(axis=0)
    return total


def _mixed(asking: Floats, stretch: Floats) -> Bools:
    """Mark arcs on which some QPs are stretched much more than others, shape (arcs,)."""
    there = asking > _TOLERANCE
    most = np.where(there, stretch, 0.0).max(axis=0)
    least = np.where(there, np.maximum(stretch, 1.0), np.inf).min(axis=0)
    mixed: Bools = most > least * _WORTH
    return mixed
