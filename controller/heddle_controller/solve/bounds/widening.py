"""More candidates where they pay: paths that the relaxation's prices say are cheaper.

Candidates are the shortest ways there are; in a damaged zone the way over the cores
may be worth its length, and in an irregular graph a longer detour. Which ones, the
dual prices of the relaxation tell (column generation, Gilmore and Gomory 1961): a path
that costs less than every candidate of its commodity would bring the optimum down, and
if there is none, no path would. In a fabric of tiers ways that climb and then fall come
first: they cannot make a cycle of waiting buffers. A way that turns up again at some
leaf is the last resort, taken where nothing else relieves an overloaded link.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.solve.bounds.prices import can_search_all_paths, prices_of
from heddle_controller.solve.bounds.relaxation import Relaxation
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.commodities import Commodities
from heddle_controller.solve.network import Network

GAIN = 0.001
"""A path less cheaper than this, in parts of the cheapest candidate, is not worth it."""
_EACH = 3
"""Paths that one commodity is given at a time."""
MOST_COMMODITIES = 2000
"""Commodities that ways over higher tiers are looked for at a time."""
HOP = 1e-6
"""Of the mean price, for each hop: among equally cheap paths the shorter."""


def widen(
    network: Network, candidates: Candidates, commodities: Commodities, relaxation: Relaxation
) -> bool:
    """Adds candidates that are cheaper than those there are; False if none was found."""
    price = relaxation.prices * network.per_gbps[commodities.use_arc]
    hop = HOP * max(float((relaxation.arc_prices * network.per_gbps).mean()), 1e-12)
    cost = np.bincount(commodities.use_path, weights=price + hop, minlength=commodities.path_count)
    least = np.minimum.reduceat(cost, commodities.first_path[:-1])
    # What pays next to nothing has nothing to gain.
    paid = least * commodities.demand
    paying = np.flatnonzero((paid > GAIN * paid.mean()) & ~commodities.shortest_only)
    prices = {
        group: prices_of(network, commodities, relaxation, group) + hop
        for group in np.unique(commodities.group[paying]).tolist()
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
    """What paths are worth having."""

    commodities: Commodities
    prices: dict[int, Floats]
    """Price of a Gbit/s on each arc to each group."""
    limit: Floats
    """What a path has to cost less than, of each commodity."""


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
