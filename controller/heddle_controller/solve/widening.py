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

from heapq import heappop, heappush

import numpy as np

from heddle_controller.model.fabric import Floats, Ints, NodeKind
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.commodities import Commodities
from heddle_controller.solve.lp import Relaxation
from heddle_controller.solve.network import Network

GAIN = 0.01
"""A path less cheaper than this, in parts of the cheapest candidate, is not worth it."""
EACH = 3
"""Paths that one commodity is given at a time."""
MOST_COMMODITIES = 2000
"""Commodities that are given any at a time."""
MOST_WORK = 2_000_000
"""Sources times arcs beyond which an irregular graph is not searched."""
HOP = 1e-6
"""Of the mean price, for each hop: among equally cheap paths the shorter."""


def widen(
    network: Network, candidates: Candidates, commodities: Commodities, relaxation: Relaxation
) -> bool:
    """Adds candidates that are cheaper than those there are; False if none was found."""
    price = relaxation.arc_prices * network.per_gbps
    price[:-1] += HOP * max(float(price.mean()), 1e-12)
    cost = np.bincount(
        commodities.use_path,
        weights=price[commodities.use_arc],
        minlength=commodities.path_count,
    )
    least = np.minimum.reduceat(cost, commodities.first_path[:-1])
    # Those that pay most are worth most; what pays next to nothing has nothing to gain.
    paid = least * commodities.demand
    rows = np.argsort(-paid, kind="stable")[:MOST_COMMODITIES]
    below: dict[tuple[int, int], float] = {}
    for row in rows[paid[rows] > GAIN * paid.mean()].tolist():
        ends = int(commodities.source[row]), int(commodities.destination[row])
        below[ends] = max(float(least[row]) * (1 - GAIN), below.get(ends, 0.0))
    if network.tiered and _over_higher(candidates, price, below):
        return True
    if len({source for source, _ in below}) * network.arc_count > MOST_WORK:
        return False
    return _anywhere(network, candidates, price, below)


def _over_higher(
    candidates: Candidates, price: Floats, below: dict[tuple[int, int], float]
) -> bool:
    found = False
    for (source, destination), limit in below.items():
        paths = candidates.over_every_apex(source, destination)
        cost = price[paths].sum(axis=1)
        order = np.argsort(cost, kind="stable")[:EACH]
        found |= candidates.add(source, destination, paths[order[cost[order] < limit]])
    return found


def _anywhere(
    network: Network,
    candidates: Candidates,
    price: Floats,
    below: dict[tuple[int, int], float],
) -> bool:
    found = False
    into: dict[int, dict[int, int]] = {}
    for (source, destination), limit in below.items():
        if source not in into:
            into[source] = _cheapest_tree(network, price, source)
        path = _way(network, into[source], source, destination)
        if price[path].sum() < limit:
            found |= candidates.add(source, destination, path[None, :])
    return found


def _cheapest_tree(network: Network, price: Floats, source: int) -> dict[int, int]:
    """The arc by which a cheapest path from the source enters each node (Dijkstra)."""
    into: dict[int, int] = {}
    cost = {source: 0.0}
    queue = [(0.0, source)]
    while queue:
        spent, node = heappop(queue)
        # No path passes through a NIC.
        if spent > cost[node] or (node != source and network.level[node] == NodeKind.NIC):
            continue
        for arc in network.out(node).tolist():
            following, total = int(network.head[arc]), spent + float(price[arc])
            if total < cost.get(following, np.inf):
                cost[following], into[following] = total, arc
                heappush(queue, (total, following))
    return into


def _way(network: Network, into: dict[int, int], source: int, destination: int) -> Ints:
    arcs: list[int] = []
    node = destination
    while node != source:
        arcs.append(into[node])
        node = int(network.tail[arcs[-1]])
    return np.array(arcs[::-1], dtype=np.int64)
