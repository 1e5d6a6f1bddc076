"""Makes small plans fairer by trying placements and computing their fair rates.

Exchanges (``qp_swap``) and neighbourhoods (``slowest``) use the levels that arcs have now. But
moving a few QPs changes these levels where flows have unlike rates or numbers of QPs, NICs have
several uplinks, or jobs have phases. So where there are few paths in all, many moves are tried at a
time (``filling``), and the best one by the sorted values of all flows is made. A move takes QPs off
an overloaded arc that a slow flow crosses. If all placements are few, all are tried. Otherwise a
random walk follows. No arc is filled beyond its limit. Effort is counted in steps, and random
numbers come from a fixed seed.

A placement says how many QPs are on each path. The value of a flow is its fair rate divided by its
demand and by its job's priority.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints
from heddle_controller.solve.fairness.placements import MOST_USES, Placements, is_small
from heddle_controller.solve.search.search import Search

EFFORT = 500_000
"""Uses of arcs looked at in all. It is a count, not a time, so that plans are reproducible."""
_AT_ONCE = 64
"""Moves tried together."""
SLOW = 3
"""Slow flows helped at a time."""
_WAYS = 8
"""Paths tried for one chunk. Those that avoid the arc in question come first, then the emptiest."""
WALKERS = 64
"""Placements in the random walk, which change side by side."""
_STEPS = 120
"""Most random changes of each walker."""
_GATHER = 20
"""Number of steps after which half of the walkers go on from the best and the rest start again."""
MOST_PLACES, _WHOLE = 20_000, 1024
"""Most placements in all for which every one is tried, and how many are tried together."""
VAIN = 2
"""Periods of ``_GATHER`` steps in a row without a better placement, after which the walk ends."""
HEAT = 0.1
"""Typical relative loss of the slowest flow that a walker accepts at first. It falls to 0."""
_WORTH = 1e-4
"""Relative gain of the slowest flow below which it counts as nothing to gain."""
_TOLERANCE = 1e-9

Move = tuple[int, int, int]
"""A move of QPs: the old path, the new path, and how many QPs."""


def climb(search: Search) -> bool:
    """Move QPs while the sorted values of all flows rise; return whether anything was moved."""
    if not is_small(search.assignment):
        return False
    moved, known = False, 0
    for longer in (False, True):  # longer ways only where the others leave something to gain
        paths = Placements(search, longer=longer)
        if len(paths.flow) <= known or sum(map(len, paths.arcs)) > MOST_USES:
            break
        known = len(paths.flow)
        climber = _HillClimb(search, paths)
        moved |= paths.put_in_place(climber.run())
        if not climber.could_gain():
            break
    return moved


class _HillClimb:
    """Improves the placement of QPs on candidate paths, beginning with the current one."""

    def __init__(self, search: Search, paths: Placements) -> None:
        self._search, self._paths = search, paths
        flows = search.assignment.flows
        self._best: Floats = 1 / flows.weight[paths.flow[paths.first]]
        """The value that each flow has if it gets all it asks for."""
        self._counts = paths.counts.copy()
        self._effort = EFFORT
        self._cost = sum(len(paths.arcs[path]) for path in np.flatnonzero(self._counts).tolist())
        """Approximate number of uses of arcs in a placement."""
        self._sets = [frozenset(path.tolist()) for path in paths.arcs]
        self._values: Floats = np.empty(0)
        """Value of each flow in the current placement."""
        self._used: dict[int, float] = {}
        """Utilisation of each arc in use in the current placement."""
        self._look()
        self._grain = max(1e-5 * float(self._values.min()), 1e-300)
        self._room = (max(1.0, *self._used.values()) + _TOLERANCE) * paths.capacity
        """Gbit/s that each arc may carry, so that none gets fuller than the fullest is now."""

    def run(self) -> Ints:
        """Move QPs as long as effort is left and something is gained; return the placement.

        An arc may become as full as the fullest arc, but only if that helps the slowest flow.
        Otherwise it may become as full as the fullest arc of its tier.
        """
        least, begin, of_tiers = (
            self._sorted(self._values)[0],
            self._counts,
            self._paths.room_in_tiers(self._room),
        )
        if self.could_gain():
            self._run()
            if self._sorted(self._values)[0] > least or self._fits(of_tiers):
                return self._counts
            self._counts = begin
            self._look()
        self._room = of_tiers
        self._run()
        return self._counts

    def _fits(self, room: Floats) -> bool:
        """Whether the current placement keeps each arc within ``room``, in Gbit/s."""
        return all(
            used * self._paths.capacity[arc] <= room[arc] for arc, used in self._used.items()
        )

    def _run(self) -> None:
        while self._effort > 0 and not self._search.chains.deadline.passed():
            if not self._step(self._single()):
                break
        if not self.could_gain():
            return
        spreads = self._spreads()
        if spreads is not None:
            self._try_all(spreads)
        elif self._wander():
            while self._effort > 0 and self._step(self._single()):
                pass

    def could_gain(self) -> bool:
        """Whether the least value may still rise, as far as simple bounds tell.

        It cannot if the slowest flow gets all it asks for, or if flows that all have to cross one
        arc already share it as evenly as possible.
        """
        least = self._values.min()
        if least >= self._best.min() * (1 - _WORTH):
            return False
        for arc in self._hot():
            held = np.array([arc in arcs for arcs in self._sets])
            bound = np.logical_and.reduceat(held, self._paths.first) & (
                self._paths.job[self._paths.first] == NONE
            )
            asked = (1 / self._paths.per_rate[self._paths.first])[bound].sum()
            if asked * least * (1 + _WORTH) > self._paths.capacity[arc]:
                return False
        return True

    def _sorted(self, values: Floats) -> Floats:
        """Return values ascending, rounded to a small unit so that equal ones compare as equal."""
        return np.sort(np.round(values / self._grain), axis=-1)

    def _look(self) -> None:
        values, loads, arcs = self._paths.evaluate(self._counts[None])
        self._values = values[0]
        self._used = dict(
            zip(arcs.tolist(), (loads[0] / self._paths.capacity[arcs]).tolist(), strict=True)
        )

    def _step(self, moves: list[list[Move]]) -> bool:
        """Make the best of some moves. Each is a list of moves made together.

        Returns False if none improves the sorted values.
        """
        held, best = self._sorted(self._values).tolist(), None
        for at in range(0, len(moves), _AT_ONCE):
            if self._effort <= 0 or self._search.chains.deadline.passed():
                break
            tried = moves[at : at + _AT_ONCE]
            self._effort -= len(tried) * self._cost
            counts = np.repeat(self._counts[None], len(tried), axis=0)
            for row, several in enumerate(tried):
                for out, into, qps in several:
                    counts[row, out] -= qps
                    counts[row, into] += qps
            values, loads, arcs = self._paths.evaluate(counts)
            fits = (loads <= self._room[arcs]).all(axis=1) & (counts >= 0).all(axis=1)
            for row in np.flatnonzero(fits).tolist():
                found = self._sorted(values[row]).tolist()
                if found > held:
                    held, best = found, counts[row]
        if best is None:
            return False
        self._counts = best
        self._look()
        return True

    def _slow(self) -> list[int]:
        """Return the flows of least value that do not get all they ask for."""
        order = np.argsort(self._values, kind="stable")
        low = order[(self._values < self._best * (1 - _WORTH))[order]]
        slow: list[int] = low[:SLOW].tolist()
        return slow

    def _hot(self) -> list[int]:
        """Return the overloaded arcs that slow flows cross, the fullest first."""
        found: dict[int, float] = {}
        for flow in self._slow():
            for path in self._held(flow):
                for arc in sorted(self._sets[path]):
                    if self._used[arc] > 1 + _TOLERANCE:
                        found[arc] = self._used[arc]
        return sorted(found, key=lambda arc: (-found[arc], arc))

    def _held(self, flow: int) -> list[int]:
        """Return the paths of a flow that have QPs."""
        low, high = int(self._paths.first[flow]), int(self._paths.last[flow])
        return (low + np.flatnonzero(self._counts[low:high])).tolist()

    def _elsewhere(self, path: int, arc: int) -> list[int]:
        """Return other paths of the same flow: first those that avoid an arc, then by emptiness.

        A flow that cannot avoid the arc may still leave more of it to others by using another path.
        """
        flow = int(self._paths.of_flow[path])
        others = [*range(int(self._paths.first[flow]), int(self._paths.last[flow]))]
        others.remove(path)
        others.sort(key=lambda other: (arc in self._sets[other], self._fullest(other), other))
        return others[:_WAYS]

    def _fullest(self, path: int) -> float:
        return max((self._used.get(arc, 0.0) for arc in self._sets[path]), default=0.0)

    def _across(self, arc: int) -> list[int]:
        """Return the paths with QPs that cross an arc."""
        held = np.flatnonzero(self._counts).tolist()
        return [path for path in held if arc in self._sets[path]]

    def _sizes(self, path: int) -> list[int]:
        most = int(self._counts[path])
        return sorted({1, max(1, most // 2), most})

    def _single(self) -> list[list[Move]]:
        """Return moves of QPs of one path off the overloaded arcs that slow flows cross."""
        return [
            [(path, other, qps)]
            for arc in self._hot()
            for path in self._across(arc)
            for other in self._elsewhere(path, arc)
            for qps in self._sizes(path)
        ]

    def _spreads(self) -> list[Ints] | None:
        """Return all ways to divide each flow's QPs among its paths; None if they are too many."""
        sizes = np.add.reduceat(self._counts, self._paths.first).tolist()
        widths = (self._paths.last - self._paths.first).tolist()
        many = (math.comb(qps + n - 1, n - 1) for qps, n in zip(sizes, widths, strict=True))
        if math.prod(many) > MOST_PLACES:
            return None
        return [_divided(qps, n) for qps, n in zip(sizes, widths, strict=True)]

    def _try_all(self, spreads: list[Ints]) -> None:
        """Try all placements and keep the best."""
        shape = [len(spread) for spread in spreads]
        best = self._sorted(self._values).tolist()
        for low in range(0, math.prod(shape), _WHOLE):
            high = min(low + _WHOLE, math.prod(shape))
            chosen = _places(np.arange(low, high), shape)
            counts = np.hstack([spread[at] for spread, at in zip(spreads, chosen, strict=True)])
            ranked, fits = self._ranked(counts)
            ranked[~fits] = -np.inf
            top = int(np.lexsort(ranked.T[::-1])[-1])
            if ranked[top].tolist() > best:
                best, self._counts = ranked[top].tolist(), counts[top]
        self._look()

    def _wander(self) -> bool:
        """Walk at random from many placements, keeping changes as in simulated annealing.

        Half of the walkers begin with the current placement, the others as hashing would place QPs.
        If the best placement found is better than the current one, it is kept and True returned.
        """
        random = np.random.default_rng(0)
        counts = np.concatenate(
            [np.repeat(self._counts[None], WALKERS // 2, axis=0), self._hashed(random)]
        )
        ranked, fits = self._ranked(counts)
        counts[~fits], ranked[~fits] = self._counts, ranked[0]
        held, vain = (best := ranked[0].copy()), 0
        place, gathered = self._counts, held.tolist()
        steps, step = min(_STEPS, self._effort // (WALKERS * self._cost)), 0
        for step in range(steps):
            if self._search.chains.deadline.passed():
                break
            if step and step % _GATHER == 0:
                vain = vain + 1 if best.tolist() <= gathered else 0
                if vain == VAIN:
                    break
                counts[:], ranked[:] = place, best
                counts[WALKERS // 2 :] = self._hashed(random)
                ranked, fits = self._ranked(counts)
                counts[~fits], ranked[~fits] = place, best
                gathered = best.tolist()
            trial = self._changed(counts, random)
            found, fits = self._ranked(trial)
            worse = np.maximum(ranked[:, 0] - found[:, 0], 0.0) / ranked[:, 0]
            patience = HEAT * (1 - step / steps)
            daring = random.random(WALKERS) < np.exp(-worse / patience)
            taken = fits & (_above(found, ranked) | (daring & (worse > 0)))
            counts[taken], ranked[taken] = trial[taken], found[taken]
            top = int(np.lexsort(ranked.T[::-1])[-1])
            if ranked[top].tolist() > best.tolist():
                best, place = ranked[top].copy(), counts[top].copy()
        self._effort -= (step + 1) * WALKERS * self._cost
        if best.tolist() <= held.tolist():
            return False
        self._counts = place
        self._look()
        return True

    def _ranked(self, counts: Ints) -> tuple[Floats, Bools]:
        """Return the sorted values of each placement, and whether it keeps arcs within limits."""
        values, loads, arcs = self._paths.evaluate(counts)
        fits: Bools = np.all(loads <= self._room[arcs], axis=1)
        return self._sorted(values), fits

    def _hashed(self, random: np.random.Generator) -> Ints:
        """Return placements with each QP on a random path, as hashing does.

        In half of the placements only the shortest paths of each flow are used.
        """
        counts = np.zeros((WALKERS - WALKERS // 2, len(self._paths.flow)), dtype=np.int64)
        length = np.array([len(path) for path in self._paths.arcs], dtype=np.int64)
        for low, high in zip(self._paths.first.tolist(), self._paths.last.tolist(), strict=True):
            qps, every = int(self._counts[low:high].sum()), np.arange(low, high)
            short = low + np.flatnonzero(length[low:high] == length[low:high].min())
            for begin, paths in enumerate((short, every)):
                even = np.full(len(paths), 1 / len(paths))
                rows = counts[begin::2]
                rows[:, paths] = random.multinomial(qps, even, len(rows))
        return counts

    def _changed(self, counts: Ints, random: np.random.Generator) -> Ints:
        """Return each placement with QPs of one to three flows moved to a random path."""
        changed, rows = counts.copy(), np.arange(len(counts))
        for turn in range(3):
            flow = random.integers(len(self._paths.first), size=len(counts))
            own = self._paths.of_flow == flow[:, None]
            out = (random.random(counts.shape) * (own & (changed > 0))).argmax(axis=1)
            into = (random.random(counts.shape) * own).argmax(axis=1)
            most = changed[rows, out]
            size = np.maximum(1, (most * random.choice([0.0, 0.5, 1.0], len(counts))).astype(int))
            size[random.random(len(counts)) < turn / 3] = 0
            changed[rows, out] -= size
            changed[rows, into] += size
        return changed


def _divided(qps: int, paths: int) -> Ints:
    """Return all ways to divide QPs among some paths, shape (ways, paths)."""
    bars = itertools.combinations(range(qps + paths - 1), paths - 1)
    places = np.array([*bars], dtype=np.int64).reshape(math.comb(qps + paths - 1, qps), paths - 1)
    return np.diff(places, axis=1, prepend=-1, append=qps + paths - 1) - 1


def _places(numbers: Ints, sizes: Sequence[int]) -> list[Ints]:
    """Decode numbers of combined choices into one choice for each flow.

    ``sizes`` is the number of choices of each flow. The result is as of ``np.unravel_index``, which
    is limited to 64 dimensions.
    """
    found = []
    for size in reversed(sizes):
        numbers, row = np.divmod(numbers, size)
        found.append(row)
    return found[::-1]


def _above(first: Floats, second: Floats) -> Bools:
    """Whether each row of ``first`` is at least that of ``second`` in lexicographic order."""
    differs = first != second
    place = differs.argmax(axis=1)
    rows = np.arange(len(first))
    above: Bools = ~differs.any(axis=1) | (first[rows, place] > second[rows, place])
    return above
