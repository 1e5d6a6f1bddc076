"""Flows between the same terminals as commodities, and the paths that they may take.

Arrays are flat: a commodity has paths, and a path has uses of arcs. Flows of a job with several
phases form one commodity for each phase, since only flows that run at the same time share arcs.

``whole_shares`` turns shares of commodities into paths of whole QPs. It lays the flows of a
commodity end to end, QP by QP, and cuts them at the shares of its paths, rounded down to whole QPs.
So few flows are split. QPs that rounding leaves over are placed greedily afterwards, when all loads
are known. Giving them to the largest remainders would send equal commodities the same way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Bools, Floats, Ints, distinct, starts
from heddle_controller.model.flows import ANY_PHASE, Flows, TrafficClass
from heddle_controller.model.plan import Paths
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.network import Network
from heddle_controller.solve.phases import phased_jobs

LINEAR = -1
"""Job of commodities whose loads simply add up."""


@dataclass(frozen=True, slots=True, eq=False)
class Commodities:
    """All commodities of a set of flows, with their candidate paths."""

    of_flow: Ints
    """Commodity of each flow; -1 for flows that have no choice of arcs, or no path."""
    stuck: Ints
    """Rows of the flows for which no path exists."""
    source: Ints
    """Terminal that each commodity leaves, shape (commodities,)."""
    destination: Ints
    demand: Floats
    """Gbit/s, shape (commodities,)."""
    job: Ints
    """Job row of each commodity, or ``LINEAR``; shape (commodities,)."""
    shortest_only: Bools
    """Marks commodities that may only take shortest paths, shape (commodities,)."""
    group: Ints
    """Number of each commodity's pair of job and phase; ``LINEAR`` for the rest."""
    first_path: Ints
    """Where each commodity's paths begin, shape (commodities + 1,)."""
    path_commodity: Ints
    """Commodity of each path, shape (paths,)."""
    use_path: Ints
    """Path of each use of an arc, shape (uses,)."""
    use_arc: Ints
    """Arc of each use."""

    @property
    def count(self) -> int:
        """Number of commodities."""
        return len(self.demand)

    @property
    def path_count(self) -> int:
        """Number of candidate paths of all commodities."""
        return len(self.path_commodity)

    @property
    def use_commodity(self) -> Ints:
        """Commodity of each use."""
        return self.path_commodity[self.use_path]

    @property
    def use_job(self) -> Ints:
        """Job of each use, ``LINEAR`` where loads simply add up."""
        return self.job[self.use_commodity]

    @property
    def use_group(self) -> Ints:
        """Pair of job and phase of each use; ``LINEAR`` where loads simply add up."""
        return self.group[self.use_commodity]

    def arcs_of(self, path: int) -> Ints:
        """Return the arcs of one path in order of travel."""
        low, high = np.searchsorted(self.use_path, [path, path + 1])
        return self.use_arc[low:high]


def commodities_of(
    network: Network, candidates: Candidates, flows: Flows, routed: Bools
) -> Commodities:
    """Group the flows marked by ``routed``, shape (flows,), and look up their candidates."""
    source = network.terminal[flows.source]
    destination = network.terminal[flows.destination]
    phased = np.isin(flows.job, phased_jobs(flows)) & (flows.phase != ANY_PHASE)
    job = np.where(phased, flows.job, LINEAR)
    group = np.where(phased, flows.job * max(1, len(flows.phase_names)) + flows.phase, LINEAR)
    rows = np.flatnonzero(routed & (source != destination))
    columns = np.stack(
        [source[rows], destination[rows], job[rows], group[rows], flows.traffic_class[rows]]
    )
    keys, inverse = np.unique(columns, axis=1, return_inverse=True)
    sets = [candidates.of_class(s, t, c) for s, t, _, _, c in keys.T.tolist()]
    found = np.array([len(paths) > 0 for paths in sets], dtype=np.bool_)
    stuck = rows[~found[inverse]]
    number = np.where(found, np.cumsum(found) - 1, -1)
    of_flow = np.full(len(flows), -1, dtype=np.int64)
    of_flow[rows] = number[inverse]
    keys, sets = keys[:, found], [paths for paths in sets if len(paths)]
    held = of_flow >= 0
    demand = np.bincount(of_flow[held], weights=flows.gbps[held], minlength=len(sets))
    counts = np.array([len(paths) for paths in sets], dtype=np.int64)
    first_path = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    lengths = [np.count_nonzero(paths != network.pad, axis=1) for paths in sets]
    per_path = np.concatenate([*lengths, np.empty(0, dtype=np.int64)])
    arcs = np.concatenate([*(paths[paths != network.pad] for paths in sets), np.empty(0, np.int64)])
    return Commodities(
        of_flow=of_flow,
        stuck=stuck,
        source=keys[0],
        destination=keys[1],
        demand=demand.astype(np.float64),
        job=keys[2],
        shortest_only=keys[4] == TrafficClass.LATENCY,
        group=keys[3],
        first_path=first_path,
        path_commodity=np.repeat(np.arange(len(counts), dtype=np.int64), counts),
        use_path=np.repeat(np.arange(int(counts.sum()), dtype=np.int64), per_path),
        use_arc=arcs,
    )


_WHOLE = 0.01
"""A share this little below a whole QP counts as whole, since the solver is no more exact."""


def whole_shares(
    flows: Flows, commodities: Commodities, shares: Floats, local: Ints
) -> tuple[Paths, tuple[Ints, Ints, Ints]]:
    """Return whole QPs of each path as paths between terminals, and the QPs left over.

    ``local`` are rows of flows without a choice of arcs, which get empty paths. The QPs left over
    are columns: flow row, first and last QP.
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
    """Return pieces of flows laid end to end (flow, first and last QP), and each piece's path.

    The number after the last path stands for what is left over.
    """
    total = int(qps.sum())
    exact = shares / shares.sum() * total if shares.sum() > 0 else np.zeros(len(shares))
    count = np.floor(exact + _WHOLE).astype(np.int64)
    count = np.append(count, max(0, total - int(count.sum())))
    edges = distinct(np.concatenate([[0], np.cumsum(count), np.cumsum(qps)]))
    edges = edges[edges <= total]
    begin, end = edges[:-1], edges[1:]
    path = np.searchsorted(np.cumsum(count), begin, side="right")
    flow = np.searchsorted(np.cumsum(qps), begin, side="right")
    offset = (np.cumsum(qps) - qps)[flow]
    return np.stack([rows[flow], begin - offset, end - offset - 1]), path
