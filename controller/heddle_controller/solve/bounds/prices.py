"""Proven bounds from prices of arcs, and candidates that these prices show to pay.

Give each arc a price for a Gbit/s. Every plan has to carry each commodity along some path, and pays
at least for the cheapest. If no arc is fuller than U, it pays at most U times the price of all
capacity. So U is at least the former over the latter, whatever the prices are: this is the easy
half of linear programming duality. Prices of one tier alone prove a bound for that tier. Each phase
of a job with several phases asks for a part of an arc's price; these parts add up to no more than
the whole.

Candidates are the shortest paths. In a damaged zone the path over the cores may be worth its
length, and in an irregular graph a longer detour. The dual prices of the relaxation tell which ones
are (column generation, Gilmore and Gomory 1961): a path that costs less than every candidate of its
commodity can lower the optimum, and if no such path exists, no path can. In a fabric with tiers,
paths that go up and then down come first, since they cannot make a cycle of waiting buffers. A path
that goes down and up again is the last resort.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints, distinct
from heddle_controller.solve.bounds.relaxation import Relaxation
from heddle_controller.solve.candidates import Candidates, CheapestPaths
from heddle_controller.solve.commodities import LINEAR, Commodities
from heddle_controller.solve.network import Network

MOST_WORK = 20_000_000
"""Largest product of destinations and arcs for which distances over all arcs are computed."""


def price_bounds(
    network: Network, commodities: Commodities, relaxation: Relaxation
) -> tuple[Floats, float]:
    """Return bounds over the candidate paths, for each tier and for the whole plan.

    They tell what a search over these candidates may reach.
    """
    per_use = relaxation.prices * network.per_gbps[commodities.use_arc]

    def cheapest(counted: Bools) -> Floats:
        cost = np.where(counted[commodities.use_arc], per_use, 0.0)
        per_path = np.bincount(commodities.use_path, weights=cost, minlength=commodities.path_count)
        least: Floats = np.minimum.reduceat(per_path, commodities.first_path[:-1])
        return least

    return _by_tier(network, commodities, relaxation, cheapest)


def unrestricted_bounds(
    network: Network, commodities: Commodities, relaxation: Relaxation
) -> tuple[Floats, float]:
    """Return bounds over all paths, for each tier and for the whole plan.

    They are 0 where looking at all paths would be too much work.
    """
    if not can_search_all_paths(network, commodities.destination):
        return np.zeros(len(network.fabric.structure.tiers)), 0.0
    paths = CheapestPaths(network)

    def cheapest(counted: Bools) -> Floats:
        result = np.zeros(commodities.count)
        for group in distinct(commodities.group).tolist():
            rows = np.flatnonzero(commodities.group == group)
            price = np.where(counted, prices_of(network, commodities, relaxation, group), 0.0)
            ends = commodities.source[rows], commodities.destination[rows]
            result[rows] = paths.costs(price, *ends)
        return result

    return _by_tier(network, commodities, relaxation, cheapest)


def can_search_all_paths(network: Network, destinations: Ints) -> bool:
    """Return whether all paths to the given terminals can be looked at with reasonable effort."""
    return len(distinct(destinations)) * network.arc_count <= MOST_WORK


def prices_of(
    network: Network, commodities: Commodities, relaxation: Relaxation, group: int
) -> Floats:
    """Return the price of a Gbit/s on each arc for flows of a group, shape (arcs,).

    Where no phase of a job with several phases uses an arc, the phases share its price evenly.
    """
    prices = relaxation.arc_prices[:-1]
    if group != LINEAR:
        jobs, groups = commodities.job, commodities.group
        job = jobs[groups == group][0]
        prices = prices / len(distinct(groups[jobs == job]))
        own = relaxation.phased_arcs.job == job
        prices[relaxation.phased_arcs.arc[own]] = relaxation.phased_arcs.idle_price[own]
        uses = commodities.use_group == group
        prices[commodities.use_arc[uses]] = relaxation.prices[uses]
    priced: Floats = prices * network.per_gbps[:-1]
    return priced


def _by_tier(
    network: Network,
    commodities: Commodities,
    relaxation: Relaxation,
    cheapest: Callable[[Bools], Floats],
) -> tuple[Floats, float]:
    """Return bounds from the prices of each tier alone, and from all prices.

    ``cheapest`` returns the least cost of each commodity, if only the marked arcs cost anything.
    """

    def bound(counted: Bools) -> float:
        total = float(relaxation.arc_prices[:-1][counted].sum())
        return float(cheapest(counted) @ commodities.demand) / total if total > 0 else 0.0

    tier_of_arc = network.fabric.structure.tier_of_arc
    tiers = np.zeros(len(network.fabric.structure.tiers))
    if not commodities.count:
        return tiers, 0.0
    used = distinct(tier_of_arc[commodities.use_arc]).tolist()
    for tier in used:
        tiers[tier] = bound(tier_of_arc == tier)
    whole = bound(np.ones(network.arc_count, dtype=np.bool_)) if len(used) > 1 else 0.0
    return tiers, max(whole, float(tiers.max(initial=0.0)))


GAIN = 0.001
"""A path must be cheaper than the cheapest candidate by this, relative to it, to be added."""
_EACH = 3
"""Most paths over higher tiers that one call adds to a commodity."""
MOST_COMMODITIES = 2000
"""Most commodities for which one call looks for paths over higher tiers."""
HOP = 1e-6
"""Price of each hop, relative to the mean price: of equally cheap paths the shorter one wins."""


def widen(
    network: Network, candidates: Candidates, commodities: Commodities, relaxation: Relaxation
) -> bool:
    """Add candidates that are cheaper than all known ones; return False if none was found."""
    price = relaxation.prices * network.per_gbps[commodities.use_arc]
    hop = HOP * max(float((relaxation.arc_prices * network.per_gbps).mean()), 1e-12)
    cost = np.bincount(commodities.use_path, weights=price + hop, minlength=commodities.path_count)
    least = np.minimum.reduceat(cost, commodities.first_path[:-1])
    # Commodities that pay next to nothing have nothing to gain.
    paid = least * commodities.demand
    paying = np.flatnonzero((paid > GAIN * paid.mean()) & ~commodities.shortest_only)
    prices = {
        group: prices_of(network, commodities, relaxation, group) + hop
        for group in distinct(commodities.group[paying]).tolist()
    }
    wanted = _Wanted(commodities, prices, least * (1 - GAIN))
    if network.tiered:
        most = paying[np.argsort(-paid[paying], kind="stable")[:MOST_COMMODITIES]]
        if _over_higher(candidates, wanted, most):
            return True
    if not can_search_all_paths(network, commodities.source[paying]):
        return False
    return _anywhere(candidates, wanted, paying)


@dataclass(frozen=True, slots=True, eq=False)
class _Wanted:
    """The paths that are worth adding."""

    commodities: Commodities
    prices: dict[int, Floats]
    """Price of a Gbit/s on each arc for each group, shape (arcs,)."""
    limit: Floats
    """Cost that a path must stay below, for each commodity."""


def _over_higher(candidates: Candidates, wanted: _Wanted, rows: Ints) -> bool:
    found, commodities = False, wanted.commodities
    padded = {group: np.append(price, 0.0) for group, price in wanted.prices.items()}
    for row in rows.tolist():
        ends = int(commodities.source[row]), int(commodities.destination[row])
        paths = candidates.over_every_apex(*ends)
        cost = padded[int(commodities.group[row])][paths].sum(axis=1)
        order = np.argsort(cost, kind="stable")[:_EACH]
        found |= candidates.add(*ends, paths[order[cost[order] < wanted.limit[row]]])
    return found


def _anywhere(candidates: Candidates, wanted: _Wanted, rows: Ints) -> bool:
    found, commodities = False, wanted.commodities
    cheapest = candidates.cheapest
    for group, price in wanted.prices.items():
        own = rows[commodities.group[rows] == group]
        cost, paths = cheapest.paths(price, commodities.source[own], commodities.destination[own])
        for place in np.flatnonzero(cost < wanted.limit[own]).tolist():
            row, path = own[place], paths[place : place + 1]
            ends = int(commodities.source[row]), int(commodities.destination[row])
            found |= candidates.add(*ends, path)
    return found
