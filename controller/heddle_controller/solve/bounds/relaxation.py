"""The linear relaxation: how far any splitting of flows could spread the load.

Flows between the same terminals are one commodity; a commodity divides itself freely
over its candidate paths. The sum of the tiers' worst utilisations, each in proportion to
its proven least, is made small: so a tapered core does not drown what happens beneath it.
A job of several phases puts the worst of them on an arc.

Each maximum is smoothed to the logarithm of a sum of exponentials, and the smooth function
made small by an accelerated gradient method, on the simplex of each commodity's shares
with entropy for distance (Nesterov, Smooth minimization of non-smooth functions, 2005;
Tseng, On accelerated proximal gradient methods, 2008; for flows in networks Bienstock and
Iyengar, Approximating fractional packings and coverings in O(1/epsilon) iterations, 2006).
The smoothing gets finer stage by stage. A step is two products with a sparse matrix; a
stage is a number of steps, never of seconds, so equal input gives equal output.

The gradient is a price of each arc. It is never trusted as a bound: ``prices`` turns it
into one that holds however far the method came, because any prices prove a bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.graphs import sparse
from heddle_controller.solve.commodities import LINEAR, Commodities
from heddle_controller.solve.network import Network
from heddle_controller.solve.options import Deadline

FRESH, _FINEST = 0.3, 0.001
"""Smoothing at first and at last: what it may add to a tier's worst, in parts of that, at most.

What it does add is a small part of that.
"""
REFINING = 0.3
"""Factor from the smoothing of one stage to the next."""
_STEPS = 150
"""Steps of one stage."""
ACCURACY = 3e-4
"""Relative distance of the optimum from the prices' bound that ends the search for it."""
COARSE_STEPS = 40
"""Steps of a stage after which more paths come."""
LOOK = 25
"""Steps between two looks at that distance."""
ROUNDING = 1e-12
"""Relative; values this close are equal."""
FLATTEST = 1e-4
"""Curvature that is tried first, in parts of the smooth function's own; doubled as need be."""
LEAST_SHARE = 1e-15
"""No share is quite 0: entropy could never raise it again."""
NEW_SHARE = 0.02
"""What a new path is given of its commodity."""


@dataclass(frozen=True, slots=True, eq=False)
class PhasedArcs:
    """Pairs of a job of several phases and an arc that some of them use; shapes (phased arcs,)."""

    job: Ints
    arc: Ints
    idle_price: Floats
    """Price of the arc to each of the job's phases that does not use it yet."""


def no_phased_arcs() -> PhasedArcs:
    """None, for flows whose loads simply add up."""
    none = np.empty(0, dtype=np.int64)
    return PhasedArcs(none, none, np.empty(0))


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """A solution of the relaxation."""

    shares: Floats
    """Part of its commodity on each candidate path, shape (paths,)."""
    prices: Floats
    """Price of each use of an arc (``Commodities.use_arc``), at least 0.

    For any job the prices of its phases on an arc add up to at most the arc's.
    """
    arc_prices: Floats
    """Price of each arc and the padding, at least 0, shape (arcs + 1,)."""
    phased_arcs: PhasedArcs
    """Pairs of a job of several phases and an arc that it uses."""


class _Loads:
    """Loads of arcs under shares, by the rule of the whole project, and smoothly.

    Rows are arcs, their loads told as utilisation in proportion to their tier's least;
    *slots* are pairs of a phase and an arc, *phased arcs* pairs of a job and an arc.
    """

    def __init__(self, network: Network, commodities: Commodities, scale: Floats) -> None:
        # Arcs that no candidate uses yet have a price too, while that is coarse.
        inner = network.inner[network.usable[network.inner]]
        self.arcs = np.union1d(inner, commodities.use_arc)
        row = np.searchsorted(self.arcs, commodities.use_arc)
        tier = network.fabric.structure.tier_of_arc[self.arcs]
        most = float(scale.max(initial=0.0))
        self.scale = np.where(scale > 0, scale, most or 1.0)[tier]
        """Of each row's tier."""
        order = np.argsort(tier, kind="stable")
        self.first = np.flatnonzero(np.diff(tier[order], prepend=-1))
        self.order, self.tier_count = order, len(self.first)
        self.tier_of = np.empty(len(self.arcs), dtype=np.int64)
        self.tier_of[order] = np.repeat(
            np.arange(self.tier_count), np.diff(np.append(self.first, len(order)))
        )
        self._phase(commodities, row)
        self.count = len(self.arcs) + len(self.phased_of_slot)
        place = np.where(self.slot >= 0, len(self.arcs) + self.slot, row)
        weight = commodities.demand[commodities.use_commodity] * (
            network.per_gbps[commodities.use_arc] / self.scale[row]
        )
        self.place, self.weight = place, weight
        shape = (self.count, commodities.path_count)
        self._matrix = sparse(weight, place, commodities.use_path, shape)
        self._transposed = self._matrix.T.tocsr()

    def _phase(self, commodities: Commodities, row: Ints) -> None:
        """Numbers slots and phased arcs, slots in order of their phased arcs."""
        width = len(self.arcs)
        self.slot = np.full(len(row), -1, dtype=np.int64)
        phased = np.flatnonzero(commodities.use_job != LINEAR)
        jobs, groups = commodities.use_job[phased], commodities.use_group[phased]
        keys = np.stack([groups, row[phased], jobs])
        slots, self.slot[phased] = np.unique(keys, axis=1, return_inverse=True)
        order = np.lexsort((slots[0], slots[1], slots[2]))
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        self.slot[phased] = rank[self.slot[phased]]
        code = (slots[2] * max(1, width) + slots[1])[order]
        self.first_slot = np.flatnonzero(np.diff(code, prepend=-1))
        sizes = np.diff(np.append(self.first_slot, len(code)))
        self.phased_of_slot = np.repeat(np.arange(len(sizes), dtype=np.int64), sizes)
        self.row_of_phased = slots[1][order][self.first_slot]
        self.job_of_phased = slots[2][order][self.first_slot]
        of_job = np.stack([commodities.job, commodities.group])
        job, count = np.unique(np.unique(of_job, axis=1)[0], return_counts=True)
        self.idle = count[np.searchsorted(job, self.job_of_phased)] - sizes
        """Phases of each phased arc's job that do not use it, shape (phased arcs,)."""

    def of(self, shares: Floats) -> Floats:
        """Loads under shares of all paths, shape (rows and slots,)."""
        return np.asarray(self._matrix @ shares, dtype=np.float64)

    def costs(self, slope: Floats) -> Floats:
        """What all of its commodity would cost on each path, shape (paths,)."""
        return np.asarray(self._transposed @ slope, dtype=np.float64)

    def rows(self, loads: Floats) -> Floats:
        """The load of each arc, in proportion to its tier's least."""
        rows = loads[: len(self.arcs)]
        if len(self.row_of_phased):
            heaviest = np.maximum.reduceat(loads[len(self.arcs) :], self.first_slot)
            rows = rows + np.bincount(self.row_of_phased, weights=heaviest, minlength=len(rows))
        return rows

    def worst(self, loads: Floats) -> float:
        """What is made small, exactly."""
        return float(np.maximum.reduceat(self.rows(loads)[self.order], self.first).sum())

    def smooth(self, loads: Floats, sharp: float) -> tuple[float, Floats]:
        """The smooth function and its slope by rows and slots; ``sharp`` is one over its unit."""
        width, part = len(self.arcs), np.empty(0)
        rows = loads[:width]
        if len(self.row_of_phased):
            slots = loads[width:]
            top = np.maximum.reduceat(slots, self.first_slot)
            grown = np.exp(sharp * (slots - top[self.phased_of_slot]))
            total = np.add.reduceat(grown, self.first_slot) + self.idle * np.exp(-sharp * top)
            heaviest = top + np.log(total) / sharp
            rows = rows + np.bincount(self.row_of_phased, weights=heaviest, minlength=width)
            part = grown / total[self.phased_of_slot]
        top = np.maximum.reduceat(rows[self.order], self.first)
        grown = np.exp(sharp * (rows - top[self.tier_of]))
        sums = np.add.reduceat(grown[self.order], self.first)
        slope = grown / sums[self.tier_of]
        slope = np.concatenate([slope, slope[self.row_of_phased][self.phased_of_slot] * part])
        return float((top + np.log(sums) / sharp).sum()), slope

    def idle_slope(self, loads: Floats, sharp: float, slope: Floats) -> Floats:
        """The slope by the load of a phase that does not use its arc yet, shape (phased arcs,)."""
        if not len(self.row_of_phased):
            return np.empty(0)
        slots = loads[len(self.arcs) :]
        top = np.maximum.reduceat(slots, self.first_slot)
        none = np.exp(-sharp * top)
        grown = np.exp(sharp * (slots - top[self.phased_of_slot]))
        total = np.add.reduceat(grown, self.first_slot) + self.idle * none
        idle: Floats = slope[self.row_of_phased] * none / total
        return idle


class Descent:
    """The relaxation being solved; shares and prices get better with every stage."""

    def __init__(
        self,
        network: Network,
        commodities: Commodities,
        scale: Floats,
        shares: Floats | None = None,
    ) -> None:
        self.network, self.commodities = network, commodities
        self.done = not commodities.count
        """Whether the shares are as good as the prices say any could be."""
        self._first, self._of = commodities.first_path[:-1], commodities.path_commodity
        self.shares: Floats = np.ones(commodities.path_count) if shares is None else shares
        self._bound = 0.0
        self._curve = 0.0
        if self.done:
            return
        self._loads = _Loads(network, commodities, scale)
        self.shares = self._whole(np.log(np.maximum(self.shares, LEAST_SHARE)))
        self._iterate = self.shares
        """Where the next stage begins; the best shares may be others."""
        self._best = self._loads.worst(self._loads.of(self.shares))
        self._slope: Floats = np.zeros(self._loads.count)
        self._idle: Floats = np.zeros(len(self._loads.row_of_phased))
        most = np.zeros(commodities.path_count)
        np.maximum.at(most, commodities.use_path, self._loads.weight)
        self._reach: Floats = np.maximum.reduceat(most, self._first)
        """The most that each commodity can put on an arc: what its distance is weighed by."""

    def _whole(self, logs: Floats) -> Floats:
        """Shares that add up to 1 in each commodity, from their logarithms and any constants."""
        grown = np.exp(logs - np.maximum.reduceat(logs, self._first)[self._of])
        shares: Floats = grown / np.add.reduceat(grown, self._first)[self._of]
        return shares

    @property
    def reached(self) -> float:
        """Worst utilisation of an arc under the best shares."""
        if not self.commodities.count:
            return 0.0
        rows = self._loads.rows(self._loads.of(self.shares))
        return float((rows * self._loads.scale).max())

    def coarsely(self, smoothing: float, deadline: Deadline) -> None:
        """One short stage, whose prices stand for themselves: more paths are to come."""
        if self.commodities.count:
            self._bound = 0.0
            self._run(smoothing, deadline, COARSE_STEPS)

    def refine(self, smoothing: float, deadline: Deadline) -> None:
        """Stage after stage from a smoothing to the finest, or until nothing is to be gained."""
        while not self.done and not deadline.passed():
            self._run(smoothing, deadline, _STEPS)
            if smoothing <= _FINEST:
                break
            smoothing = max(_FINEST, smoothing * REFINING)

    def _run(self, smoothing: float, deadline: Deadline, steps: int) -> None:
        """One stage. ``smoothing`` is as ``_FINEST`` has it."""
        loads, reach = self._loads, self._reach[self._of]
        tiers = loads.tier_count
        sharp = tiers * max(math.log(len(loads.arcs)), 1.0) / (smoothing * max(self._best, 1e-300))
        self._curve = max(self._curve / 4, FLATTEST * sharp)
        steepest = sharp * float(self._reach.sum())  # no function of these is more curved
        shares = ahead = self._iterate
        now = goes = loads.of(shares)
        value, slope = loads.smooth(now, sharp)
        part = 1.0
        for step in range(steps):
            if deadline.passed():
                break
            middle = (1 - part) * now + part * goes
            base, slope = loads.smooth(middle, sharp)
            cost = loads.costs(slope) / reach
            logs = np.log(ahead)
            while True:
                further = self._whole(logs - cost / (part * self._curve))
                further = np.maximum(further, LEAST_SHARE)
                then = loads.of(further)
                after = (1 - part) * now + part * then
                reached, _ = loads.smooth(after, sharp)
                far = float((reach * further * (np.log(further) - logs)).sum())
                allowed = base + float((after - middle) @ slope) + part * part * self._curve * far
                if reached <= allowed + ROUNDING * abs(base) or self._curve > steepest:
                    break
                self._curve *= 2
            if reached > value and part < 1:
                ahead, goes, part = shares, now, 1.0
                continue
            shares = (1 - part) * shares + part * further
            now, ahead, goes, value = after, further, then, reached
            part = 2 / (1 + math.sqrt(1 + 4 / part**2))
            self._note(shares, now)
            if step % LOOK == LOOK - 1 and self._close(now, sharp):
                break
        self._iterate = shares
        if not self.done:
            self._close(now, sharp)

    def extended(self, commodities: Commodities, scale: Floats) -> Descent:
        """The same over more paths, which stand behind those known of each commodity."""
        known, now = self.commodities, commodities
        counts = np.diff(known.first_path)
        place = np.arange(known.path_count) + np.repeat(
            now.first_path[:-1] - known.first_path[:-1], counts
        )
        new = np.diff(now.first_path) - counts
        shares = NEW_SHARE / np.maximum(new, 1)[now.path_commodity]
        shares[place] = self._iterate
        other = Descent(self.network, now, scale, shares)
        other._curve = self._curve
        return other

    def _note(self, shares: Floats, loads: Floats) -> None:
        """Keeps the shares if none before were better."""
        worst = self._loads.worst(loads)
        if worst <= self._best:
            self._best, self.shares = worst, shares

    def _close(self, loads: Floats, sharp: float) -> bool:
        """Keeps the prices if none before proved more; whether that proves enough."""
        slope = self._loads.smooth(loads, sharp)[1]
        cheapest = np.minimum.reduceat(self._loads.costs(slope), self._first)
        proven = float(cheapest.sum())
        if proven > self._bound or not self._slope.any():
            self._bound, self._slope = proven, slope
            self._idle = self._loads.idle_slope(loads, sharp, slope)
        self.done = self._best - self._bound <= ACCURACY * self._best
        return self.done

    def relaxation(self) -> Relaxation:
        """The best shares and prices so far."""
        commodities, arc_prices = self.commodities, np.zeros(self.network.arc_count + 1)
        if not commodities.count:
            return Relaxation(self.shares, np.empty(0), arc_prices, no_phased_arcs())
        loads = self._loads
        prices = self._slope / np.append(
            loads.scale, loads.scale[loads.row_of_phased][loads.phased_of_slot]
        )
        arc_prices[loads.arcs] = prices[: len(loads.arcs)]
        rows = loads.row_of_phased
        phased_arcs = PhasedArcs(
            loads.job_of_phased, loads.arcs[rows], self._idle / loads.scale[rows]
        )
        return Relaxation(self.shares, prices[loads.place], arc_prices, phased_arcs)


def power_of_two(size: float) -> float:
    """The least power of two that is not below a size; 1 for none.

    To divide by one rounds nothing.
    """
    fraction, exponent = math.frexp(size)
    return math.ldexp(1.0, exponent - (fraction == 0.5)) if size > 0 else 1.0  # noqa: PLR2004
