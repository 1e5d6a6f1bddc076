"""Local search: take load off the worst arcs, one after another, until none can be relieved.

The badness of an arc is its utilisation over the proven bound of its tier. So a core that is
over-subscribed on purpose does not hide a collision below it. If less is proven for an arc's own
switches and zones than for its tier, that is its target. So one switch with few links left does not
hide collisions at the others. The worst arc gives up a chunk, whole if that helps enough, otherwise
some of its QPs, to the candidate path that is then least above its targets. Where every candidate
is too full, an *ejection chain* makes room. No step makes any arc as bad as the
relieved one was, so the sorted list of badness falls and the search ends. Only if the fullest arc
of all is then still above what is worth having, it may be relieved at the cost of other tiers. What
that gained stays as a ceiling.

In this way an arc whose tier has a high bound may become fuller than the fullest arc was. If it is
then also above the bound on the worst arc of any plan, all changes are undone, and the search runs
again with the fullest arc's utilisation as its ceiling.

An ejection chain moves what is in the way, and what is then in its way. A chunk moves to a path
where one or two arcs are then too full. Each of these ejects a chunk of its own, and so on to a
small depth. In a healthy fabric this is the exchange along an alternating path (Kempe) that edge
colouring uses. A chain that does not succeed is undone as a whole. Each chain has a budget, since
the search would explode otherwise: chains that succeed are short, and long searches usually fail.

Arcs wait in a heap. An entry is checked when it is taken, so no entry has to be found when loads
change.

``place_greedily`` places flows one by one, the largest first, each where it is least above its
targets. It serves what colouring cannot place: irregular graphs, holes left by dead links, NICs
with several uplinks, and QPs that rounding left over. Search improves the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heapify, heappop, heappush

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


LITTLE = 0.1
"""An arc no more than this above its target, relative to it, is worth no chain where its tier is as
full elsewhere."""
WORTH_SEARCHING = 0.01
"""A plan this close to its bound in whole QPs, relative to it, is not worth making a tier worse."""


@dataclass(frozen=True, slots=True, eq=False)
class LoadTarget:
    """The utilisation below which there is nothing more to gain."""

    bounds: Floats
    """Utilisation that arcs of each tier need not go below, shape (tiers,)."""
    overall: float
    """Utilisation that the worst arc of every plan reaches."""
    arcs: Floats | None = None
    """Utilisation that each arc, and the padding, need not go below; None where only bounds of
    tiers are known."""


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
        """Utilisation that each arc and the padding need not go below, shape (arcs + 1,)."""
        if target.arcs is not None:
            self.target = target.arcs + TOLERANCE
            self.enough = np.maximum(self.enough, self.target)
        """``enough`` is the greater of an arc's target and its tier's bound. Arcs up to this, or
        less than a QP above it, are worth little effort."""
        self.overall = target.overall
        self.limits = limits or SearchLimits()
        self.chains = Chains(assignment, candidates, deadline, self.limits)
        self._scale = np.where(target.bounds > 0, target.bounds, max(target.overall, 1e-6))
        """Unit of badness for each tier: its bound, if there is one."""
        self._sparing = False
        """Whether arcs near enough to their bounds are left alone, so that few more flows move."""
        self.cap: Floats = np.full(len(self.target), np.inf)
        """Utilisation that no arc may exceed any more, except up to its target; also of the
        padding."""
        self._heap: list[tuple[float, int]] = []
        self._mark = 0
        """Length of the journal before the newest trial."""
        self._allow_effort()

    def _allow_effort(self) -> None:
        self._spare, self._beneath = self.limits.spare, self.limits.beneath
        self._effort = self.limits.effort

    def run(self) -> None:
        """Relieve arcs, the worst first, until each is at its target or cannot be relieved.

        No arc that paths can choose ends up fuller than the fullest such arc was, except up to the
        bound on the worst arc of any plan.
        """
        self._never_fuller(self._improve)

    def _never_fuller(self, improve: Callable[[], None]) -> None:
        """Run a search, and again below a ceiling if it made the fullest arc fuller."""
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
        """Move only the ``movable`` flows as far as that helps; others only if it is not enough.

        It is enough if no arc is over ``enough`` by more than one QP.
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
        """Relieve arcs by moving any flow; return whether no arc is still too full.

        Too full means over ``enough`` by more than one QP. Also False if effort or time ran out.
        """
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
        """Find the arcs that are over their targets."""
        network = self.assignment.network
        used, tier = self.assignment.utilization()[network.chosen], self.tier[network.chosen]
        over = np.flatnonzero(used > self.target[network.chosen])
        badness = used[over] / self._scale[tier[over]]
        self._heap = list(zip((-badness).tolist(), network.chosen[over].tolist(), strict=True))
        heapify(self._heap)

    def _badness(self, arc: int) -> float:
        return self.assignment.utilization_of(arc) / float(self._scale[self.tier[arc]])

    def _worst(self) -> int | None:
        """Take the worst arc over its target from the heap; None if there is none left."""
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
        """Put the arcs that the newest changes touched back into the heap."""
        arcs = {relieved}
        for step in self.assignment.journal[self._mark :]:
            arcs.update(self.assignment.path[step.chunk].tolist())
        for arc in arcs:
            if self.assignment.utilization_of(arc) > self.target[arc]:
                heappush(self._heap, (-self._badness(arc), arc))

    def _relieve(self, arc: int) -> bool:
        """Take something off an arc without making any arc as bad as it was."""
        less = self._badness(arc) - 10 * TOLERANCE
        ceiling = np.append(less * self._scale, np.inf)
        return self._try(arc, ceiling)

    def _fullest(self) -> int:
        """Return the fullest of the arcs that paths can choose; the padding if there are none."""
        chosen = self.assignment.network.chosen
        if not len(chosen):
            return self.assignment.network.pad
        return int(chosen[self.assignment.utilization()[chosen].argmax()])

    def _over_goal(self, arc: int, bound: float | None = None) -> bool:
        """Return whether an arc is over a bound by more than one QP.

        The bound is ``enough`` if none is given. A small part of it is allowed on top.
        """
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
        # Arcs within a QP of their bounds are worth only a limited effort in all.
        over = self._over_goal(arc)
        left = self._effort if over else self._spare
        freed = self.chains.free(arc, ceiling, min(self.limits.budget, left))
        self._effort -= self.chains.spent
        if not over:
            self._spare -= self.chains.spent
        return freed

    def _free_beneath(self, arc: int, ceiling: Ceiling) -> bool:
        """Try a short chain for an arc that the certificate does not depend on."""
        freed = self.chains.free(arc, ceiling, min(self.limits.budget // 4, self._beneath))
        self._beneath -= self.chains.spent
        return freed

    def _shift(self, arc: int, ceiling: Ceiling) -> bool:
        """Move, directly, the chunk or part of one that ends up least over its targets."""
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
        """Return a chunk's best move below the ceiling: the excess over targets, QPs and path.

        The excess is that of ``_excess``. Returns None if no move fits.
        """
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
        """Return how far each path's worst arc is over its target, relative to its tier's bound."""
        scale = np.append(self._scale, 1.0)[self.tier[paths]]
        excess: Floats = (np.maximum(used - self.target[paths], 0.0) / scale).max(axis=1)
        return excess

    def settle(self, chunk: int) -> None:
        """Give a chunk without a path the best one, or split it over several paths.

        The best path is the least over its targets, among equals the least full. A chunk that would
        overfill it is split by halves, down to single QPs.
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
    """Return sizes to try when moving a chunk: all of it, then halves, down to one QP."""
    sizes = [qps]
    while sizes[-1] > 1:
        sizes.append(sizes[-1] // 2)
    return sizes


def place_greedily(search: Search, flow: Ints, first_qp: Ints, last_qp: Ints) -> list[int]:
    """Place QPs of flows, given as parallel columns; return the flows that have no path."""
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
