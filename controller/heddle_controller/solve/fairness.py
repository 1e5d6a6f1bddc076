"""Among plans of equal loads the fairest: exchanges of QPs between flows.

Search looks at links; what a job feels is its slowest flow. With four cables of 77 QPs
and one of 76, a flow whose QPs are all on the 76 is faster than one without, though no
link could be better; and where a cable must carry two flows, it matters whose they are.
So where links stay overloaded, flows exchange QPs: one leaves the arc that holds it
back for a better one, another goes the opposite way, and the loads stay as they were.

The aim is weighted max-min fairness (Bertsekas and Gallager, Data Networks, 6.5). The
value of a flow is its fair rate over its demand (``sharing``) over its job's priority; the
least value is raised, then the next. An exchange must leave both flows above what the
slower one had, so the sorted list of values rises and that comes to an end. A flow of
priority 10 thus gives way to one of priority 1 only when it is ten times as well off.
Loads come first all the same: no priority buys a fuller link than there has to be, for
the certificate says how full links are.

An arc of few QPs may rise as far as its tier's target, if that slows nobody below the
flow that is helped. Nothing is done where no link is overloaded, nor where it cannot
matter: single QPs of equal priority.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from heddle_controller.model.fabric import NONE, Floats, Ints
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.export import merged_chunks
from heddle_controller.solve.options import Deadline
from heddle_controller.solve.search import Search, Target
from heddle_controller.solve.sharing import Shares

WORTH = 1e-3
"""Relative gain of the slower flow below which no flow is split."""
ROUNDS = 4
"""Levels are found anew so often: exchanges change them a little."""
LOOKS = 20_000
"""Exchanges looked at in all; a count, not a time, so that plans repeat."""
PARTNERS = 8
"""Flows tried for one exchange, those best off first."""
WAYS = 4
"""Better paths tried for one chunk."""
TOLERANCE = 1e-9


def even(
    assignment: Assignment, candidates: Candidates, target: Target, deadline: Deadline
) -> Assignment | None:
    """The assignment made fairer; None where there is nothing to gain. Numbers QPs anew."""
    if not _matters(assignment):
        return None
    everything = list(range(len(assignment.flow)))
    compact = Assignment(assignment.network, assignment.flows)
    compact.load_chunks(merged_chunks(assignment, everything, renumber=True))
    return compact if even_out(Search(compact, candidates, target, deadline)) else None


def even_out(search: Search, movable: frozenset[int] | None = None) -> bool:
    """Exchanges QPs within what a search left, while that makes it fairer.

    ``movable`` names the flows that may be moved in any case (None for all); others make
    room for flows of higher priority only. Returns whether anything was moved.
    """
    assignment = search.assignment
    if not _matters(assignment):
        return False
    looks, start = LOOKS, len(assignment.touched)
    shares = Shares(assignment)
    assignment.journal.clear()
    for _ in range(ROUNDS):
        begin = len(assignment.journal)
        exchange = _Exchange(search, shares, movable, looks)
        exchange.run()
        looks = exchange.looks
        if len(assignment.journal) == begin:
            break
        after = Shares(assignment)
        if _sorted_values(assignment, after) <= _sorted_values(assignment, shares):
            assignment.roll_back(begin)
            break
        shares = after
    return len(assignment.touched) > start or bool(assignment.journal)


def _matters(assignment: Assignment) -> bool:
    """Whether a link between switches is overloaded, by flows among which it could matter who."""
    flows, inner = assignment.flows, assignment.network.inner
    if not len(flows) or not len(inner):
        return False
    if int(flows.qps.max()) == 1 and float(np.ptp(flows.weight)) == 0.0:
        return False
    return bool(assignment.utilization()[inner].max() > 1 + TOLERANCE)


def _sorted_values(assignment: Assignment, shares: Shares) -> list[float]:
    values: list[float] = np.sort(np.round(shares.ratio / assignment.flows.weight, 6)).tolist()
    return values


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """A candidate path."""

    level: float
    """The rate that its arcs would give a QP, Gbit/s."""
    path: Ints
    arcs: frozenset[int]


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A better path for some QPs of a chunk."""

    chunk: int
    hot: int
    """The arc that holds the chunk back where it is."""
    way: _Way
    full: frozenset[int]
    """Arcs of the way where another has to make room."""
    gain: float
    """Value that each QP adds to its flow there."""


@dataclass(frozen=True, slots=True, eq=False)
class _Deal:
    """An exchange: who makes room, and how."""

    chunk: int
    path: Ints
    loss: float
    """Value that each QP costs its flow."""
    qps: int


class _Exchange:
    """Exchanges under given levels of arcs."""

    def __init__(
        self, search: Search, shares: Shares, movable: frozenset[int] | None, looks: int
    ) -> None:
        self.looks = looks
        self._search = search
        self._assignment = search.assignment
        self._movable = movable
        self._level = shares.level
        self._rate: list[float] = shares.rate.tolist()
        flows = search.assignment.flows
        self._per_rate: list[float] = (1 / (flows.gbps * flows.weight)).tolist()
        """Value that each Gbit/s is to a flow."""
        self._heaviest = float(flows.weight.max())
        self._value: list[float] = (shares.ratio / flows.weight).tolist()
        self._most: Floats = np.maximum(search.enough, 1.0)
        """Utilisation that exchanges may raise each arc to."""
        self._ways: dict[int, list[_Way]] = {}
        self._ceilings: dict[int, float] = {}
        self._chunks: dict[int, list[int]] = {}
        for chunk, flow in enumerate(search.assignment.flow):
            self._chunks.setdefault(flow, []).append(chunk)
        self._members: dict[int, set[int]] = {
            arc: set(search.assignment.members(arc))
            for arc in np.flatnonzero(self._level < inf).tolist()
        }
        """Chunks on each full arc."""
        self._slow = np.flatnonzero(shares.ratio < 1 - TOLERANCE).tolist()

    def run(self) -> None:
        """Helps the flow of least value while that is possible, then the next."""
        heap = [(self._value[flow], flow) for flow in self._slow if flow in self._chunks]
        heapify(heap)
        while heap and self.looks > 0 and not self._search.chains.deadline.passed():
            value, flow = heappop(heap)
            if value != self._value[flow]:
                continue
            for moved in self._help(flow):
                heappush(heap, (self._value[moved], moved))

    def _help(self, flow: int) -> tuple[int, ...]:
        """Gives some QPs of a flow a better path; the flows whose values changed."""
        by_arc: dict[int, int] = {}
        for chunk in self._chunks[flow]:
            hot = self._holding(chunk)
            if hot is not None:
                best = by_arc.setdefault(hot, chunk)
                if self._assignment.qps(chunk) > self._assignment.qps(best):
                    by_arc[hot] = chunk
        for hot, chunk in sorted(by_arc.items(), key=lambda found: self._level[found[0]]):
            for place in self._places(hot, chunk):
                self.looks -= 1
                moved = self._take(place)
                if moved:
                    return moved
        return ()

    def _holding(self, chunk: int) -> int | None:
        """The arc that holds a chunk back; None if a NIC does, or nothing."""
        path = self._assignment.path[chunk]
        if not len(path):
            return None
        arc = int(path[self._level[path].argmin()])
        return arc if self._level[arc] <= self._rate[chunk] * (1 + TOLERANCE) else None

    def _places(self, hot: int, chunk: int) -> list[_Place]:
        """Better paths of a chunk, best first."""
        flow, rate = self._assignment.flow[chunk], self._rate[chunk]
        own = self._assignment.path[chunk].tolist()
        places: list[_Place] = []
        for way in self._ways_of(flow):
            if way.level <= rate * (1 + TOLERANCE) or len(places) >= WAYS:
                break
            gain = (min(way.level, self._ceiling(flow)) - rate) * self._per_rate[flow]
            full = frozenset(arc for arc in way.arcs.difference(own) if arc in self._members)
            if gain > 0:
                places.append(_Place(chunk, hot, way, full, gain))
        return places

    def _ways_of(self, flow: int) -> list[_Way]:
        """Candidate paths of a flow, those of the highest level first."""
        paths = self._search.chains.paths(flow)
        found = self._ways.get(id(paths))
        if found is None:
            level = self._level[paths].min(axis=1, initial=inf)
            trimmed = [self._search.chains.trimmed(path) for path in paths]
            found = self._ways[id(paths)] = [
                _Way(float(level[row]), trimmed[row], frozenset(trimmed[row].tolist()))
                for row in np.argsort(-level, kind="stable").tolist()
            ]
        return found

    def _ceiling(self, flow: int) -> float:
        """The rate that a QP of a flow cannot exceed on any path."""
        known = self._ceilings.get(flow)
        if known is None:
            flows, network = self._assignment.flows, self._assignment.network
            out = int(network.nic_arc[flows.source[flow]])
            into = int(network.nic_arc[flows.destination[flow]])
            arcs = ([out] if out != NONE else []) + ([into ^ 1] if into != NONE else [])
            levels = [float(self._level[arc]) for arc in arcs]
            known = self._ceilings[flow] = min([float(self._assignment.unit[flow]), *levels])
        return known

    def _take(self, place: _Place) -> tuple[int, ...]:
        """Moves a chunk, or some of its QPs, to a place, against others where it is full."""
        flow = self._assignment.flow[place.chunk]
        if not place.full:
            return self._move_alone(place)
        members = set.intersection(*(self._members[arc] for arc in place.full))
        ranked = sorted(
            ((self._value[self._assignment.flow[chunk]], -chunk) for chunk in members), reverse=True
        )
        best: tuple[float, _Deal] | None = None
        for value, chunk in ranked[:PARTNERS]:
            if value <= self._value[flow] * (1 + WORTH):
                break
            self.looks -= 1
            deal = self._deal(place, -chunk) if self._may_give(flow, -chunk) else None
            excess = inf if deal is None else self._excess(place, deal)
            if deal and excess < inf and (best is None or excess < best[0] - TOLERANCE):
                best = excess, deal
        return self._exchange(place, best[1]) if best else ()

    def _may_give(self, flow: int, chunk: int) -> bool:
        """Whether a chunk may make room for a flow: one of equal QPs, free to move."""
        assignment, weight = self._assignment, self._assignment.flows.weight
        other = assignment.flow[chunk]
        if other == flow:
            return False
        if abs(assignment.unit[other] - assignment.unit[flow]) > TOLERANCE * assignment.unit[flow]:
            return False
        if self._movable is None or {flow, other} <= self._movable:
            return True
        return bool(weight[other] < weight[flow])

    def _deal(self, place: _Place, chunk: int) -> _Deal | None:
        """How a chunk could take the place's old arc, by how many QPs; None if not worth it."""
        assignment = self._assignment
        flow, other = assignment.flow[place.chunk], assignment.flow[chunk]
        way = next(
            (
                way
                for way in self._ways_of(other)
                if place.hot in way.arcs and place.full.isdisjoint(way.arcs)
            ),
            None,
        )
        if way is None:
            return None
        rate = min(way.level, self._ceiling(other))
        loss = (self._rate[chunk] - rate) * self._per_rate[other]
        low, high = self._value[flow], self._value[other]
        balance = (high - low) / (place.gain + loss) if place.gain + loss > 0 else inf
        most = min(assignment.qps(place.chunk), assignment.qps(chunk))
        qps = int(max(1.0, min(float(most), balance)))
        if min(low + qps * place.gain, high - qps * loss) <= low * (1 + WORTH):
            return None
        return _Deal(chunk, way.path, loss, qps)

    def _excess(self, place: _Place, deal: _Deal) -> float:
        """How much utilisation a deal adds above 1, infinite where that is too much."""
        assignment, flow = self._assignment, self._assignment.flow[place.chunk]
        arcs = np.unique(np.concatenate([place.way.path, deal.path]))
        per_gbps = assignment.network.per_gbps[arcs]
        before = assignment.load[arcs] * per_gbps
        length = len(assignment.journal)
        self._carry_out(place, deal)
        after = assignment.load[arcs] * per_gbps
        assignment.roll_back(length)
        slowest = (self._value[flow] + deal.qps * place.gain) * self._heaviest
        most = np.minimum(self._most[arcs], max(1.0, 1 / slowest))
        if (after > np.maximum(before, most) + TOLERANCE).any():
            return inf
        return float(np.maximum(after - np.maximum(before, 1.0), 0.0).sum())

    def _carry_out(self, place: _Place, deal: _Deal) -> tuple[int, int]:
        """Moves both; returns the chunks that were moved, the helped one first."""
        return (
            self._put(place.chunk, deal.qps, place.way.path),
            self._put(deal.chunk, deal.qps, deal.path),
        )

    def _put(self, chunk: int, qps: int, path: Ints) -> int:
        """Moves some QPs of a chunk; returns the chunk that they are now."""
        whole = qps == self._assignment.qps(chunk)
        piece = chunk if whole else self._assignment.split(chunk, qps)
        self._assignment.move(piece, path)
        return piece

    def _exchange(self, place: _Place, deal: _Deal) -> tuple[int, ...]:
        flow, other = (self._assignment.flow[chunk] for chunk in (place.chunk, deal.chunk))
        old = [self._assignment.path[chunk] for chunk in (place.chunk, deal.chunk)]
        gained, gave = self._carry_out(place, deal)
        self._note(gained, place.chunk, old[0], place.gain, deal.qps)
        self._note(gave, deal.chunk, old[1], -deal.loss, deal.qps)
        return flow, other

    def _move_alone(self, place: _Place) -> tuple[int, ...]:
        """Moves as many QPs as there is room for."""
        assignment, flow = self._assignment, self._assignment.flow[place.chunk]
        old, path = assignment.path[place.chunk], place.way.path
        if self._movable is not None and flow not in self._movable:
            return ()
        fresh = ~np.isin(path, old)
        qps = assignment.qps(place.chunk)
        while qps:
            used = assignment.used_after_move(place.chunk, qps, path[None])[0]
            if (used[fresh] <= 1 + TOLERANCE).all():
                break
            qps //= 2
        if not qps or qps * place.gain <= self._value[flow] * WORTH:
            return ()
        piece = self._put(place.chunk, qps, path)
        self._note(piece, place.chunk, old, place.gain, qps)
        return (flow,)

    def _note(self, piece: int, chunk: int, old: Ints, gain: float, qps: int) -> None:
        """Takes down what the move of a piece of a chunk made of its flow."""
        flow = self._assignment.flow[chunk]
        rate = self._rate[chunk] + gain / self._per_rate[flow]
        if piece == chunk:
            self._rate[chunk] = rate
            for arc in old.tolist():
                self._members.get(arc, set()).discard(chunk)
        else:
            self._rate.append(rate)
            self._chunks[flow].append(piece)
        for arc in self._assignment.path[piece].tolist():
            if arc in self._members:
                self._members[arc].add(piece)
        self._value[flow] += qps * gain
