"""Local search: take load off the worst arcs, one after another, until none can give.

How bad an arc is, is its utilisation over the proven bound of its tier: so a core
that is over-subscribed on purpose does not hide a collision beneath it. Where an
arc's own switches and zones prove less than its tier, that is its target: so one
switch with few links left does not hide collisions at the others. The worst arc
gives up a chunk, whole if that helps enough, else some of its QPs, to the candidate
path that this leaves best. Where every candidate is too full, an *ejection chain*
(``chains``) makes room. No step makes any arc as bad as the one it relieves was, so
the sorted list of badness falls and the search ends. Only if the fullest arc of all
is then above what is worth having, it may be relieved at the cost of other tiers;
what that gained is kept as a ceiling.

An arc whose tier has a high bound may so end up fuller than the fullest was. Where it
is also above what no plan can have a worst arc below, everything is taken back, and
the search runs again with the fullest as its ceiling.

Arcs wait in a heap; an entry is checked when it is taken, so none has to be found
when loads change.

Places flows one by one, greatest first, each where it weighs least.

For what colouring cannot place: irregular graphs, holes left by dead links, NICs
with several uplinks, QPs that rounding left over. Search improves on the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush

import numpy as np

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.options import Deadline
from heddle_controller.solve.search.chains import TOLERANCE, Ceiling, Chains, SearchLimits

LITTLE = 0.1
"""How far above its target an arc is worth no chain, where its tier is as full elsewhere."""
WORTH_SEARCHING = 0.01
"""A plan this close to its bound, QPs being whole, is not worth a worse tier."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadTarget:
    """The load below which there is nothing more to gain."""

    bounds: Floats
    """Utilisation that arcs of each tier need not go below, shape (tiers,)."""
    overall: float
    """Utilisation that no plan can have a worst arc below."""
    arcs: Floats | None = None
    """The same of each arc and the padding, where more is known than of its tier."""


class Search:
    """Improves an assignment in place."""

    def __init__(
        self,
        assignment: Assignment,
        candidates: Candidates,
        target: LoadTarget,
        deadline: Deadline,
        limits: SearchLimits | None = None,
    ) -> None:
        self.assignment = assignment
        network = assignment.network
        self.tier = network.tier
        self.target = self.enough = network.by_tier(target.bounds + TOLERANCE, np.inf)
        """Utilisation that each arc and the padding need not go below."""
        if target.arcs is not None:
            self.target = target.arcs + TOLERANCE
            self.enough = np.maximum(self.enough, self.target)
        """Below this, and a QP's worth above, an arc is worth little trouble."""
        self.overall = target.overall
        self.limits = limits or SearchLimits()
        self.chains = Chains(assignment, candidates, deadline, self.limits)
        self._scale = np.where(target.bounds > 0, target.bounds, max(target.overall, 1e-6))
        """What badness is counted in, for each tier."""
        self._sparing = False
        """Whether what is full enough is left alone, so that few others move."""
        self.cap: Floats = np.full(len(self.target), np.inf)
        """Utilisation that each arc and the padding may not exceed any more."""
        self._heap: list[tuple[float, int]] = []
        self._mark = 0
        """Changes in the journal before the newest trial."""
        self._allow_effort()

    def _allow_effort(self) -> None:
        self._spare, self._beneath = self.limits.spare, self.limits.beneath
        self._effort = self.limits.effort

    def run(self) -> None:
        """Relieves arcs, worst first, until each is at its target or cannot give.

        No arc that there is a choice about ends up fuller than the fullest was, except
        up to what no plan can have a worst arc below.
        """
        self._never_fuller(self._improve)

    def _never_fuller(self, improve: Callable[[], None]) -> None:
        """Runs a search, and once more below a ceiling if it made the fullest arc fuller."""
        journal = self.assignment.journal
        journal.clear()
        most = max(self.assignment.utilization_of(self._fullest()), self.overall) + TOLERANCE
        improve()
        if self.assignment.utilization_of(self._fullest()) > most:
            self.assignment.roll_back(0)
            self.cap = np.minimum(self.cap, most)
            self._allow_effort()
            improve()
        journal.clear()

    def _improve(self) -> None:
        self._descend()
        fullest = self._fullest()
        while self._over_goal(fullest, self.overall) and not self._exhausted():
            used = self.assignment.utilization_of(fullest) - 10 * TOLERANCE
            ceiling = np.full(len(self._scale) + 1, used)
            ceiling[-1] = np.inf
            if not self._try(fullest, ceiling):
                break
            fullest = self._fullest()
        else:
            used = self.assignment.utilization_of(fullest) + TOLERANCE
            self.cap = np.minimum(self.cap, used)
            self._descend()

    def run_sparing(self, movable: frozenset[int]) -> None:
        """Moves some flows alone as far as that helps; others only if it is not enough.

        Enough is the bound of each tier and a QP's worth.
        """
        self._never_fuller(partial(self._improve_sparing, movable))

    def _improve_sparing(self, movable: frozenset[int]) -> None:
        self.chains.movable, self._sparing = movable, False
        self._descend()
        self.chains.movable, self._sparing = None, True
        self._survey()
        if any(self._over_goal(arc) for _, arc in self._heap):
            self._improve()

    def run_alone(self) -> bool:
        """Moves all flows as ``run_sparing`` moves those that it may; whether that is enough."""
        self._never_fuller(self._descend)
        self._survey()
        return not self._exhausted() and not any(self._over_goal(arc) for _, arc in self._heap)

    def _descend(self) -> None:
        self._survey()
        failed = 0
        for _ in range(self.limits.rounds):
            arc = self._worst()
            if arc is None or failed >= self.limits.patience or self._exhausted():
                return
            if self._relieve(arc):
                failed = 0
                self._note_changes(arc)
            else:
                failed += 1

    def _exhausted(self) -> bool:
        return self._effort <= 0 or self.chains.deadline.passed()

    def _survey(self) -> None:
        """Finds the arcs that are over their targets."""
        network = self.assignment.network
        used, tier = self.assignment.utilization()[network.chosen], self.tier[network.chosen]
        over = np.flatnonzero(used > self.target[network.chosen])
        badness = used[over] / self._scale[tier[over]]
        self._heap = list(zip((-badness).tolist(), network.chosen[over].tolist(), strict=True))
        heapify(self._heap)

    def _badness(self, arc: int) -> float:
        return self.assignment.utilization_of(arc) / float(self._scale[self.tier[arc]])

    def _worst(self) -> int | None:
        """Takes the worst arc over its target from the heap."""
        while self._heap:
            noted, arc = heappop(self._heap)
            if self.assignment.utilization_of(arc) <= self.target[arc]:
                continue
            badness = self._badness(arc)
            if badness >= -noted - TOLERANCE:
                if self._sparing and not self._over_goal(arc):
                    continue
                return arc
            heappush(self._heap, (-badness, arc))
        return None

    def _note_changes(self, relieved: int) -> None:
        """Puts the arcs that the newest changes touched back into the heap."""
        arcs = {relieved}
        for step in self.assignment.journal[self._mark :]:
            arcs.update(self.assignment.path[step.chunk].tolist())
        for arc in arcs:
            if self.assignment.utilization_of(arc) > self.target[arc]:
                heappush(self._heap, (-self._badness(arc), arc))

    def _relieve(self, arc: int) -> bool:
        """Takes something off an arc without making any arc as bad as it was."""
        less = self._badness(arc) - 10 * TOLERANCE
        ceiling = np.append(less * self._scale, np.inf)
        return self._try(arc, ceiling)

    def _fullest(self) -> int:
        """The fullest arc that there is a choice about."""
        chosen = self.assignment.network.chosen
        if not len(chosen):
            return self.assignment.network.pad
        return int(chosen[self.assignment.utilization()[chosen].argmax()])

    def _over_goal(self, arc: int, bound: float | None = None) -> bool:
        """Whether an arc is fuller than a bound, its tier's or that given, and a QP."""
        assignment = self.assignment
        least = float(self.enough[arc]) if bound is None else bound
        unit = max((assignment.unit_of(c) for c in assignment.members(arc)), default=0.0)
        goal = least * (1 + WORTH_SEARCHING) + unit * float(assignment.network.per_gbps[arc])
        return assignment.utilization_of(arc) > goal + TOLERANCE

    def _try(self, arc: int, of_tier: Floats) -> bool:
        ceiling = Ceiling(self.tier, of_tier, self.target, self.cap)
        self._mark = len(self.assignment.journal)
        if self._shift(arc, ceiling):
            return True
        used = self.assignment.utilization_of(arc)
        if used <= self.enough[arc]:
            return used > self.target[arc] * (1 + LITTLE) and self._free_beneath(arc, ceiling)
        # Within a QP of its bound an arc is worth only so much trouble in all.
        over = self._over_goal(arc)
        left = self._effort if over else self._spare
        freed = self.chains.free(arc, ceiling, min(self.limits.budget, left))
        self._effort -= self.chains.spent
        if not over:
            self._spare -= self.chains.spent
        return freed

    def _free_beneath(self, arc: int, ceiling: Ceiling) -> bool:
        """A short chain for an arc that the certificate does not depend on."""
        freed = self.chains.free(arc, ceiling, min(self.limits.budget // 4, self._beneath))
        self._beneath -= self.chains.spent
        return freed

    def _shift(self, arc: int, ceiling: Ceiling) -> bool:
        """Moves the chunk, or part of one, that ends up least over target, directly."""
        best: tuple[float, int, int, Ints] | None = None
        for chunk in self.chains.members(arc):
            self._effort -= 1
            found = self._best_shift(chunk, ceiling)
            if found is not None and (best is None or found[0] < best[0] - TOLERANCE):
                best = (found[0], chunk, found[1], found[2])
                if best[0] <= TOLERANCE:
                    break
        if best is None:
            return False
        _, chunk, size, path = best
        piece = chunk if size == self.assignment.qps(chunk) else self.assignment.split(chunk, size)
        self.assignment.move(piece, path)
        return True

    def _best_shift(self, chunk: int, ceiling: Ceiling) -> tuple[float, int, Ints] | None:
        """The best move of a chunk below the ceiling: how far over targets, QPs, path."""
        assignment, paths = self.assignment, self.chains.paths(self.assignment.flow[chunk])
        qps = assignment.qps(chunk)
        limit = ceiling.at(paths)
        for size in _parts(qps) if len(paths) > 1 else ():
            after = assignment.used_after_move(chunk, size, paths)
            fits = (after <= limit).all(axis=1)
            if fits.any():
                over = self._excess(after, paths)
                row = int(np.where(fits, over, np.inf).argmin())
                return float(over[row]), size, self.chains.trimmed(paths[row])
        return None

    def _excess(self, used: Floats, paths: Ints) -> Floats:
        """How far over target, in parts of its tier's bound, each path's worst arc is."""
        scale = np.append(self._scale, 1.0)[self.tier[paths]]
        excess: Floats = (np.maximum(used - self.target[paths], 0.0) / scale).max(axis=1)
        return excess

    def settle(self, chunk: int) -> None:
        """Gives a chunk without a path the best one, or several where one is too little.

        The best is the least over its targets, among equals the least full. A chunk
        that would overfill it is split by halves as far as that helps.
        """
        assignment, qps = self.assignment, self.assignment.qps(chunk)
        paths = self.chains.paths(assignment.flow[chunk])
        if not paths.shape[1]:
            return
        after = assignment.used_after_move(chunk, qps, paths)
        over = self._excess(after, paths)
        row = int(np.lexsort((after.sum(axis=1), after.max(axis=1), np.round(over, 9)))[0])
        if qps == 1 or len(paths) == 1 or over[row] <= 0.0:
            assignment.move(chunk, self.chains.trimmed(paths[row]))
            return
        piece = assignment.split(chunk, qps // 2)
        self.settle(chunk)
        self.settle(piece)


def _parts(qps: int) -> list[int]:
    """Sizes to try when moving a chunk: all of it, then halves, down to one QP."""
    sizes = [qps]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return sizes


def place_greedily(search: Search, flow: Ints, first_qp: Ints, last_qp: Ints) -> list[int]:
    """Places QPs of flows, parallel columns; returns flows that no path exists for."""
    assignment = search.assignment
    gbps = assignment.unit[flow] * (last_qp - first_qp + 1)
    order = np.argsort(-gbps, kind="stable")
    columns = (flow[order].tolist(), first_qp[order].tolist(), last_qp[order].tolist())
    stuck = []
    for row, first, last in zip(*columns, strict=True):
        paths = search.chains.paths(row)
        if not len(paths):
            stuck.append(row)
        elif search.chains.deadline.passed():  # any path is better than none
            assignment.move(assignment.place(row, first, last), search.chains.trimmed(paths[0]))
        else:
            search.settle(assignment.place(row, first, last))
    return stuck
