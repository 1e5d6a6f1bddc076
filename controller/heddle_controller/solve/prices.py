"""From prices of arcs to a proven bound.

Give each arc a price a Gbit/s. Every plan has to carry each commodity along some
path, and pays at least the cheapest; if no arc were fuller than U it would pay at
most U times the price of all capacity. So U is at least the one over the other,
whatever the prices: linear programming duality, of which only the easy half is
needed. Prices of a tier alone prove a bound for that tier.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from heddle_controller.model.fabric import Bools, Floats, Ints, NodeKind
from heddle_controller.solve.commodities import LINEAR, Commodities
from heddle_controller.solve.lp import Relaxation
from heddle_controller.solve.network import Network

MOST_WORK = 20_000_000
"""Destinations times arcs beyond which no distances are looked for."""

AT_ONCE = 200_000
"""Destinations times arcs looked at in one go: numpy lets no other thread run meanwhile."""


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
    if not can_look_everywhere(network, commodities.destination):
        return np.zeros(len(network.fabric.structure.tiers)), 0.0
    distances = _Distances(network, commodities, relaxation)
    return _by_tier(network, commodities, relaxation, distances.cheapest)


def can_look_everywhere(network: Network, destinations: Ints) -> bool:
    """Whether looking at all paths to terminals is not too much work."""
    return len(np.unique(destinations)) * network.arc_count <= MOST_WORK


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
    for tier in np.unique(tier_of_arc[commodities.use_arc]).tolist():
        tiers[tier] = bound(tier_of_arc == tier)
    whole = bound(np.ones(network.arc_count, dtype=np.bool_))
    return tiers, max(whole, float(tiers.max(initial=0.0)))


class _Distances:
    """Cheapest ways between terminals under given prices, over every usable arc."""

    def __init__(self, network: Network, commodities: Commodities, relaxation: Relaxation) -> None:
        self._network = network
        self._commodities = commodities
        self._relaxation = relaxation
        self._ends, self._column = np.unique(commodities.destination, return_inverse=True)
        is_nic = network.level == NodeKind.NIC
        usable = np.flatnonzero(network.usable)
        leaves_nic = is_nic[network.tail[usable]]
        self._inner, self._first = usable[~leaves_nic], usable[leaves_nic]
        self._at_once = max(1, AT_ONCE // max(1, network.arc_count))

    def cheapest(self, counted: Bools) -> Floats:
        """Least cost of a path of each commodity; prices of arcs not counted are 0."""
        result = np.zeros(self._commodities.count)
        for group in np.unique(self._commodities.group).tolist():
            rows = np.flatnonzero(self._commodities.group == group)
            price = np.where(counted, self._prices_of(group), 0.0)
            order = rows[np.argsort(self._column[rows], kind="stable")]
            columns, first = np.unique(self._column[order], return_index=True)
            for low in range(0, len(columns), self._at_once):
                high = low + self._at_once
                end = first[high] if high < len(columns) else len(order)
                own = order[first[low] : end]
                place = np.searchsorted(columns[low:high], self._column[own])
                cost = self._costs(price, columns[low:high])
                result[own] = cost[self._commodities.source[own], place]
        return result

    def _prices_of(self, group: int) -> Floats:
        """Price of each arc to flows of a group.

        Off their candidates flows of a phase pay nothing: their part of the arc's
        price is not known there, and none at all is never too much.
        """
        per_gbps = self._network.per_gbps[:-1]
        if group == LINEAR:
            return self._relaxation.arc_prices[:-1] * per_gbps
        uses = self._commodities.use_group == group
        prices = np.zeros(self._network.arc_count)
        prices[self._commodities.use_arc[uses]] = self._relaxation.prices[uses]
        return prices * per_gbps

    def _costs(self, price: Floats, columns: Ints) -> Floats:
        """Cost from every node to some of the ends (Bellman-Ford), shape (nodes, columns)."""
        network = self._network
        cost = np.full((network.fabric.node_count, len(columns)), np.inf)
        cost[self._ends[columns], np.arange(len(columns))] = 0.0
        while self._relax(cost, price, self._inner):
            pass
        # No path passes through a NIC: what leaves one is looked at last, and once.
        self._relax(cost, price, self._first)
        return cost

    def _relax(self, cost: Floats, price: Floats, arcs: Ints) -> bool:
        network = self._network
        through = cost[network.head[arcs]] + price[arcs][:, None]
        before = cost.copy()
        np.minimum.at(cost, network.tail[arcs], through)
        return not np.array_equal(before, cost)
