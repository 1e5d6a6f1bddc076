"""From prices of arcs to a proven bound.

Give each arc a price a Gbit/s. Every plan has to carry each commodity along some
path, and pays at least the cheapest; if no arc were fuller than U it would pay at
most U times the price of all capacity. So U is at least the one over the other,
whatever the prices: linear programming duality, of which only the easy half is
needed. Prices of a tier alone prove a bound for that tier. Of a job of several phases
each asks for a part of an arc's price, and these add up to no more than the whole.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints
from heddle_controller.solve.bounds.relaxation import Relaxation
from heddle_controller.solve.cheapest_paths import CheapestPaths
from heddle_controller.solve.commodities import LINEAR, Commodities
from heddle_controller.solve.network import Network

MOST_WORK = 20_000_000
"""Destinations times arcs beyond which no distances are looked for."""


def price_bounds(
    network: Network, commodities: Commodities, relaxation: Relaxation
) -> tuple[Floats, float]:
    """Bounds over the candidate paths, what a search may hope for: of tiers, of the whole."""
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
    """Bounds over all paths there are: of each tier, and of the whole.

    Nothing is proven (0) where looking at all paths would be too much work.
    """
    if not can_search_all_paths(network, commodities.destination):
        return np.zeros(len(network.fabric.structure.tiers)), 0.0
    paths = CheapestPaths(network)

    def cheapest(counted: Bools) -> Floats:
        result = np.zeros(commodities.count)
        for group in np.unique(commodities.group).tolist():
            rows = np.flatnonzero(commodities.group == group)
            price = np.where(counted, prices_of(network, commodities, relaxation, group), 0.0)
            ends = commodities.source[rows], commodities.destination[rows]
            result[rows] = paths.costs(price, *ends)
        return result

    return _by_tier(network, commodities, relaxation, cheapest)


def can_search_all_paths(network: Network, destinations: Ints) -> bool:
    """Whether looking at all paths to terminals is not too much work."""
    return len(np.unique(destinations)) * network.arc_count <= MOST_WORK


def prices_of(
    network: Network, commodities: Commodities, relaxation: Relaxation, group: int
) -> Floats:
    """Price of a Gbit/s on each arc to flows of a group, shape (arcs,).

    Where nothing of a job of several phases uses an arc, they share its price evenly.
    """
    prices = relaxation.arc_prices[:-1]
    if group != LINEAR:
        jobs, groups = commodities.job, commodities.group
        job = jobs[groups == group][0]
        prices = prices / len(np.unique(groups[jobs == job]))
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
    """Bounds from the prices of each tier alone, and from all prices."""

    def bound(counted: Bools) -> float:
        total = float(relaxation.arc_prices[:-1][counted].sum())
        return float(cheapest(counted) @ commodities.demand) / total if total > 0 else 0.0

    tier_of_arc = network.fabric.structure.tier_of_arc
    tiers = np.zeros(len(network.fabric.structure.tiers))
    if not commodities.count:
        return tiers, 0.0
    used = np.unique(tier_of_arc[commodities.use_arc]).tolist()
    for tier in used:
        tiers[tier] = bound(tier_of_arc == tier)
    whole = bound(np.ones(network.arc_count, dtype=np.bool_)) if len(used) > 1 else 0.0
    return tiers, max(whole, float(tiers.max(initial=0.0)))
