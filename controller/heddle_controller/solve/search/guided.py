"""Guided local search: bring every arc within a limit, where direct moves and chains end.

An arc above its limit gives up a chunk to the path that costs least, also where that makes another
arc too full. Cost grows with the square of an arc's excess, times its weight. An arc that nothing
relieves for free becomes heavier, so that load gathers nowhere for long (guided local search,
Voudouris and Tsang 1999; breakout, Morris 1993). The best that was met is kept. Effort is counted
in steps, and numbers are drawn from a fixed seed, so that equal input gives equal output.
"""

from __future__ import annotations

import random

import numpy as np

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.solve.search.chains import TOLERANCE, Chains

_SEED = 7
_SAMPLE = 4
"""Chunks of an arc that are weighed against each other at most."""
_HEAVIER = 1.0
"""What an arc weighs more after each step that did not relieve it for free."""


class GuidedSearch:
    """Moves chunks of one assignment, in place."""

    def __init__(self, chains: Chains, limit: Floats) -> None:
        """``limit`` is the utilisation allowed on each arc and the padding, shape (arcs + 1,)."""
        self._chains = chains
        self._assignment = chains.assignment
        network = self._assignment.network
        self._per_gbps = network.per_gbps
        self._most: Floats = np.full(len(limit), np.inf)
        """Gbit/s that each arc may carry; no end to it where there is no choice."""
        chosen = network.chosen
        self._most[chosen] = (limit[chosen] + TOLERANCE) / self._per_gbps[chosen]
        self._weight = np.ones(len(limit))
        self._random = random.Random(_SEED)  # noqa: S311 - nothing secret
        self._over: dict[int, None] = {}
        """Arcs above their limits, in an order that is always the same."""
        self.steps = 0
        """Steps made."""

    def run(self, patience: int, effort: int) -> bool:
        """Moves chunks until no arc is above its limit; returns whether that was reached.

        Ends after ``effort`` steps, or ``patience`` of them in a row without gain. The assignment
        is left at the least total excess met.
        """
        assignment = self._assignment
        journal = assignment.journal
        journal.clear()
        over = np.flatnonzero(assignment.load > self._most)
        self._over = dict.fromkeys(over.tolist())
        total = least = float(self._excess(assignment.load[over], over).sum())
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

    def _excess(self, load: Floats, arcs: Ints) -> Floats:
        """What arcs count for that carry so much, by their excess; any shape."""
        over = np.maximum(load - self._most[arcs], 0.0) * self._per_gbps[arcs]
        excess: Floats = over * (1 + over)
        return excess

    def _step(self) -> float:
        """One move off an arc that is too full; by how much the excess of all grows."""
        arc = self._random.choice([*self._over])
        members = self._chains.members(arc)
        if len(members) > _SAMPLE:
            members = self._random.sample(members, _SAMPLE)
        best: tuple[float, int, int, Ints] | None = None
        for chunk in members:
            qps = self._assignment.qps(chunk)
            for size in (qps, 1) if qps > 1 else (1,):
                found = self._best(chunk, size, arc)
                if found is not None and (best is None or found[0] < best[0] - TOLERANCE):
                    best = found[0], chunk, size, found[1]
        if best is None:
            return 0.0
        cost, chunk, size, path = best
        if cost > -TOLERANCE:
            self._weight[arc] += _HEAVIER
        return self._move(chunk, size, path)

    def _best(self, chunk: int, size: int, arc: int) -> tuple[float, Ints] | None:
        """The cheapest move of so many QPs of a chunk off an arc, and its cost; None if none."""
        assignment, flow = self._assignment, self._assignment.flow[chunk]
        paths = self._chains.paths(flow)
        old, gbps = assignment.path[chunk], assignment.unit_of(chunk) * size
        assignment.add(flow, -gbps, old)
        cost = self._cost(flow, gbps, paths).sum(axis=1)
        stay = float(self._cost(flow, gbps, old).sum())
        assignment.add(flow, gbps, old)
        cost[(paths == arc).any(axis=1)] = np.inf
        least = float(cost.min(initial=np.inf))
        if least == np.inf:
            return None
        row = self._random.choice(np.flatnonzero(cost <= least + TOLERANCE).tolist())
        return least - stay, paths[row]

    def _cost(self, flow: int, gbps: float, arcs: Ints) -> Floats:
        """Weighted excess that arcs gain if they carry that much more of a flow; any shape."""
        after = self._excess(self._assignment.load_with(flow, gbps, arcs), arcs)
        cost: Floats = after - self._excess(self._assignment.load[arcs], arcs)
        return cost * self._weight[arcs]

    def _move(self, chunk: int, size: int, path: Ints) -> float:
        assignment, old = self._assignment, self._assignment.path[chunk]
        new = self._chains.trimmed(path)
        touched = np.array([*dict.fromkeys([*old.tolist(), *new.tolist()])], dtype=np.int64)
        before = self._excess(assignment.load[touched], touched).sum()
        piece = chunk if size == assignment.qps(chunk) else assignment.split(chunk, size)
        assignment.move(piece, new)
        load = assignment.load[touched]
        for arc, full in zip(touched.tolist(), (load > self._most[touched]).tolist(), strict=True):
            if full:
                self._over[arc] = None
            else:
                self._over.pop(arc, None)
        return float(self._excess(load, touched).sum() - before)
