"""Exchanges QPs between flows, with the levels of arcs taken as given.

One flow is helped at a time: a chunk of it leaves the arc that holds it back for a path of a higher
level. Where that path is full, as many QPs of another flow take the place that becomes free. Where
it is not, the chunk moves alone, if its new arcs are then less full than the one it left.
``balance`` explains which flows may give way, how far arcs may rise and when a move is worth it. It
computes the levels again after each round of exchanges.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints, distinct
from heddle_controller.solve.fairness.sharing import Shares
from heddle_controller.solve.search.search import Search

_WORTH = 1e-3
"""Least relative gain of the slower flow for which QPs are moved."""
PARTNERS = 8
"""Chunks of other flows tried for one exchange, best-off flows first."""
_WAYS = 4
"""Better paths tried for one chunk."""
_TOLERANCE = 1e-9


@dataclass(slots=True, eq=False)
class _Ways:
    """Candidate paths of flows with the same terminals and class."""

    paths: Ints
    """Arcs of each path, padded, shape (paths, hops)."""
    ascending: Ints
    """The same with the arcs of each path sorted by number."""
    level: Floats
    """Gbit/s that the arcs of each path would give a QP, shape (paths,)."""
    order: Ints
    """Rows of the paths, highest level first."""
    age: int
    """Value of the counter of level changes for which ``level`` and ``order`` hold."""


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    """A better path for some QPs of a chunk."""

    chunk: int
    hot: int
    """The arc that holds the chunk back now."""
    path: Ints
    level: float
    """Gbit/s that the path would give a QP."""
    full: frozenset[int]
    """Arcs of the path on which another flow has to make room."""
    gain: float
    """Value that the flow gains for each QP moved to this path."""


@dataclass(frozen=True, slots=True, eq=False)
class _Swap:
    """The other side of an exchange: the chunk that makes room, and its new path."""

    chunk: int
    path: Ints
    loss: float
    """Value that its flow loses for each QP moved."""
    qps: int
    """QPs that each side moves."""


class QpSwaps:
    """One round of exchanges with given levels of arcs."""

    def __init__(
        self, search: Search, shares: Shares, movable: frozenset[int] | None, looks: int
    ) -> None:
        self.looks = looks
        """Exchanges that may still be looked at."""
        self._search = search
        self._assignment = search.assignment
        self._movable = movable
        self._level = shares.level.copy()
        self._rate: list[float] = shares.rate.tolist()
        flows = search.assignment.flows
        self._per_rate: list[float] = (1 / (flows.gbps * flows.weight)).tolist()
        """Value of one Gbit/s to each flow."""
        self._heaviest = float(flows.weight.max())
        self._value: dict[int, float] = dict(enumerate((shares.ratio / flows.weight).tolist()))
        self._most: Floats = np.maximum(search.enough, 1.0)
        """Utilisation that exchanges may raise each arc to."""
        self._ways: dict[tuple[int, int, int], _Ways] = {}
        """Candidate paths by both terminals and traffic class of the flows that share them."""
        self._age = 0
        """Counter of level changes."""
        self._best: dict[int, float] = {}
        """Greatest value of a flow on each arc; removed when it may have changed."""
        self._ceiling: list[float] = shares.ceiling.tolist()
        """The most Gbit/s that a QP of each flow can get on any path."""
        self._chunks: dict[int, list[int]] = {}
        for chunk, flow in enumerate(search.assignment.flow):
            self._chunks.setdefault(flow, []).append(chunk)
        self._full = set(np.flatnonzero(self._level < inf).tolist())
        """Arcs whose level is finite."""
        self._members: dict[int, set[int]] = {}
        """Chunks on each arc that was asked for so far."""
        self._slow = np.flatnonzero(shares.ratio < 1 - _TOLERANCE).tolist()

    def run(self) -> None:
        """Help the flow of least value as long as possible, then the next."""
        heap = [(self._value[flow], flow) for flow in self._slow if flow in self._chunks]
        heapify(heap)
        while heap and self.looks > 0 and not self._search.chains.deadline.passed():
            value, flow = heappop(heap)
            if value != self._value[flow]:
                continue
            for moved in self._help(flow):
                heappush(heap, (self._value[moved], moved))

    def _help(self, flow: int) -> tuple[int, ...]:
        """Give some QPs of a flow a better path; return the flows whose values changed."""
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
        """Return the arc that holds a chunk back; None if a NIC's link does, or nothing."""
        path = self._assignment.path[chunk]
        if not len(path):
            return None
        arc = int(path[self._level[path].argmin()])
        return arc if self._level[arc] <= self._rate[chunk] * (1 + _TOLERANCE) else None

    def _places(self, hot: int, chunk: int) -> list[_Place]:
        """Return better paths of a chunk, by gain and then by how well off the others there are."""
        flow, rate = self._assignment.flow[chunk], self._rate[chunk]
        if self._ceiling[flow] <= rate * (1 + _TOLERANCE):
            return []
        known = self._ways_of(flow)
        gain = (np.minimum(known.level, self._ceiling[flow]) - rate) * self._per_rate[flow]
        worth = (known.level > rate * (1 + _TOLERANCE)) & (gain > 0)
        rows = known.order[worth[known.order]]
        if not len(rows):
            return []
        # Each way gives at least one place, so ways of less gain than these can be left out.
        rows = rows[gain[rows] >= gain[rows[:_WAYS][-1]]]
        own, found = self._assignment.path[chunk], list[tuple[float, float, int, frozenset[int]]]()
        arcs = known.ascending[rows]
        fresh = (arcs[:, :, None] != own).all(axis=2)
        full = fresh & np.isfinite(self._level[arcs])
        crowded = fresh & self._crowded(flow, arcs) & ~full.any(axis=1)[:, None]
        for at in np.flatnonzero(full.any(axis=1)).tolist():
            others = frozenset(arcs[at, full[at]].tolist())
            found.append((-float(gain[rows[at]]), -self._most_worth(others), at, others))
        for at in np.flatnonzero(~(full | crowded).any(axis=1))[:_WAYS].tolist():
            found.append((-float(gain[rows[at]]), -inf, at, frozenset()))
        of, place = np.nonzero(crowded)
        meets, which = np.unique(arcs[of, place], return_inverse=True)
        best = np.array([self._most_worth(frozenset([arc])) for arc in meets.tolist()])[which]
        for one in np.lexsort((-best, -gain[rows[of]]))[:_WAYS].tolist():
            arc = frozenset([int(meets[which[one]])])
            found.append((-float(gain[rows[of[one]]]), -float(best[one]), int(of[one]), arc))
        found.sort(key=lambda each: each[:3])
        return [
            _Place(chunk, hot, way, float(known.level[rows[row]]), others, float(-less))
            for less, _, row, others in found[:_WAYS]
            for way in (self._search.chains.trimmed(known.paths[rows[row]]),)
        ]

    def _crowded(self, flow: int, arcs: Ints) -> Bools:
        """Mark arcs that one more QP of a flow would overload."""
        assignment = self._assignment
        load = assignment.load[arcs] + assignment.unit[flow]
        over: Bools = load * assignment.network.per_gbps[arcs] > 1 + _TOLERANCE
        return over

    def _on(self, arcs: frozenset[int]) -> set[int]:
        """Return the chunks that cross all of some arcs; empty for no arcs."""
        for arc in arcs.difference(self._members):
            self._members[arc] = set(self._assignment.members(arc))
        return set.intersection(*(self._members[arc] for arc in arcs)) if arcs else set()

    def _most_worth(self, arcs: frozenset[int]) -> float:
        """Return the greatest value of a flow with a chunk that crosses all of some arcs."""
        if len(arcs) != 1:
            return max(map(self._worth_of, self._on(arcs)), default=inf)
        (arc,) = arcs
        if arc not in self._best:
            self._best[arc] = max(map(self._worth_of, self._on(arcs)), default=inf)
        return self._best[arc]

    def _worth_of(self, chunk: int) -> float:
        return self._value[self._assignment.flow[chunk]]

    def _set_value(self, flow: int, value: float) -> None:
        """Record the new value of a flow."""
        self._value[flow] = value
        for chunk in self._chunks[flow]:
            for arc in self._assignment.path[chunk].tolist():
                self._best.pop(arc, None)

    def _ways_of(self, flow: int) -> _Ways:
        """Return the candidate paths of a flow with their current levels."""
        flows = self._assignment.flows
        ends = self._search.chains.candidates.ends_of(flows, flow)
        key = (*ends, int(flows.traffic_class[flow]))
        found = self._ways.get(key)
        if found is None:
            paths = self._search.chains.paths(flow)
            found = _Ways(paths, np.sort(paths, axis=1), np.empty(0), np.empty(0, np.int64), -1)
            self._ways[key] = found
        if found.age != self._age:
            found.level = self._level[found.paths].min(axis=1, initial=inf)
            found.order, found.age = np.argsort(-found.level, kind="stable"), self._age
        return found

    def _take(self, place: _Place) -> tuple[int, ...]:
        """Move QPs of a chunk to a place, in exchange for others where it is full.

        Returns the flows whose values changed; empty if nothing moved.
        """
        flow = self._assignment.flow[place.chunk]
        moved = () if place.full.intersection(self._full) else self._move_alone(place)
        if moved or not place.full:
            return moved
        ranked = sorted(
            ((self._value[self._assignment.flow[chunk]], -chunk) for chunk in self._on(place.full)),
            reverse=True,
        )
        best: tuple[float, _Swap] | None = None
        for value, chunk in ranked[:PARTNERS]:
            if value <= self._value[flow] * (1 + _WORTH):
                break
            self.looks -= 1
            deal = self._swap(place, -chunk) if self._may_give(flow, -chunk) else None
            excess = inf if deal is None else self._excess(place, deal)
            if deal and excess < inf and (best is None or excess < best[0] - _TOLERANCE):
                best = excess, deal
        return self._exchange(place, best[1]) if best else ()

    def _may_give(self, flow: int, chunk: int) -> bool:
        """Whether a chunk may make room for a flow: it is free to move and its QPs ask as much."""
        assignment, weight = self._assignment, self._assignment.flows.weight
        other = assignment.flow[chunk]
        if other == flow:
            return False
        if abs(assignment.unit[other] - assignment.unit[flow]) > _TOLERANCE * assignment.unit[flow]:
            return False
        if self._movable is None or {flow, other} <= self._movable:
            return True
        return bool(weight[other] < weight[flow])

    def _swap(self, place: _Place, chunk: int) -> _Swap | None:
        """Return how a chunk could move to the arc that ``place`` leaves; None if not worth it."""
        assignment = self._assignment
        flow, other = assignment.flow[place.chunk], assignment.flow[chunk]
        known = self._ways_of(other)
        fits = (known.paths == place.hot).any(axis=1)
        for arc in place.full:
            fits &= (known.paths != arc).all(axis=1)
        rows = known.order[fits[known.order]]
        if not len(rows):
            return None
        rate = min(float(known.level[rows[0]]), self._ceiling[other])
        loss = (self._rate[chunk] - rate) * self._per_rate[other]
        low, high = self._value[flow], self._value[other]
        balance = (high - low) / (place.gain + loss) if place.gain + loss > 0 else inf
        most = min(assignment.qps(place.chunk), assignment.qps(chunk))
        qps = int(max(1.0, min(float(most), balance)))
        if min(low + qps * place.gain, high - qps * loss) <= low * (1 + _WORTH):
            return None
        path = self._search.chains.trimmed(known.paths[rows[0]])
        return _Swap(chunk, path, loss, qps)

    def _excess(self, place: _Place, deal: _Swap) -> float:
        """Return how much utilisation an exchange adds above 1; infinite if it is too much."""
        assignment, flow = self._assignment, self._assignment.flow[place.chunk]
        arcs = distinct(np.concatenate([place.path, deal.path]))
        per_gbps = assignment.network.per_gbps[arcs]
        before = assignment.load[arcs] * per_gbps
        length = len(assignment.journal)
        self._carry_out(place, deal)
        after = assignment.load[arcs] * per_gbps
        assignment.roll_back(length)
        slowest = (self._value[flow] + deal.qps * place.gain) * self._heaviest
        most = np.minimum(self._most[arcs], max(1.0, 1 / slowest))
        if (after > np.maximum(before, most) + _TOLERANCE).any():
            return inf
        return float(np.maximum(after - np.maximum(before, 1.0), 0.0).sum())

    def _carry_out(self, place: _Place, deal: _Swap) -> tuple[int, int]:
        """Move both sides; return the chunks that were moved, the helped one first."""
        return (
            self._put(place.chunk, deal.qps, place.path),
            self._put(deal.chunk, deal.qps, deal.path),
        )

    def _put(self, chunk: int, qps: int, path: Ints) -> int:
        """Move some QPs of a chunk; return the chunk that they now form."""
        whole = qps == self._assignment.qps(chunk)
        piece = chunk if whole else self._assignment.split(chunk, qps)
        self._assignment.move(piece, path)
        return piece

    def _exchange(self, place: _Place, deal: _Swap) -> tuple[int, ...]:
        flow, other = (self._assignment.flow[chunk] for chunk in (place.chunk, deal.chunk))
        old = [self._assignment.path[chunk] for chunk in (place.chunk, deal.chunk)]
        gained, gave = self._carry_out(place, deal)
        self._note(gained, place.chunk, old[0], place.gain, deal.qps)
        self._note(gave, deal.chunk, old[1], -deal.loss, deal.qps)
        return flow, other

    def _move_alone(self, place: _Place) -> tuple[int, ...]:
        """Move as many QPs as helps to arcs that end up less full than the one they leave.

        Returns the flows whose values changed; empty if nothing moved.
        """
        assignment, flow = self._assignment, self._assignment.flow[place.chunk]
        old, path = assignment.path[place.chunk], place.path
        if self._movable is not None and flow not in self._movable:
            return ()
        fresh = path[(path[:, None] != old).all(axis=1)]
        qps = assignment.qps(place.chunk)
        while qps:
            gain, slowed = self._gain_alone(place, qps, fresh)
            least = min([self._value[flow] + qps * gain, *slowed.values()])
            if least > self._value[flow] * (1 + _WORTH):
                piece = self._put(place.chunk, qps, path)
                self._note(piece, place.chunk, old, gain, qps)
                for other, value in slowed.items():
                    self._set_value(other, value)
                self._fill(fresh)
                return (flow, *slowed)
            qps //= 2
        return ()

    def _gain_alone(self, place: _Place, qps: int, fresh: Ints) -> tuple[float, dict[int, float]]:
        """Return the value that each of ``qps`` moved QPs gains, and new values of slowed flows.

        The gain is 0 if an overloaded arc would end up fuller than it may be, or than the arc that
        the QPs leave.
        """
        assignment = self._assignment
        flow, unit = assignment.flow[place.chunk], assignment.unit_of(place.chunk)
        used = assignment.used_after_move(place.chunk, qps, fresh[None])[0]
        left = assignment.utilization_of(place.hot) - qps * unit * float(
            assignment.network.per_gbps[place.hot]
        )
        over = used > 1 + _TOLERANCE
        if (used[over] > np.minimum(self._most[fresh[over]], left) + _TOLERANCE).any():
            return 0.0, {}
        slowed: dict[int, float] = {}
        for arc, full in zip(fresh[over].tolist(), used[over].tolist(), strict=True):
            for chunk in assignment.members(arc):
                other, rate = assignment.flow[chunk], assignment.unit_of(chunk) / full
                loss = max(0.0, self._rate[chunk] - rate) * assignment.qps(chunk)
                value = slowed.get(other, self._value[other])
                slowed[other] = value - loss * self._per_rate[other]
        slowed.pop(flow, None)
        rate = min(place.level, self._ceiling[flow], unit / max(1.0, *used.tolist()))
        return (rate - self._rate[place.chunk]) * self._per_rate[flow], slowed

    def _fill(self, arcs: Ints) -> None:
        """Record the levels of arcs that have become full."""
        assignment = self._assignment
        for arc in arcs.tolist():
            used = assignment.utilization_of(arc)
            members = assignment.members(arc)
            if used <= 1 + _TOLERANCE or not members:
                continue
            self._full.add(arc)
            self._level[arc] = max(assignment.unit_of(chunk) for chunk in members) / used
            for chunk in members:
                self._rate[chunk] = min(self._rate[chunk], assignment.unit_of(chunk) / used)
            self._age += 1

    def _note(self, piece: int, chunk: int, old: Ints, gain: float, qps: int) -> None:
        """Record the move of a piece of a chunk, and its effect on the value of the flow."""
        flow = self._assignment.flow[chunk]
        rate = self._rate[chunk] + gain / self._per_rate[flow]
        for arc in old.tolist():
            self._best.pop(arc, None)
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
        self._set_value(flow, self._value[flow] + qps * gain)
