"""The least worst link possible, by scipy's HiGHS. It shares no code with the planner.

There are two linear programmes: over given paths of each pair of switches, and over all paths.
Loads are of flows without phases, on links between switches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array

from heddle_controller.model.arrays import Bools, Floats, Ints
from heddle_controller.model.fabric import Fabric, NodeKind

Pair = tuple[int, int]


def least_over_paths(
    capacity: Floats, demand: Mapping[Pair, float], paths: Mapping[Pair, Sequence[Sequence[int]]]
) -> float:
    """Return the least worst utilisation when pairs divide their Gbit/s freely over their paths.

    ``capacity`` is by arc. Paths list the arcs that count.
    """
    rows = [(pair, path) for pair, ends in enumerate(demand) for path in paths[ends]]
    pair = np.array([pair for pair, _ in rows], dtype=np.int64)
    column = np.repeat(np.arange(len(rows)), [len(path) for _, path in rows])
    arc = np.array([a for _, path in rows for a in path], dtype=np.int64)
    weight = np.array([*demand.values()])[pair[column]] / capacity[arc]
    width = len(rows) + 1
    whole = coo_array((np.ones(len(rows)), (pair, np.arange(len(rows)))), (len(demand), width))
    used = coo_array((weight, (arc, column)), (len(capacity), width))
    return _least(whole.tocsr(), np.ones(len(demand)), used.tocsr())


def least_over_everything(fabric: Fabric, usable: Bools, demand: Mapping[Pair, float]) -> float:
    """Return the least worst utilisation when traffic may take any paths between switches.

    There is one commodity for each switch that is sent to. What enters another switch leaves it.
    """
    structure = fabric.structure
    switch = structure.nodes.kind != NodeKind.NIC
    arcs = np.flatnonzero(usable & switch[structure.tail] & switch[structure.head])
    targets = sorted({destination for _, destination in demand})
    nodes = np.flatnonzero(switch)
    place = np.full(fabric.node_count, -1, dtype=np.int64)
    place[nodes] = np.arange(len(nodes))
    supply = np.zeros((len(targets), len(nodes)))
    for (source, destination), gbps in demand.items():
        supply[targets.index(destination), place[source]] += gbps
    kept = nodes[None, :] != np.array(targets)[:, None]
    balance = _balance(place[structure.tail[arcs]], place[structure.head[arcs]], kept)
    columns = np.arange(len(targets) * len(arcs))
    weight = np.tile(1 / structure.capacity[arcs], len(targets))
    used = coo_array(
        (weight, (np.tile(np.arange(len(arcs)), len(targets)), columns)),
        shape=(len(arcs), len(columns) + 1),
    )
    return _least(balance, supply[kept], used.tocsr())


def _balance(tail: Ints, head: Ints, kept: Bools) -> csr_array:
    """Return a row for each commodity and transit node: what leaves it less what enters it."""
    commodities, width = kept.shape
    arcs = len(tail)
    columns = np.arange(commodities * arcs)
    base = np.repeat(np.arange(commodities) * width, arcs)
    rows = np.concatenate([base + np.tile(tail, commodities), base + np.tile(head, commodities)])
    signs = np.repeat([1.0, -1.0], len(columns))
    shape = (commodities * width, len(columns) + 1)
    return coo_array((signs, (rows, np.tile(columns, 2))), shape=shape).tocsr()[kept.ravel()]


def _least(equal: csr_array, right: Floats, used: csr_array) -> float:
    """Minimise the last column, the bound that no row of ``used`` may exceed."""
    used = used[np.flatnonzero(np.diff(used.indptr) > 0)]
    rows, width = used.shape
    worst = coo_array((-np.ones(rows), (np.arange(rows), np.full(rows, width - 1))), used.shape)
    cost = np.zeros(width)
    cost[-1] = 1.0
    highs: Any = linprog  # its stubs know dense matrices only
    limits = {"A_ub": used + worst.tocsr(), "b_ub": np.zeros(rows)}
    result = highs(cost, A_eq=equal, b_eq=right, method="highs", **limits)
    if not result.success:
        raise RuntimeError(f"HiGHS did not solve the reference: {result.message}")
    return float(result.fun)
