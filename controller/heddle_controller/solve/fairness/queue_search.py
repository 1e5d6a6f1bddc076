"""Among equally fair plans, finds one that packets in queues serve sooner.

Where QPs cross several overloaded links in a row, jobs take longer than their fair rates say, up to
a fifth with lossless switches. How much depends on which flows meet where, and no simple count
tells: neither how many QPs cross two full links, nor how many links are full. So in small cases, in
plans made from scratch, placements are tried as if they were played. The slowest flow of each job
keeps its fair rate, no tier gets a fuller link, and no job ends later. Flows that are faster than
the slowest of their job may become slower, because a job waits for its slowest.

Each round changes the best placements so far at random. An arc that becomes too full gives other
QPs away, as in an ejection chain. Effort is counted in uses of arcs, and random numbers come from
a fixed seed.

Fair rates do not see this: they are equal for placements that differ by a fifth in packets. A queue
divides a link by what waits in it, and a switch that holds too much from one link pauses all of
that link (PFC). So a link idles while what it could send waits behind what it cannot. All
placements of a round are played at once. Every flow sends what it asks for in the same time, all
flows begin together, and NICs send as fast as they can. In one step, each link sends from all that
waits at its tail in proportion, as far as its speed and the room at its head allow. The emulator
measures with finer steps, and shares nothing with this.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import (
    Bools,
    Floats,
    Ints,
    numbered,
    ranges,
    stable_order,
    starts,
)
from heddle_controller.model.plan import arc_loads
from heddle_controller.solve.assignment import Assignment, exported_paths
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.fairness.placements import MOST_USES, Placements, is_small
from heddle_controller.solve.options import Deadline
from heddle_controller.solve.phases import phased_jobs
from heddle_controller.solve.search.search import LoadTarget, Search

COARSE_PLAY, FINE_PLAY = 40.0, 100.0
"""Steps that the fastest link needs for what it may be asked for: enough to rank placements, and to
tell whether the best one is worth it."""
_FULLEST = 7.5
"""Utilisation of the fullest link above which flows send less, so that steps do not get more."""
_PAUSE = 3.0
"""What may wait at a link's head before it pauses, in steps of the fastest link."""
_DEALS = 2
"""Rounds in which a NIC redistributes what QPs that end leave."""
_SOME, _END = 1e-9, 1e-6
"""What counts as nothing of a QP in a step, and of a job in all, in steps of the fastest link."""


class LosslessQueues:
    """Some paths and their queues. Answers questions for any number of QPs on each path."""

    def __init__(self, paths: Placements, jobs: Ints, used: float, message: float) -> None:
        """Index the paths.

        Args:
            paths: The paths.
            jobs: Job of each path.
            used: Utilisation of the fullest arc, in all placements.
            message: ``COARSE_PLAY`` or ``FINE_PLAY``.
        """
        crossed = np.concatenate(paths.arcs)
        self.arc, at = numbered(crossed)
        self.job, job_at = numbered(jobs)
        self.jobs = len(job_at)
        self.hops: Ints = np.array([len(path) for path in paths.arcs], dtype=np.int64)
        self.first: Ints = np.cumsum(self.hops) - self.hops
        """Where the arcs of each path begin in ``arc``."""
        capacity = paths.capacity[crossed[at]]
        fastest = float(capacity.max())
        self.speed: Floats = capacity / fastest
        """Speed of each arc, where the fastest has 1."""
        steps = message * min(1.0, _FULLEST / used)
        self.size: Floats = paths.unit / fastest * steps
        """What a QP of each path sends, in steps of the fastest link."""
        self.least = used * steps + int(self.hops.max()) - 1
        """Steps that a placement needs if the fullest arc is never idle."""

    def work(self, counts: Ints) -> Ints:
        """Return the uses of arcs in each placement; the cost of a step grows with them."""
        uses: Ints = (counts > 0) @ self.hops
        return uses

    def ends(self, counts: Ints, most: float) -> Floats:
        """Return the step in which each job has sent all, shape (placements, jobs).

        It is infinite for jobs that have not ended by then. Some never end: in graphs without tiers
        links may pause each other in a circle.

        Args:
            counts: The QPs on each path, shape (placements, paths).
            most: Most steps to play.
        """
        play = _Play(self, counts)
        ends = np.full(len(counts) * self.jobs, np.inf)
        step = 0
        while step < most and np.isinf(ends).any():
            play.advance()
            step += 1
            left = np.bincount(play.job, play.missing, len(ends))
            ends[np.isinf(ends) & (left < _END)] = step
        return ends.reshape(len(counts), self.jobs)


class _Play:
    """Placements side by side, each with links of its own. A row is a path that has QPs."""

    def __init__(self, queues: LosslessQueues, counts: Ints) -> None:
        placement, path = np.nonzero(counts)
        hops = queues.hops[path]
        first = np.cumsum(hops) - hops
        use = ranges(queues.first[path], queues.first[path] + hops)
        arc = queues.arc[use] + np.repeat(placement, hops) * len(queues.speed)
        self.job = placement * queues.jobs + queues.job[path]
        """Job of each row; jobs of different placements are different."""
        self._source, self._end = first, first + hops - 1
        inner = np.ones(len(arc), dtype=np.bool_)
        inner[first] = False
        self._later = np.flatnonzero(inner)
        """All uses of arcs but the first of each row."""
        self._nic, self._link = arc[first], arc[self._later]
        self._before = arc[self._later - 1]
        self._qps = counts[placement, path].astype(np.float64)
        self._speed = np.tile(queues.speed, len(counts))
        self._unsent = self._qps * queues.size[path]
        self.missing = self._unsent.copy()
        """What has not arrived of each row."""
        self._waiting = np.zeros(len(self._later))
        self._served = np.zeros(len(arc))
        self._held = np.zeros(len(self._speed))

    def advance(self) -> None:
        """Take one step."""
        room = np.minimum(self._speed, np.maximum(_PAUSE - self._held, 0.0))
        queue = np.bincount(self._link, self._waiting, len(room))
        part = np.minimum(room / np.maximum(queue, _SOME), 1.0)
        leaves = self._waiting * part[self._link]
        self._served[self._later] = leaves
        self._served[self._source] = self._sent(room)
        self._waiting += self._served[self._later - 1] - leaves
        self._held = np.bincount(self._before, self._waiting, len(room)).astype(np.float64)
        self.missing -= self._served[self._end]

    def _sent(self, room: Floats) -> Floats:
        """Return what leaves each source; NICs serve their QPs alike."""
        sent, left = np.zeros(len(self._unsent)), room.copy()
        for _ in range(_DEALS):
            rest = self._unsent - sent
            qps = np.where(rest > _SOME, self._qps, 0.0)
            of_nic = np.bincount(self._nic, qps, len(room))
            deal = np.minimum((left / np.maximum(of_nic, 1.0))[self._nic] * qps, rest)
            sent += deal
            left = np.maximum(left - np.bincount(self._nic, deal, len(room)), 0.0)
        self._unsent -= sent
        return sent


_ROUNDS, _VAIN = 12, 2
"""Most rounds, and most in a row without a better placement."""
_DRAWN, _DEPTH, _TWICE = 256, 4, 2
"""Placements drawn at a time, arcs relieved in each, and how often they are drawn in a round. The
second time, those of the first are changed, too."""
_PLAYED, _KEPT = 64, 8
"""Most placements that are played in a round, and that the next round begins with."""
_EFFORT = 4_000_000
"""Uses of arcs times steps played in all, some 0.1 s. It is a count, not a time, so that plans are
reproducible."""
_SLOW = 3.0
"""Most time that a plan may take, as a multiple of what its fullest link needs. Plans beyond it are
left as they are: their links pause each other in a circle."""
_WORTH = 0.01
"""Relative gain below which nothing is moved. Packets are not told apart more finely."""
_TOLERANCE = 1e-6


def shortened(
    assignment: Assignment, candidates: Candidates, target: LoadTarget, deadline: Deadline
) -> Assignment | None:
    """Return a copy of the assignment on which jobs end sooner, or None if none was found."""
    network, flows = assignment.network, assignment.flows
    if not is_small(assignment) or len(phased_jobs(flows)):
        return None
    loads = arc_loads(network.arc_count, flows, exported_paths(assignment, renumber=True))
    if (loads * network.per_gbps[:-1]).max(initial=0.0) <= 1 + _TOLERANCE:
        return None
    copied = assignment.copy()
    paths = Placements(Search(copied, candidates, target, deadline), longer=False)
    if not paths.arcs or sum(map(len, paths.arcs)) > MOST_USES:
        return None
    best = _QueueSearch(paths, flows.job[paths.flow]).run(deadline)
    return copied if paths.put_in_place(best) else None


class _QueueSearch:
    """Placements of one plan, and what no change may make worse."""

    def __init__(self, paths: Placements, jobs: Ints) -> None:
        self._paths, self._random = paths, np.random.default_rng(0)
        crossed = np.concatenate(paths.arcs)
        arc, at = numbered(crossed)
        arcs = crossed[at]
        self._crossed: Bools = np.zeros((len(paths.arcs), len(arcs)), dtype=np.bool_)
        self._crossed[np.repeat(np.arange(len(paths.arcs)), [*map(len, paths.arcs)]), arc] = True
        self._gbps: Floats = self._crossed * paths.unit[:, None]
        """What a QP of each path puts on each arc, shape (paths, arcs)."""
        loads = paths.counts @ self._gbps
        used = float((loads / paths.capacity[arcs]).max())
        room = max(used, 1.0) * paths.capacity
        self._room = np.maximum(paths.room_in_tiers(room)[arcs], loads) * (1 + _TOLERANCE)
        """Gbit/s that each arc may carry."""
        self._by_job = stable_order(jobs[paths.first])
        """Flows by job."""
        _, counts = np.unique(jobs[paths.first], return_counts=True)
        self._job_starts = starts(counts)[:-1]
        self._slowest = self._least(paths.counts[None])[0] * (1 - _TOLERANCE)
        """Least value of each job's flows."""
        self._coarse = LosslessQueues(paths, jobs, used, COARSE_PLAY)
        self._fine = LosslessQueues(paths, jobs, used, FINE_PLAY)

    def _least(self, counts: Ints) -> Floats:
        """Return the least value of each job's flows, shape (placements, jobs)."""
        values = self._paths.evaluate(counts)[0][:, self._by_job]
        least: Floats = np.minimum.reduceat(values, self._job_starts, axis=1)
        return least

    def run(self, deadline: Deadline) -> Ints:
        """Return the best placement found; it is the current one unless another is worth it."""
        best: Ints = self._paths.counts[None]
        ends = self._coarse.ends(best, self._coarse.least * _SLOW)
        if np.isinf(ends).any():
            return self._paths.counts
        limit, effort, vain = ends[0], float(_EFFORT), 0
        most, known = float(limit.max()), {best.tobytes()}
        for _ in range(_ROUNDS):
            if ends[0].max() <= self._coarse.least or vain == _VAIN or deadline.passed():
                break
            tried = self._tried(best, known)
            works = np.cumsum(self._coarse.work(tried)) * most
            tried = tried[works <= effort]
            effort -= float(works[: len(tried)].max(initial=0.0))
            found = self._coarse.ends(tried, most)
            good = (found <= limit).all(axis=1)
            best, found = np.concatenate([best, tried[good]]), np.concatenate([ends, found[good]])
            order = np.argsort(found.sum(axis=1), kind="stable")[:_KEPT]
            vain = 0 if found[order[0]].sum() < ends[0].sum() else vain + 1
            best, ends = best[order], found[order]
        return self._worthy(best) if len(best) > 1 else self._paths.counts

    def _worthy(self, best: Ints) -> Ints:
        """Return the best of some placements in fine steps, if that is worth it."""
        current = self._paths.counts
        limit = self._fine.ends(current[None], self._fine.least * _SLOW)[0]
        if np.isinf(limit).any():
            return current
        ends = self._fine.ends(best, float(limit.max()))
        ends[(ends > limit).any(axis=1)] = np.inf
        sums = ends.sum(axis=1)
        first = int(sums.argmin())
        worthy: Ints = best[first] if sums[first] <= limit.sum() * (1 - _WORTH) else current
        return worthy

    def _tried(self, best: Ints, known: set[bytes]) -> Ints:
        """Return new placements that are changed from some of ``best`` and are as fair."""
        drawn = best
        for _ in range(_TWICE):
            drawn = np.concatenate([drawn, self._drawn(drawn)])
        drawn = np.unique(drawn, axis=0)
        self._random.shuffle(drawn)
        new = np.array([counts.tobytes() not in known for counts in drawn])
        tried: Ints = drawn[new][:_PLAYED]
        known.update(counts.tobytes() for counts in tried)
        return tried[(self._least(tried) >= self._slowest).all(axis=1)] if len(tried) else tried

    def _drawn(self, best: Ints) -> Ints:
        """Return changed placements that keep all arcs within their room."""
        of_flow = self._paths.of_flow
        drawn = best[self._random.integers(len(best), size=_DRAWN)]
        path, _ = self._picked(drawn > 0)
        self._move(drawn, path, (of_flow == of_flow[path][:, None]))
        for _ in range(_DEPTH):
            over = drawn @ self._gbps > self._room
            rows = np.flatnonzero(over.any(axis=1))
            if not len(rows):
                break
            arc, _ = self._picked(over[rows])
            crossed, some = self._crossed[:, arc].T, drawn[rows]
            path, _ = self._picked((some > 0) & crossed)
            self._move(some, path, (of_flow == of_flow[path][:, None]) & ~crossed)
            drawn[rows] = some
        kept: Ints = drawn[(drawn @ self._gbps <= self._room).all(axis=1)]
        return kept

    def _move(self, drawn: Ints, path: Ints, others: Bools) -> None:
        """Move one QP or all QPs of a path to another of the marked paths, in each placement."""
        into, some = self._picked(others)
        rows = np.flatnonzero(some)
        path, into = path[rows], into[rows]
        size = np.where(self._random.random(len(rows)) < 1 / 2, drawn[rows, path], 1)
        drawn[rows, path] -= size
        drawn[rows, into] += size

    def _picked(self, marked: Bools) -> tuple[Ints, Bools]:
        """Return a random marked column of each row, and whether there is one."""
        picked: Ints = (self._random.random(marked.shape) * marked).argmax(axis=1)
        some: Bools = np.logical_or.reduce(marked, axis=1)
        return picked, some
