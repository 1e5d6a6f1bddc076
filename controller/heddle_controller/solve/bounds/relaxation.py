"""The linear relaxation: how far splitting flows freely could spread the load.

Flows between the same terminals form one commodity, which divides itself freely over its candidate
paths. The sum of the tiers' worst utilisations is minimised, each relative to its proven least, so
that a tapered core does not hide what happens below it. A job with several phases puts its worst
phase on an arc.

Each maximum is smoothed to the logarithm of a sum of exponentials. An accelerated gradient method
minimises the smooth function on the simplex of each commodity's shares, with entropy as distance
(Nesterov, Smooth minimization of non-smooth functions, 2005; Tseng, On accelerated proximal
gradient methods, 2008; for flows in networks Bienstock and Iyengar, Approximating fractional
packings and coverings in O(1/epsilon) iterations, 2006). The smoothing gets finer stage by stage. A
step is two products with a sparse matrix. Stages are counted in steps and not in seconds, so equal
input gives equal output.

The gradient is a price of each arc. It is not used as a bound itself: ``prices`` turns it into one
that holds however far the method came, because any prices prove a bound.
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
"""First and last smoothing: the most that it may add to a tier's worst utilisation, relative to it.

In practice it adds a small part of that."""
REFINING = 0.3
"""Factor from the smoothing of one stage to that of the next."""
_STEPS = 150
"""Most steps of one stage."""
ACCURACY = 3e-4
"""Distance between the best value and the prices' bound, relative to the value, that ends the
search."""
COARSE_STEPS = 40
"""Steps of a stage that is followed by more paths."""
LOOK = 25
"""Steps between two checks of that distance."""
ROUNDING = 1e-12
"""Relative difference up to which values count as equal."""
FLATTEST = 1e-4
"""Curvature that is tried first, relative to that of the smooth function. It is doubled as
needed."""
LEAST_SHARE = 1e-15
"""Least value of a share, since entropy could never raise a share of 0."""
NEW_SHARE = 0.02
"""Share of its commodity that all new paths get together."""


@dataclass(frozen=True, slots=True, eq=False)
class PhasedArcs:
    """Pairs of a job with several phases and an arc that some phase uses; shapes (phased arcs,)."""

    job: Ints
    arc: Ints
    idle_price: Floats
    """Price of the arc for each of the job's phases that does not use it yet."""


def no_phased_arcs() -> PhasedArcs:
    """Return no pairs, for flows whose loads simply add up."""
    none = np.empty(0, dtype=np.int64)
    return PhasedArcs(none, none, np.empty(0))


@dataclass(frozen=True, slots=True, eq=False)
class Relaxation:
    """A solution of the relaxation."""

    shares: Floats
    """Part of its commodity on each candidate path, shape (paths,)."""
    prices: Floats
    """Price of each use of an arc (``Commodities.use_arc``), at least 0.

    The prices of a job's phases on an arc add up to at most the arc's price."""
    arc_prices: Floats
    """Price of each arc and the padding, at least 0, shape (arcs + 1,)."""
    phased_arcs: PhasedArcs
    """Pairs of a job with several phases and an arc that it uses."""


class _Loads:
    """Loads of arcs under shares of paths, both exact and smoothed.

    Rows are arcs, with loads as utilisation relative to their tier's proven least. *Slots* are
    pairs of a phase and an arc, *phased arcs* pairs of a job and an arc.
    """

    def __init__(self, network: Network, commodities: Commodities, scale: Floats) -> None:
        # Arcs that no candidate uses yet have a price, too, while smoothing is coarse.
        inner = network.inner[network.usable[network.inner]]
        self.arcs = np.union1d(inner, commodities.use_arc)
        row = np.searchsorted(self.arcs, commodities.use_arc)
        tier = network.fabric.structure.tier_of_arc[self.arcs]
        most = float(scale.max(initial=0.0))
        self.scale = np.where(scale > 0, scale, most or 1.0)[tier]
        """The proven least of each row's tier, shape (rows,)."""
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
        """Number slots and phased arcs, with slots in the order of their phased arcs."""
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
        """Number of phases of each phased arc's job that do not use it, shape (phased arcs,)."""

    def of(self, shares: Floats) -> Floats:
        """Return loads under shares of all paths, shape (rows + slots,)."""
        return np.asarray(self._matrix @ shares, dtype=np.float64)

    def costs(self, slope: Floats) -> Floats:
        """Return what each path would cost if it carried all of its commodity, shape (paths,)."""
        return np.asarray(self._transposed @ slope, dtype=np.float64)

    def rows(self, loads: Floats) -> Floats:
        """Return the load of each arc, relative to its tier's proven least."""
        rows = loads[: len(self.arcs)]
        if len(self.row_of_phased):
            heaviest = np.maximum.reduceat(loads[len(self.arcs) :], self.first_slot)
            rows = rows + np.bincount(self.row_of_phased, weights=heaviest, minlength=len(rows))
        return rows

    def worst(self, loads: Floats) -> float:
        """Return the exact value that is minimised: the sum of the tiers' worst loads."""
        return float(np.maximum.reduceat(self.rows(loads)[self.order], self.first).sum())

    def smooth(self, loads: Floats, sharp: float) -> tuple[float, Floats]:
        """Return the smooth function and its slope by rows and slots.

        ``sharp`` is the inverse of the unit in which exponents are counted: the larger, the less
        smooth.
        """
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
        """Return the slope by the load of a phase that does not use its arc yet, (phased arcs,)."""
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
    """The solver of the relaxation. Shares and prices get better with every stage."""

    def __init__(
        self,
        network: Network,
        commodities: Commodities,
        scale: Floats,
        shares: Floats | None = None,
    ) -> None:
        self.network, self.commodities = network, commodities
        self.done = not commodities.count
        """Whether the shares are as good as the prices prove possible."""
        self._first, self._of = commodities.first_path[:-1], commodities.path_commodity
        self.shares: Floats = np.ones(commodities.path_count) if shares is None else shares
        self._bound = 0.0
        self._curve = 0.0
        if self.done:
            return
        self._loads = _Loads(network, commodities, scale)
        self.shares = self._whole(np.log(np.maximum(self.shares, LEAST_SHARE)))
        self._iterate = self.shares
        """Shares with which the next stage begins; ``shares`` are the best ones so far."""
        self._best = self._loads.worst(self._loads.of(self.shares))
        self._slope: Floats = np.zeros(self._loads.count)
        self._idle: Floats = np.zeros(len(self._loads.row_of_phased))
        most = np.zeros(commodities.path_count)
        np.maximum.at(most, commodities.use_path, self._loads.weight)
        self._reach: Floats = np.maximum.reduceat(most, self._first)
        """The most that each commodity can put on an arc, which weighs its distance."""

    def _whole(self, logs: Floats) -> Floats:
        """Return shares that sum to 1 in each commodity, from logarithms of any scale."""
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
        """Run one short stage and use its prices alone, since more paths follow."""
        if self.commodities.count:
            self._bound = 0.0
            self._run(smoothing, deadline, COARSE_STEPS)

    def refine(self, smoothing: float, deadline: Deadline) -> None:
        """Run stages from a smoothing to the finest, or until nothing more can be gained."""
        while not self.done and not deadline.passed():
            self._run(smoothing, deadline, _STEPS)
            if smoothing <= _FINEST:
                break
            smoothing = max(_FINEST, smoothing * REFINING)

    def _run(self, smoothing: float, deadline: Deadline, steps: int) -> None:
        """Run one stage. ``smoothing`` has the meaning of ``_FINEST``."""
        loads, reach = self._loads, self._reach[self._of]
        tiers = loads.tier_count
        sharp = tiers * max(math.log(len(loads.arcs)), 1.0) / (smoothing * max(self._best, 1e-300))
        self._curve = max(self._curve / 4, FLATTEST * sharp)
        steepest = sharp * float(self._reach.sum())  # the smooth function is never more curved
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
        """Return the solver over more paths, which come after the known paths of each commodity."""
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
        """Keep the shares if they are at least as good as the best so far."""
        worst = self._loads.worst(loads)
        if worst <= self._best:
            self._best, self.shares = worst, shares

    def _close(self, loads: Floats, sharp: float) -> bool:
        """Keep the prices if they prove more than earlier ones; return ``done``."""
        slope = self._loads.smooth(loads, sharp)[1]
        cheapest = np.minimum.reduceat(self._loads.costs(slope), self._first)
        proven = float(cheapest.sum())
        if proven > self._bound or not self._slope.any():
            self._bound, self._slope = proven, slope
            self._idle = self._loads.idle_slope(loads, sharp, slope)
        self.done = self._best - self._bound <= ACCURACY * self._best
        return self.done

    def relaxation(self) -> Relaxation:
        """Return the best shares and prices so far."""
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
    """Return the least power of two that is not below a size; 1 for size 0.

    Division by a power of two causes no rounding.
    """
    fraction, exponent = math.frexp(size)
    return math.ldexp(1.0, exponent - (fraction == 0.5)) if size > 0 else 1.0  # noqa: PLR2004
