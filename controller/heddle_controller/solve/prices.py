"""From prices of arcs to a proven bound.

Give each arc a price a Gbit/s. Every plan has to carry each commodity along some
path, and pays at least the cheapest; if no arc were fuller than U it would pay at
most U times the price of all capacity. So U is at least the one over the other,
whatever the prices: linear programming duality, of which only the easy half is
needed. Prices of a tier alone prove a bound for that tier.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import Bools, Floats
from heddle_controller.solve.commodities import LINEAR, Commodities
from heddle_controller.solve.lp import Relaxation
from heddle_controller.solve.network import Network


def price_bounds(
    network: Network, commodities: Commodities, relaxation: Relaxation
) -> tuple[Floats, float]:
    """Bounds over the candidate paths: of each tier, and of the whole."""
    tier_of_arc = network.fabric.structure.tier_of_arc
    tiers = np.zeros(len(network.fabric.structure.tiers))
    everything = np.ones(network.arc_count, dtype=np.bool_)
    for tier in np.unique(tier_of_arc[commodities.use_arc]).tolist():
        tiers[tier] = _bound(network, commodities, relaxation, tier_of_arc == tier)
    overall = _bound(network, commodities, relaxation, everything)
    return tiers, max(overall, float(tiers.max(initial=0.0)))


def _bound(
    network: Network, commodities: Commodities, relaxation: Relaxation, counted: Bools
) -> float:
    per_use = relaxation.prices * network.per_gbps[commodities.use_arc]
    per_use = np.where(counted[commodities.use_arc], per_use, 0.0)
    per_path = np.bincount(commodities.use_path, weights=per_use, minlength=commodities.path_count)
    if not len(per_path):
        return 0.0
    cheapest = np.minimum.reduceat(per_path, commodities.first_path[:-1])
    total = float(relaxation.arc_prices[:-1][counted].sum())
    return float(cheapest @ commodities.demand) / total if total > 0 else 0.0


def unrestricted_bound(network: Network, commodities: Commodities, relaxation: Relaxation) -> float:
    """A bound over all paths there are, candidates or not.

    Flows of jobs with several phases pay nothing here: their prices are not known
    off their candidates.
    """
    linear = np.flatnonzero(commodities.job == LINEAR)
    price = relaxation.arc_prices[:-1] * network.per_gbps[:-1]
    arcs = network.inner[network.usable[network.inner]]
    total = float(relaxation.arc_prices.sum())
    if not len(linear) or total <= 0:
        return 0.0
    ends, row = np.unique(commodities.destination[linear], return_inverse=True)
    cost = np.full((network.fabric.node_count, len(ends)), np.inf)
    cost[ends, np.arange(len(ends))] = 0.0
    while True:
        through = cost[network.head[arcs]] + price[arcs][:, None]
        better = cost.copy()
        np.minimum.at(better, network.tail[arcs], through)
        if np.array_equal(better, cost):
            break
        cost = better
    cheapest = cost[commodities.source[linear], row]
    return float(cheapest @ commodities.demand[linear]) / total
