"""Backups of the current plan: which flows lose theirs with a link, and new ones for a few paths.

Also replaces the paths and backups of some flows, at little more than the cost of a copy.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Floats, Ints, distinct, ranges, starts
from heddle_controller.model.edits import Edit
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, Plan, edited_paths, in_parallel
from heddle_controller.solve.assignment import with_nics
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.colouring.planes import Planes
from heddle_controller.solve.network import Network
from heddle_controller.solve.phases import copied
from heddle_controller.solve.repair.backups import (
    OF_ALL,
    OF_BETWEEN,
    OF_FIRST,
    OF_LINK,
    OF_SWITCH,
    backups_of,
    floors,
    least_shared,
)


def with_flows_replaced(
    paths: Paths, backups: Paths, flows: Ints, fresh: tuple[Paths, Paths]
) -> tuple[Paths, Paths]:
    """Return paths and backups of a plan with all those of some flows replaced.

    Args:
        paths: Paths of the plan, ascending by flow.
        backups: Their backups, row for row.
        flows: Rows of the flows to replace, ascending.
        fresh: New paths of these flows and their backups, row for row. A flow may be new in the
            plan, or have no path any more.
    """
    low, high = (np.searchsorted(paths.flow, flows, side=side) for side in ("left", "right"))
    counts = np.diff(np.searchsorted(fresh[0].flow, np.append(flows, flows[-1:] + 1)))
    begin = low + starts(counts - (high - low))[:-1]
    edit = Edit(ranges(low, high), ranges(begin, begin + counts))
    after = edited_paths(paths, edit, fresh[0])
    return after, in_parallel(edited_paths(backups, edit, fresh[1]), after)


MANY_BACKUPS = 16
"""From this number of paths on, finding backups together is quicker than one by one."""

MOST_RUNS = 8
"""Sorted runs kept before they are merged. Each lost link is looked up in every run."""
_EMPTY = np.empty(0, dtype=np.int64)
_NOBODY: frozenset[int] = frozenset()


class SparePaths:
    """Index of flows by the arcs of their backups that allow a choice, and of the poor backups.

    It is kept up to date as backups change.
    """

    def __init__(self, network: Network, plan: Plan) -> None:
        self._choice = network.choice
        self.poor: dict[int, int] = poor_backups(network, plan.flows, plan.paths, plan.backups)
        """What ``poor_backups`` says of the plan."""
        self._runs = [self._sorted(plan.backups)]
        """Arcs, ascending, and the flow that uses each. One run holds many backups."""
        self._later: defaultdict[int, set[int]] = defaultdict(set)
        """Flows by arc, for backups that were noted a few at a time."""

    def copy(self) -> SparePaths:
        """Return a copy that changes independently of this one."""
        later = {arc: flows.copy() for arc, flows in self._later.items()}
        return copied(self, "poor", "_runs", _later=defaultdict(set, later))

    def renumber(self, rows: Ints) -> None:
        """Give flows other rows: ``rows`` has the new row of each, ``NONE`` if it is gone."""
        self.poor = {int(rows[row]): cost for row, cost in self.poor.items() if rows[row] != NONE}
        stays = [rows[flows] != NONE for _, flows in self._runs]
        self._runs = [
            (arcs[kept], rows[flows[kept]])
            for (arcs, flows), kept in zip(self._runs, stays, strict=True)
        ]
        later = {arc: {int(rows[row]) for row in flows} for arc, flows in self._later.items()}
        self._later = defaultdict(set, {arc: rows - {NONE} for arc, rows in later.items()})

    def _sorted(self, backups: Paths) -> tuple[Ints, Ints]:
        arcs, flows = self._uses(backups)
        order = np.argsort(arcs, kind="stable")
        return arcs[order], flows[order]

    def _uses(self, backups: Paths) -> tuple[Ints, Ints]:
        kept = self._choice[backups.arcs]
        return backups.arcs[kept], np.repeat(backups.flow, np.diff(backups.first))[kept]

    def note(self, flows: Ints, fresh: Paths, poor: dict[int, int]) -> None:
        """Record the new backups of some flows, and the flows among them whose backups are poor.

        ``fresh`` are the backups, and ``poor`` is what ``poor_backups`` says of them.
        """
        for flow in self.poor.keys() & set(flows.tolist()) if self.poor else ():
            del self.poor[flow]
        self.poor |= poor
        if len(fresh) >= MANY_BACKUPS:
            self._runs.append(self._sorted(fresh))
            if len(self._runs) > MOST_RUNS:
                self._merge()
            return
        arcs, flows = self._uses(fresh)
        for arc, flow in zip(arcs.tolist(), flows.tolist(), strict=True):
            self._later[arc].add(flow)

    def _merge(self) -> None:
        """Merge all runs but the first into one."""
        arcs, flows = (np.concatenate(column) for column in zip(*self._runs[1:], strict=True))
        order = np.argsort(arcs, kind="stable")
        self._runs[1:] = [(arcs[order], flows[order])]

    def flows_over(self, backups: Paths, arcs: Ints) -> set[int]:
        """Return the flows that have a backup over one of some arcs.

        ``backups`` are all current backups, ascending by flow.
        """
        arcs = arcs[self._choice[arcs]]
        perhaps: set[int] = set()
        for run, flows in self._runs:
            low, high = np.searchsorted(run, arcs), np.searchsorted(run, arcs, side="right")
            perhaps.update(flows[ranges(low, high)].tolist())
        for arc in arcs.tolist():
            perhaps |= self._later.get(arc, _NOBODY)
        # The index keeps flows whose backups have changed since. They are filtered out here.
        rows = np.array(sorted(perhaps), dtype=np.int64)
        low = np.searchsorted(backups.flow, rows)
        rows = ranges(low, np.searchsorted(backups.flow, rows, side="right"))
        begin, end = backups.first[rows], backups.first[rows + 1]
        hit = np.isin(backups.arcs[ranges(begin, end)], arcs)
        return set(np.repeat(backups.flow[rows], end - begin)[hit].tolist())


def poor_backups(network: Network, flows: Flows, paths: Paths, backups: Paths) -> dict[int, int]:
    """Return the flows whose backups share more with their paths than must be, or are missing.

    The values are how much more they share than ``backups.floors`` says, as ``SharedLinks`` counts
    it and summed over the paths of the flow. A missing backup counts as sharing everything.
    """
    source, target = flows.source[paths.flow], flows.destination[paths.flow]
    ends = network.terminal[source], network.terminal[target]
    cost = np.where((np.diff(backups.first) == 0) & (ends[0] != ends[1]), OF_ALL, 0)
    several, level = network.several[source], network.level
    (owner, arcs, _), (row, spare, begins) = (
        _between_terminals(network, some) for some in (paths, backups)
    )
    begins &= several[row]
    alike = _among(row, spare, owner, arcs)
    between = np.minimum(level[network.tail[spare]], level[network.head[spare]]) != NodeKind.NIC
    links = _among(row, spare >> 1, owner, arcs >> 1) & ~begins
    np.add.at(cost, row[links], OF_LINK + between[links] * OF_BETWEEN)
    np.add.at(cost, row[begins & ~alike], OF_FIRST)
    passed = network.head[arcs] != ends[1][owner]
    switches = _among(row, network.head[spare], owner[passed], network.head[arcs[passed]])
    np.add.at(cost, row[switches & ~begins], OF_SWITCH)
    poor = np.flatnonzero(cost)
    if len(poor):
        begin = starts(np.bincount(owner, minlength=len(paths)))
        climbs = network.level[network.tail[arcs]] != NodeKind.NIC
        climbs &= network.level[network.head[arcs]] != NodeKind.NIC
        direct = np.bincount(owner[climbs], minlength=len(paths)) == 0
        own = np.stack([arcs[begin[poor]], arcs[begin[poor + 1] - 1] ^ 1])
        cost[poor] -= floors(network, np.stack(ends)[:, poor], own, direct[poor])
        poor = poor[cost[poor] > 0]
    total = np.zeros(len(flows), dtype=np.int64)
    np.add.at(total, paths.flow[poor], cost[poor])
    found = distinct(paths.flow[poor])
    return dict(zip(found.tolist(), total[found].tolist(), strict=True))


def _between_terminals(network: Network, paths: Paths) -> tuple[Ints, Ints, Bools]:
    """Return row and arc of each step of paths, except over the sole link of a NIC.

    The third array marks the steps that leave a NIC.
    """
    row, arcs = paths.owner(), paths.arcs
    only = network.nic_arc
    sole = (only[network.tail[arcs]] == arcs) | (only[network.head[arcs]] == arcs ^ 1)
    row, arcs = row[~sole], arcs[~sole]
    return row, arcs, network.level[network.tail[arcs]] == NodeKind.NIC


def _among(row: Ints, value: Ints, other_row: Ints, other: Ints) -> Bools:
    """Whether each value also occurs among the ``other`` values with the same row.

    ``other_row`` ascends. There are few values to a row.
    """
    found = np.zeros(len(row), dtype=np.bool_)
    first = starts(np.bincount(other_row, minlength=int(row.max(initial=NONE)) + 1))
    place, end = first[row], first[row + 1]
    while len(left := np.flatnonzero(~found & (place < end))):
        found[left] = other[place[left]] == value[left]
        place += 1
    return found


def backups_for(
    ways: tuple[Network, Candidates, Planes | None], flows: Flows, fresh: Paths, used: Floats
) -> Paths:
    """Return backups for some paths of a plan, row for row; without arcs where there is none.

    ``used`` is the utilisation of each arc and of the padding, shape (arcs + 1,).
    """
    network, candidates, planes = ways
    if planes is not None and len(fresh) >= MANY_BACKUPS:
        return backups_of(candidates, planes, flows, fresh)
    source = network.terminal[flows.source[fresh.flow]].tolist()
    destination = network.terminal[flows.destination[fresh.flow]].tolist()
    pieces = [
        _EMPTY if s == t else least_shared(candidates, (s, t), fresh.of(row), used)
        for row, (s, t) in enumerate(zip(source, destination, strict=True))
    ]
    lengths = np.array([len(piece) for piece in pieces], dtype=np.int64)
    arcs = np.concatenate([*pieces, _EMPTY])
    inner = Paths(fresh.flow, fresh.first_qp, fresh.last_qp, starts(lengths), arcs)
    return with_nics(network, flows, inner, lengths > 0)
