"""Guided local search: bring every arc within a limit where direct moves and chains fail.

An arc above its limit gives up a chunk to the path that costs least, even if another arc becomes
too full by that. Cost grows with the square of an arc's excess, times its weight. An arc that
nothing relieves for free becomes heavier, so that load does not stay anywhere for long (guided
local search, Voudouris and Tsang 1999; breakout, Morris 1993). The best assignment that was met is
kept. Effort is counted in steps, and random numbers come from a given seed, so that equal input
gives equal output.
"""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, starts
from heddle_controller.solve.search.search import TOLERANCE, Chains

_SAMPLE = 4
"""Most chunks of an arc that are compared in one step."""
_HEAVIER = 1.0
"""Growth of an arc's weight after each step that did not relieve it for free."""


class GuidedSearch:
    """Moves chunks of one assignment, in place."""

    def __init__(self, chains: Chains, limit: Floats, seed: int) -> None:
        """Prepare. ``limit`` is the utilisation allowed on arcs and padding, shape (arcs + 1,)."""
        self._chains = chains
        self._assignment = chains.assignment
        network = self._assignment.network
        self._per_gbps = network.per_gbps
        self._limit: Floats = np.full(len(limit), np.inf)
        """Utilisation that each arc may have; infinite for arcs that paths cannot choose."""
        self._limit[network.chosen] = limit[network.chosen] + TOLERANCE
        self._counts = self._excess(self._assignment.load, slice(None))
        """Current penalty of each arc for its excess."""
        self._weight = np.ones(len(limit))
        self._random = random.Random(seed)  # noqa: S311 - nothing secret
        self._over: dict[int, None] = {}
        """Arcs above their limits, in an order that is always the same."""
        self._ways: dict[int, Ints] = {}
        """Candidate paths of each flow that was looked at, all of one width."""
        self._width = 0
        self._saved: Floats = np.full((2 * _SAMPLE, len(limit)), np.nan)
        """Working space for what leaving an arc saves, with a row for each move; NaN between
        steps."""
        self.steps = 0
        """Number of steps made."""

    def run(self, patience: int, effort: int) -> bool:
        """Move chunks until no arc is above its limit; return whether that was reached.

        Ends after ``effort`` steps, or after ``patience`` steps in a row without gain. The
        assignment is left at the least total penalty that was met.
        """
        assignment = self._assignment
        journal = assignment.journal
        journal.clear()
        over = np.flatnonzero(self._counts)
        self._over = dict.fromkeys(over.tolist())
        total = least = float(self._counts[over].sum())
        at, end = 0, patience
        while self._over and self.steps < min(end, effort) and not self._chains.deadline.passed():
            self.steps += 1
            total += self._step()
            if total < least - TOLERANCE:
                least, at, end = total, len(journal), self.steps + patience
        done = not self._over
        if not done:
            assignment.roll_back(at)
        journal.clear()
        return done

    def _excess(self, load: Floats, arcs: Ints | slice) -> Floats:
        """Return the penalty of arcs with the given loads in Gbit/s, by their excess; any shape."""
        over = load * self._per_gbps[arcs]
        over -= self._limit[arcs]
        np.maximum(over, 0.0, out=over)
        excess: Floats = over * (1 + over)
        return excess

    def _step(self) -> float:
        """Make one move off an arc that is too full; return by how much the total penalty grows."""
        arc = self._random.choice([*self._over])
        members = self._chains.members(arc)
        if len(members) > _SAMPLE:
            members = self._random.sample(members, _SAMPLE)
        qps = self._assignment.qps
        moves = [(chunk, size) for chunk in members for size in dict.fromkeys((qps(chunk), 1))]
        if not moves:
            return 0.0
        ways = self._ways_of([self._assignment.flow[chunk] for chunk in members])
        return self._best(arc, moves, [ways[self._assignment.flow[chunk]] for chunk, _ in moves])

    def _best(self, arc: int, moves: list[tuple[int, int]], ways: list[Ints]) -> float:
        """Make the cheapest of some moves of QPs off an arc, if any; return as ``_step`` does.

        Args:
            arc: The arc.
            moves: Chunks, and how many QPs of each may move.
            ways: Candidate paths of each move.
        """
        paths = np.concatenate(ways)
        first = starts(np.array([len(some) for some in ways], dtype=np.int64))
        cost = self._costs(moves, paths, first)
        cost[(paths == arc).any(axis=1)] = np.inf
        least = cost.min(initial=np.inf)
        if least == np.inf:
            return 0.0
        row = self._random.choice(np.flatnonzero(cost <= least + TOLERANCE).tolist())
        if least > -TOLERANCE:
            self._weight[arc] += _HEAVIER
        chunk, size = moves[int(first.searchsorted(row, side="right")) - 1]
        return self._move(chunk, size, paths[row])

    def _ways_of(self, flows: list[int]) -> dict[int, Ints]:
        """Return the candidate paths of at least these flows, all of one width."""
        known = self._ways
        for flow in flows:
            if flow in known:
                continue
            paths = self._chains.paths(flow)
            more = self._width - paths.shape[1]
            if more < 0:
                known.clear()
                self._width = paths.shape[1]
                return self._ways_of(flows)
            if more:
                pad = self._assignment.network.pad
                paths = np.pad(paths, ((0, 0), (0, more)), constant_values=pad)
            known[flow] = paths
        return known

    def _costs(self, moves: list[tuple[int, int]], paths: Ints, first: Ints) -> Floats:
        """Return the weighted penalty that each path adds if QPs move to it.

        Args:
            moves: Chunks, and how many QPs of each.
            paths: Paths of all moves, shape (paths, hops).
            first: Where the paths of each move begin, shape (moves + 1,).
        """
        assignment = self._assignment
        flows = [assignment.flow[chunk] for chunk, _ in moves]
        gbps = assignment.unit[flows] * [size for _, size in moves]
        move = np.repeat(np.arange(len(moves)), np.diff(first))
        old = [assignment.path[chunk] for chunk, _ in moves]
        left = np.concatenate(old)
        mover = np.repeat(np.arange(len(moves)), [len(path) for path in old])
        if assignment.takes_turns:
            each = [*zip(flows, gbps.tolist(), strict=True)]
            more = np.concatenate(
                [
                    assignment.load_with(*flow, paths[low:high])
                    for flow, (low, high) in zip(each, pairwise(first.tolist()), strict=True)
                ]
            )
            less = np.concatenate(
                [assignment.load_without(*flow, path) for flow, path in zip(each, old, strict=True)]
            )
        else:
            more = assignment.load[paths] + gbps[move, None]
            less = assignment.load[left] - gbps[mover]
        adds = (self._excess(more, paths) - self._counts[paths]) * self._weight[paths]
        saves = (self._counts[left] - self._excess(less, left)) * self._weight[left]
        # Arcs that a path shares with the old one are left and used again.
        self._saved[mover, left] = saves
        again = self._saved[move[:, None], paths]
        self._saved[mover, left] = np.nan
        cost: Floats = np.where(np.isnan(again), adds, again).sum(axis=1)
        cost -= np.bincount(mover, saves, len(moves))[move]
        return cost

    def _move(self, chunk: int, size: int, path: Ints) -> float:
        assignment, old = self._assignment, self._assignment.path[chunk]
        new = self._chains.trimmed(path)
        touched = [*dict.fromkeys([*old.tolist(), *new.tolist()])]
        before = self._counts[touched]
        piece = chunk if size == assignment.qps(chunk) else assignment.split(chunk, size)
        assignment.move(piece, new)
        after = self._excess(assignment.load[touched], np.array(touched))
        self._counts[touched] = after
        for arc, count in zip(touched, after.tolist(), strict=True):
            if count > 0:
                self._over[arc] = None
            else:
                self._over.pop(arc, None)
        return float((after - before).sum())
