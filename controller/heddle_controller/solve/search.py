"""Local search: take load off the worst arcs, one after another, until none can give.

The worst arc above its target gives up a chunk, whole if that helps enough, else
some of its QPs, to the candidate path on which it weighs least. Where every
candidate is too full, an *ejection chain* follows: the chunk goes where one arc
is too full, that arc ejects another chunk, and so on to a small depth; a chain
that comes to no end is taken back. Each step leaves the sorted list of
utilisations smaller, so the search ends. A budget a chain keeps it from exploding
(chains that succeed are short; long searches fail).

The target of an arc is the proven bound of its tier: below that, nothing is to
be gained by moving.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.fabric import Bools, Floats, Ints
from heddle_controller.solve.assignment import Assignment, Move
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.options import Deadline

TOLERANCE = 1e-9
"""Utilisations closer than this are equal: loads are sums of many rates."""

SLACK = 0.01
"""A plan this close to its bound, QPs being whole, is not worth a worse tier."""

MOST_FULL_ARCS = 2
"""A path with more full arcs needs as many chains to succeed at once; they rarely do."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How hard to try."""

    depth: int = 4
    """Length of an ejection chain."""
    width: int = 3
    """Paths tried for a chunk within a chain."""
    budget: int = 400
    """Placements tried in one chain."""
    rounds: int = 20000
    """Arcs relieved at most."""
    patience: int = 24
    """Arcs in a row that could not give before the search ends, ."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Where there is nothing more to gain."""

    bounds: Floats
    """Utilisation that arcs of each tier need not go below, shape (tiers,)."""
    tier: Ints
    """Tier of each arc, shape (arcs,)."""
    overall: float
    """Utilisation that no plan can have a worst arc below."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Where an ejection chain stands."""

    ceiling: Floats
    """Utilisation that each arc may not exceed in the end, shape (arcs + 1,)."""
    depth: int
    """Steps that are left."""
    freed: tuple[int, ...]
    """Arcs that gave something up, which nothing may move to."""
    placed: frozenset[int]
    """Chunks that were moved, which stay."""

    def after(self, chunk: int, full: list[int]) -> Chain:
        """The chain one step on."""
        return Chain(self.ceiling, self.depth - 1, (*self.freed, *full), self.placed | {chunk})


class Search:
    """Improves an assignment in place."""

    def __init__(
        self,
        assignment: Assignment,
        candidates: Candidates,
        target: Target,
        deadline: Deadline,
        limits: Limits | None = None,
    ) -> None:
        self.assignment = assignment
        self.candidates = candidates
        self._tier = np.append(target.tier, len(target.bounds))
        """Tier of each arc; the padding is one of its own."""
        self.target = np.append(target.bounds, np.inf)[self._tier] + TOLERANCE
        """Utilisation that each arc need not go below."""
        self.overall = target.overall
        self.deadline = deadline
        self.limits = limits or Limits()
        self.given_up: Bools = np.zeros(len(self.target), dtype=np.bool_)
        self.given_up[-1] = True
        self._inner = np.zeros(len(self.target), dtype=np.bool_)
        self._inner[assignment.network.inner] = True
        self._left = 0
        self._journal: list[Move] = []

    def run(self) -> None:
        """Relieves arcs, worst first, until each is at its target or cannot give."""
        failed = 0
        for _ in range(self.limits.rounds):
            arc = self._worst()
            if arc is None or self.deadline.passed():
                return
            if self.relieve(arc):
                failed = 0
                continue
            self.given_up[arc] = True
            failed += 1
            if failed >= self.limits.patience:
                return

    def _worst(self) -> int | None:
        used = self.assignment.utilization()
        eligible = (used > self.target) & ~self.given_up & self._inner
        if not eligible.any():
            return None
        return int(np.where(eligible, used, -1.0).argmax())

    def relieve(self, arc: int) -> bool:
        """Takes something off an arc without making any arc as full as it was.

        First without making any other tier worse than it is; only an arc that keeps
        the whole plan from its bound may then do even that.
        """
        used = float(self.assignment.utilization()[arc])
        if self._try(arc, self._ceiling(arc, used)):
            return True
        if used <= self._goal(arc):
            return False
        return self._try(arc, np.maximum(self.target, used - 10 * TOLERANCE))

    def _ceiling(self, arc: int, used: float) -> Floats:
        """As full as each arc may get: its tier's worst, save in the tier of ``arc``."""
        tiers = self._tier_worst()
        tiers[self._tier[arc]] = used - 10 * TOLERANCE
        ceiling: Floats = np.maximum(self.target, tiers[self._tier])
        return ceiling

    def _goal(self, arc: int) -> float:
        """What the plan as a whole need not go below: the bound, and a QP's worth."""
        units = [self.assignment.unit_of(chunk) for chunk in self.assignment.members(arc)]
        step = max(units, default=0.0) * float(self.assignment.network.per_gbps[arc])
        return self.overall * (1 + SLACK) + step

    def _tier_worst(self) -> Floats:
        worst = np.zeros(int(self._tier.max()) + 1)
        np.maximum.at(worst, self._tier, self.assignment.utilization())
        return worst

    def _try(self, arc: int, ceiling: Floats) -> bool:
        if self._shift(arc, ceiling):
            return True
        self._left = self.limits.budget
        self._journal.clear()
        return self._eject(arc, Chain(ceiling, self.limits.depth, (arc,), frozenset()))

    def _shift(self, arc: int, ceiling: Floats) -> bool:
        """Moves the chunk, or part of one, that leaves the least full path, directly."""
        best: tuple[float, int, int, Ints] | None = None
        for chunk in self.assignment.members(arc):
            found = self._best_shift(chunk, ceiling)
            if found is not None and (best is None or found[0] < best[0] - TOLERANCE):
                best = (found[0], chunk, found[1], found[2])
                if best[0] <= TOLERANCE:
                    break
        if best is None:
            return False
        self.assignment.move(best[1], best[2], best[3])
        return True

    def _best_shift(self, chunk: int, ceiling: Floats) -> tuple[float, int, Ints] | None:
        """The best move of a chunk below the ceiling: how far over targets, QPs, path."""
        assignment = self.assignment
        flow, qps = assignment.flow[chunk], assignment.qps(chunk)
        paths = self.paths(flow)
        if len(paths) < 2:  # noqa: PLR2004 - with one path there is no choice
            return None
        old = assignment.path[chunk]
        unit = float(assignment.unit[flow])
        sizes = [qps] if qps == 1 else [qps, *_parts(qps)]
        for size in sizes:
            assignment.add(flow, -unit * size, old)
            after = assignment.used_with(flow, unit * size, paths)
            assignment.add(flow, unit * size, old)
            fits = (after <= ceiling[paths]).all(axis=1)
            if fits.any():
                over = np.maximum(after - self.target[paths], 0.0).max(axis=1)
                row = int(np.where(fits, over, np.inf).argmin())
                return float(over[row]), size, self.trimmed(paths[row])
        return None

    def _eject(self, arc: int, chain: Chain) -> bool:
        """Takes one chunk, or one QP of one, off an arc by a chain of moves.

        On failure the assignment is as it was.
        """
        assignment = self.assignment
        for chunk in assignment.members(arc):
            if chunk in chain.placed:
                continue
            for size in dict.fromkeys((assignment.qps(chunk), 1)):
                if self._left <= 0 or self.deadline.passed():
                    return False
                if self._eject_chunk(chunk, size, chain):
                    return True
        return False

    def _eject_chunk(self, chunk: int, size: int, chain: Chain) -> bool:
        assignment = self.assignment
        flow, old = assignment.flow[chunk], assignment.path[chunk]
        paths = self.paths(flow)
        gbps = float(assignment.unit[flow]) * size
        assignment.add(flow, -gbps, old)
        after = assignment.used_with(flow, gbps, paths)
        assignment.add(flow, gbps, old)
        over = after > chain.ceiling[paths]
        for row in self._order(after, over, paths, chain):
            self._left -= 1
            full = paths[row][over[row]].tolist()
            if full and not chain.depth:
                return False
            if self._place(chunk, size, paths[row], full, chain):
                return True
        return False

    def _order(self, after: Floats, over: Bools, paths: Ints, chain: Chain) -> list[int]:
        """Rows worth a try: fewest full arcs first, none that the chain has freed."""
        full = over.sum(axis=1)
        barred = np.isin(paths, chain.freed).any(axis=1) | (full > MOST_FULL_ARCS)
        order = np.lexsort((after.max(axis=1, initial=0.0), full))
        return [int(row) for row in order if not barred[row]][: self.limits.width]

    def _place(self, chunk: int, size: int, path: Ints, full: list[int], chain: Chain) -> bool:
        """Puts a chunk on a path and frees each arc that this overfills."""
        move = self.assignment.move(chunk, size, self.trimmed(path))
        done = len(self._journal)
        self._journal.append(move)
        further = chain.after(chunk if move.split is None else move.split, full)
        for arc in full:
            while self.assignment.utilization_of(arc) > chain.ceiling[arc]:
                if not self._eject(arc, further):
                    while len(self._journal) > done:
                        self.assignment.undo(self._journal.pop())
                    return False
        return True

    def paths(self, flow: int) -> Ints:
        """Candidate paths of a flow."""
        network, flows = self.assignment.network, self.assignment.flows
        return self.candidates.between(
            int(network.terminal[flows.source[flow]]),
            int(network.terminal[flows.destination[flow]]),
        )

    def trimmed(self, path: Ints) -> Ints:
        """A path without its padding."""
        kept: Ints = path[path != self.assignment.network.pad]
        return kept


def _parts(qps: int) -> list[int]:
    """Sizes to try when a whole chunk is too much: halves, down to one QP."""
    sizes = []
    while qps > 1:
        qps //= 2
        sizes.append(qps)
    return sizes
