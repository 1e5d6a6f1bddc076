"""Ejection chains: make room by moving what is in the way, and what is then in its way.

A chunk moves to a path where one or two arcs are then too full. Each of these ejects a chunk of its
own, and so on to a small depth. In a healthy fabric this is the exchange along an alternating path
(Kempe) that edge colouring uses. A chain that does not succeed is undone as a whole. Each chain has
a budget, since the search would explode otherwise: chains that succeed are short, and long searches
usually fail.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints
from heddle_controller.model.flows import TrafficClass
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.options import Deadline

TOLERANCE = 1e-9
"""Utilisations closer than this are equal: loads are sums of many rates."""

MOST_FULL_ARCS = 2
"""Most full arcs on a path that is tried. Each needs a chain, and many rarely succeed together."""


@dataclass(frozen=True, slots=True)
class SearchLimits:
    """Limits of the effort. All are counts and not times, so that plans repeat."""

    depth: int = 4
    """Longest ejection chain."""
    width: int = 3
    """Paths tried for a chunk within a chain."""
    budget: int = 300
    """Chunks looked at for one chain."""
    effort: int = 40000
    """Chunks looked at in the whole search."""
    spare: int = 3000
    """Chunks looked at in all for arcs that are within a QP of their bounds."""
    beneath: int = 800
    """Chunks looked at in all for arcs that are above their own targets, but no fuller than their
    tier's bound."""
    rounds: int = 20000
    """Most arcs that are relieved."""
    patience: int = 24
    """Arcs in a row that could not be relieved, after which the search ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Ceiling:
    """The utilisation that each arc may have: its tier's limit, or its own target if higher."""

    tier: Ints
    """Tier of each arc and the padding."""
    of_tier: Floats
    target: Floats
    """Target of each arc and the padding."""
    cap: Floats
    """Utilisation that no arc may exceed to relieve others; of each arc and the padding."""

    def at(self, arcs: Ints) -> Floats:
        """Return the ceilings of some arcs, any shape."""
        of_tier = np.minimum(self.of_tier[self.tier[arcs]], self.cap[arcs])
        ceilings: Floats = np.maximum(of_tier, self.target[arcs])
        return ceilings

    def of(self, arc: int) -> float:
        """Return the ceiling of one arc."""
        of_tier = min(float(self.of_tier[self.tier[arc]]), float(self.cap[arc]))
        return max(of_tier, float(self.target[arc]))


@dataclass(frozen=True, slots=True, eq=False)
class ChainLink:
    """State of an ejection chain."""

    ceiling: Ceiling
    """Utilisation that arcs may not exceed in the end."""
    depth: int
    """Steps that are left."""
    freed: tuple[int, ...]
    """Arcs that gave something up. Nothing may move to them."""
    placed: frozenset[int]
    """Chunks that were moved. They do not move again."""

    def after(self, chunk: int, full: list[int]) -> ChainLink:
        """Return the state after one more step."""
        return ChainLink(self.ceiling, self.depth - 1, (*self.freed, *full), self.placed | {chunk})


class Chains:
    """Ejection chains on one assignment."""

    def __init__(
        self,
        assignment: Assignment,
        candidates: Candidates,
        deadline: Deadline,
        limits: SearchLimits,
    ) -> None:
        self.assignment = assignment
        self.candidates = candidates
        self.deadline = deadline
        self.limits = limits
        self.movable: frozenset[int] | None = None
        """Flows that may be moved; None for all."""
        self._left = 0
        self.spent = 0

    def free(self, arc: int, ceiling: Ceiling, budget: int) -> bool:
        """Take one chunk, or one QP of one, off an arc; False leaves everything as it was.

        Afterwards ``spent`` is the number of chunks that it looked at.
        """
        self._left = budget
        freed = self._eject(arc, ChainLink(ceiling, self.limits.depth, (arc,), frozenset()))
        self.spent = budget - self._left
        return freed

    def _eject(self, arc: int, link: ChainLink) -> bool:
        assignment = self.assignment
        for chunk in self.members(arc):
            if chunk in link.placed:
                continue
            for size in dict.fromkeys((assignment.qps(chunk), 1)):
                if self._left <= 0 or self.deadline.passed():
                    return False
                if self._eject_chunk(chunk, size, link):
                    return True
        return False

    def _eject_chunk(self, chunk: int, size: int, link: ChainLink) -> bool:
        paths = self.paths(self.assignment.flow[chunk])
        self._left -= 1
        if len(paths) <= 1:
            return False
        after = self.assignment.used_after_move(chunk, size, paths)
        over = after > link.ceiling.at(paths)
        for row in self._order(after, over, paths, link):
            full = paths[row][over[row]].tolist()
            if full and not link.depth:
                return False
            if self._place(chunk, size, paths[row], full, link):
                return True
        return False

    def _order(self, after: Floats, over: Bools, paths: Ints, link: ChainLink) -> list[int]:
        """Return rows of paths worth trying, fewest full arcs first; none over freed arcs."""
        full = over.sum(axis=1)
        barred = (paths[:, :, None] == np.array(link.freed)).any(axis=(1, 2))
        order = np.lexsort((after.max(axis=1), full))
        worth = order[~(barred | (full > MOST_FULL_ARCS))[order]]
        rows: list[int] = worth[: self.limits.width].tolist()
        return rows

    def _place(self, chunk: int, size: int, path: Ints, full: list[int], link: ChainLink) -> bool:
        """Put a chunk on a path and free each arc that this overfills; undo all if that fails."""
        assignment = self.assignment
        before = len(assignment.journal)
        piece = chunk if size == assignment.qps(chunk) else assignment.split(chunk, size)
        assignment.move(piece, self.trimmed(path))
        further = link.after(piece, full)
        for arc in full:
            limit = link.ceiling.of(arc)
            while assignment.utilization_of(arc) > limit:
                if not self._eject(arc, further):
                    assignment.roll_back(before)
                    return False
        return True

    def members(self, arc: int) -> list[int]:
        """Return the chunks on an arc that may be moved."""
        chunks = self.assignment.members(arc)
        if self.movable is None:
            return chunks
        return [chunk for chunk in chunks if self.assignment.flow[chunk] in self.movable]

    def paths(self, flow: int) -> Ints:
        """Return the candidate paths of a flow."""
        flows = self.assignment.flows
        ends = self.candidates.ends_of(flows, flow)
        return self.candidates.of_class(*ends, int(flows.traffic_class[flow]))

    def with_longer(self, flow: int) -> Ints:
        """Return the candidates of a flow, and longer paths unless it must take the shortest."""
        flows = self.assignment.flows
        if flows.traffic_class[flow] == TrafficClass.LATENCY:
            return self.paths(flow)
        ends = self.candidates.ends_of(flows, flow)
        return self.candidates.with_longer(*ends)

    def with_detours(self, flow: int) -> Ints:
        """Return the same with paths that go down and up again in a fabric with tiers."""
        flows = self.assignment.flows
        if flows.traffic_class[flow] == TrafficClass.LATENCY:
            return self.paths(flow)
        ends = self.candidates.ends_of(flows, flow)
        return self.candidates.with_detours(*ends)

    def trimmed(self, path: Ints) -> Ints:
        """Return a path without its padding."""
        kept: Ints = path[path != self.assignment.network.pad]
        return kept
