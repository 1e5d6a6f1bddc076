"""From shares of commodities to paths of whole QPs.

The flows of a commodity are laid end to end, QP by QP, and cut where the shares
of its paths fall, rounded down to whole QPs: so few flows are split. The QPs that
rounding leaves over are placed greedily afterwards, knowing all loads; handing
them to the largest remainder would send equal commodities all the same way.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, starts
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths
from heddle_controller.solve.commodities import Commodities

_WHOLE = 0.01
"""A share this little short of a whole QP is one: the solver is no more exact."""


def whole_shares(
    flows: Flows, commodities: Commodities, shares: Floats, local: Ints
) -> tuple[Paths, tuple[Ints, Ints, Ints]]:
    """Whole QPs by their shares, as paths between terminals, and the QPs left over.

    ``local`` are rows of flows without a choice of arcs, which get empty paths. The
    rest is in columns: flow row, first and last QP.
    """
    placed = [np.stack([local, np.zeros_like(local), flows.qps[local] - 1])]
    paths: list[Ints] = [np.empty(0, dtype=np.int64)] * len(local)
    left = [np.empty((3, 0), dtype=np.int64)]
    order = np.argsort(commodities.of_flow, kind="stable")
    order = order[commodities.of_flow[order] >= 0]
    bounds = np.searchsorted(commodities.of_flow[order], np.arange(commodities.count + 1))
    for commodity in range(commodities.count):
        rows = order[bounds[commodity] : bounds[commodity + 1]]
        low, high = commodities.first_path[commodity : commodity + 2].tolist()
        pieces, path = _cut(rows, flows.qps[rows], shares[low:high])
        whole = path < high - low
        placed.append(pieces[:, whole])
        paths += [commodities.arcs_of(low + p) for p in path[whole].tolist()]
        left.append(pieces[:, ~whole])
    flow, first, last = np.concatenate(placed, axis=1)
    lengths = np.array([len(path) for path in paths], dtype=np.int64)
    arcs = np.concatenate([*paths, np.empty(0, dtype=np.int64)])
    rest = np.concatenate(left, axis=1)
    return Paths(flow, first, last, starts(lengths), arcs), (rest[0], rest[1], rest[2])


def _cut(rows: Ints, qps: Ints, shares: Floats) -> tuple[Ints, Ints]:
    """Pieces (flow, first and last QP) of flows laid end to end, and each one's path.

    The path after the last stands for what is left over.
    """
    total = int(qps.sum())
    exact = shares / shares.sum() * total if shares.sum() > 0 else np.zeros(len(shares))
    count = np.floor(exact + _WHOLE).astype(np.int64)
    count = np.append(count, max(0, total - int(count.sum())))
    edges = np.unique(np.concatenate([[0], np.cumsum(count), np.cumsum(qps)]))
    edges = edges[edges <= total]
    begin, end = edges[:-1], edges[1:]
    path = np.searchsorted(np.cumsum(count), begin, side="right")
    flow = np.searchsorted(np.cumsum(qps), begin, side="right")
    offset = (np.cumsum(qps) - qps)[flow]
    return np.stack([rows[flow], begin - offset, end - offset - 1]), path
