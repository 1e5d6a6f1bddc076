"""How long jobs take on many placements at once if queues fill and switches pause links (PFC).

Fair rates do not see this: they are equal for placements that differ by a fifth in packets. A queue
divides a link by what waits in it, and a switch that holds too much from one link pauses all of
that link. So a link idles while what it could send waits behind what it cannot.

Every flow sends what it asks for in the same time, all flows begin together, and NICs send as fast
as they can. In one step, each link sends from all that waits at its tail in proportion, as far as
its speed and the room at its head allow. The emulator measures with finer steps, and shares nothing
with this.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, numbered, ranges
from heddle_controller.solve.fairness.placements import Placements

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
        self._todo = self._qps * queues.size[path]
        self.missing = self._todo.copy()
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
        sent, left = np.zeros(len(self._todo)), room.copy()
        for _ in range(_DEALS):
            rest = self._todo - sent
            qps = np.where(rest > _SOME, self._qps, 0.0)
            of_nic = np.bincount(self._nic, qps, len(room))
            deal = np.minimum((left / np.maximum(of_nic, 1.0))[self._nic] * qps, rest)
            sent += deal
            left = np.maximum(left - np.bincount(self._nic, deal, len(room)), 0.0)
        self._todo -= sent
        return sent
