"""Backups of a standing plan: whose is lost with a link, and new ones for a few paths."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from heddle_controller.model.fabric import Floats, Ints
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, Plan, starts
from heddle_controller.solve.backups import backups_of, least_shared
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.export import with_nics
from heddle_controller.solve.network import Network
from heddle_controller.solve.planes import Planes
from heddle_controller.solve.splice import ranges

LOCAL = 2
"""Arcs of a path within one leaf, which no backup is needed for."""
MANY = 16
"""Paths whose backups are quicker found together than one by one."""

MOST_RUNS = 8
"""Sorted runs kept apart: all of them are looked through for each lost link."""
EMPTY = np.empty(0, dtype=np.int64)
_NOBODY: frozenset[int] = frozenset()


class SpareWays:
    """Which flows have a backup over which arc between switches, kept up to date."""

    def __init__(self, network: Network, backups: Paths) -> None:
        self._inner = np.zeros(network.arc_count, dtype=np.bool_)
        self._inner[network.inner] = True
        self._runs = [self._sorted(backups)]
        """Arcs, ascending, and the flow that uses each: of many backups at once."""
        self._later: defaultdict[int, set[int]] = defaultdict(set)
        """Flows by arc: of few backups."""

    def _sorted(self, backups: Paths) -> tuple[Ints, Ints]:
        arcs, flows = self._uses(backups)
        order = np.argsort(arcs, kind="stable")
        return arcs[order], flows[order]

    def _uses(self, backups: Paths) -> tuple[Ints, Ints]:
        kept = self._inner[backups.arcs]
        return backups.arcs[kept], np.repeat(backups.flow, np.diff(backups.first))[kept]

    def note(self, fresh: Paths) -> None:
        """Takes in backups that flows have from now on."""
        if len(fresh) >= MANY:
            self._runs.append(self._sorted(fresh))
            if len(self._runs) > MOST_RUNS:
                self._merge()
            return
        arcs, flows = self._uses(fresh)
        for arc, flow in zip(arcs.tolist(), flows.tolist(), strict=True):
            self._later[arc].add(flow)

    def _merge(self) -> None:
        """Makes one run of all but the first."""
        arcs, flows = (np.concatenate(column) for column in zip(*self._runs[1:], strict=True))
        order = np.argsort(arcs, kind="stable")
        self._runs[1:] = [(arcs[order], flows[order])]

    def flows_over(self, backups: Paths, arcs: Ints) -> set[int]:
        """Flows of which a backup, as they are now, uses one of some arcs."""
        arcs = arcs[self._inner[arcs]]
        perhaps: set[int] = set()
        for run, flows in self._runs:
            low, high = np.searchsorted(run, arcs), np.searchsorted(run, arcs, side="right")
            perhaps.update(flows[ranges(low, high)].tolist())
        for arc in arcs.tolist():
            perhaps |= self._later.get(arc, _NOBODY)
        # Entries are never removed when backups change: what is stale is seen here.
        rows = np.array(sorted(perhaps), dtype=np.int64)
        low = np.searchsorted(backups.flow, rows)
        rows = ranges(low, np.searchsorted(backups.flow, rows, side="right"))
        begin, end = backups.first[rows], backups.first[rows + 1]
        hit = np.isin(backups.arcs[ranges(begin, end)], arcs)
        return set(np.repeat(backups.flow[rows], end - begin)[hit].tolist())


def bare_flows(plan: Plan) -> set[int]:
    """Flows of which a path that needs a backup has none."""
    bare = (np.diff(plan.backups.first) == 0) & (np.diff(plan.paths.first) > LOCAL)
    return set(plan.paths.flow[bare].tolist())


def backups_for(
    ways: tuple[Network, Candidates, Planes | None], flows: Flows, fresh: Paths, used: Floats
) -> Paths:
    """Backups for some paths of a plan, parallel to them; ``used`` is by arc and padding."""
    network, candidates, planes = ways
    if planes is not None and len(fresh) >= MANY:
        return backups_of(network, candidates, planes, flows, fresh)
    source = network.terminal[flows.source[fresh.flow]].tolist()
    destination = network.terminal[flows.destination[fresh.flow]].tolist()
    pieces = [
        EMPTY if s == t else least_shared(network, candidates.between(s, t), fresh.of(row), used)
        for row, (s, t) in enumerate(zip(source, destination, strict=True))
    ]
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
    arcs = np.concatenate([*pieces, EMPTY])
    inner = Paths(fresh.flow, fresh.first_qp, fresh.last_qp, starts(lengths), arcs)
    return with_nics(network, flows, inner, lengths > 0)
