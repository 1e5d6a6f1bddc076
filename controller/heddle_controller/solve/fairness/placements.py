"""Placements: how many QPs of each flow go on each of its candidate paths.

In small cases many placements can be judged at a time, and the best one is then put into the
assignment. An array of placements has a row for each, and a column for each candidate path of every
flow, one flow after another.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints, distinct
from heddle_controller.model.fair_rates import Filling
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.phases import phased_jobs
from heddle_controller.solve.search.qp_groups import QpGroup, put_in_numbers
from heddle_controller.solve.search.search import Search

MOST_USES = 2_000
"""Number of arcs on all paths together above which a case is not small."""
FEW_USES = 200
"""Number of arcs on all paths together up to which rates are computed over empty paths, too."""
_TOLERANCE = 1e-9


def is_small(assignment: Assignment) -> bool:
    """Whether a case may be small: it has at most ``MOST_USES`` chunks, each using an arc."""
    return len(assignment.flow) <= MOST_USES


class Placements:
    """The candidate paths of all flows that have one, and what placements on them mean."""

    def __init__(self, search: Search, *, longer: bool) -> None:
        """Take the paths; ``longer`` adds longer ones. It stops above ``MOST_USES``."""
        self._search = search
        assignment = search.assignment
        flows = assignment.flows
        self.capacity: Floats = assignment.network.fabric.structure.capacity
        self.arcs: list[Ints] = []
        """Arcs of each path from NIC to NIC."""
        self._inner: list[Ints] = []
        """Arcs of each path between its terminals."""
        self.uses = 0
        """Number of arcs on all paths together."""
        self.flow, self.counts = self._found(longer=longer)
        """Flow of each path, and how many QPs the assignment has on it."""
        self.first = np.flatnonzero(np.diff(self.flow, prepend=NONE))
        self.last = np.append(self.first[1:], len(self.flow))
        """Where the paths of each flow begin and end."""
        self.of_flow = np.repeat(np.arange(len(self.first)), self.last - self.first)
        """Number of each path's flow, from 0."""
        self.unit: Floats = assignment.unit[self.flow]
        """Gbit/s that a QP asks for on each path."""
        self.per_rate: Floats = 1 / (flows.gbps * flows.weight)[self.flow]
        """Value of one Gbit/s on each path."""
        turns = np.isin(flows.job, phased_jobs(flows)) & (flows.phase != ANY_PHASE)
        self.job = np.where(turns, flows.job, NONE)[self.flow]
        """Job of each path, or ``NONE`` if the job has no phases that take turns."""
        self._phase = np.where(turns, flows.phase, NONE)[self.flow]

    def _found(self, *, longer: bool) -> tuple[Ints, Ints]:
        search, assignment = self._search, self._search.assignment
        network, flows = assignment.network, assignment.flows
        chunks: dict[int, list[int]] = {}
        for chunk, flow in enumerate(assignment.flow):
            chunks.setdefault(flow, []).append(chunk)
        of_path: list[int] = []
        counts: list[int] = []
        for flow in sorted(chunks):
            out, into = network.nic_arc[[flows.source[flow], flows.destination[flow]]].tolist()
            before = np.array([out] * (out != NONE), dtype=np.int64)
            after = np.array([into ^ 1] * (into != NONE), dtype=np.int64)
            found_ways = (search.chains.with_longer if longer else search.chains.paths)(flow)
            ways = [search.chains.trimmed(path) for path in found_ways]
            if not ways:
                continue
            rows = {way.tobytes(): row for row, way in enumerate(ways)}
            count = [0] * len(ways)
            for chunk in chunks[flow]:
                way = assignment.path[chunk]
                row = rows.setdefault(way.tobytes(), len(ways))
                if row == len(ways):
                    ways.append(way)
                    count.append(0)
                count[row] += assignment.qps(chunk)
            of_path += [flow] * len(ways)
            self._inner += ways
            self.arcs += [np.concatenate([before, way, after]) for way in ways]
            counts += count
            self.uses += sum(map(len, ways))
            if self.uses > MOST_USES:
                break
        return np.array(of_path, dtype=np.int64), np.array(counts, dtype=np.int64)

    def room_in_tiers(self, room: Floats) -> Floats:
        """Return the Gbit/s that each arc may carry if no tier may get a fuller arc.

        ``room`` is returned for arcs without a choice.
        """
        assignment = self._search.assignment
        network, used = assignment.network, assignment.utilization()
        worst = np.zeros(len(network.fabric.structure.tiers))
        tier = network.tier[network.chosen]
        np.maximum.at(worst, tier, used[network.chosen])
        room = room.copy()
        room[network.chosen] = (worst[tier] + _TOLERANCE) * self.capacity[network.chosen]
        return room

    def evaluate(self, counts: Ints) -> tuple[Floats, Floats, Ints]:
        """Evaluate placements, given as QPs on each path, shape (placements, paths).

        Returns:
            Value of each flow, shape (placements, flows); Gbit/s on arcs, shape (placements,
            arcs); and which arcs these are.
        """
        columns = np.flatnonzero((counts > 0).any(axis=0))
        if self.uses <= FEW_USES:
            columns = np.arange(len(self.flow))
        filling = self._filling if len(columns) == len(self.flow) else self._filling_of(columns)
        some = counts[:, columns].astype(np.float64)
        gained = filling.rates(some) * some * self.per_rate[columns]
        first = np.flatnonzero(np.diff(self.of_flow[columns], prepend=NONE))
        return np.add.reduceat(gained, first, axis=1), filling.loads(some), filling.arcs

    @cached_property
    def _filling(self) -> Filling:
        """The fair rates over all paths."""
        return self._filling_of(np.arange(len(self.flow)))

    def _filling_of(self, columns: Ints) -> Filling:
        arcs = [self.arcs[column] for column in columns.tolist()]
        return Filling(
            (np.concatenate(arcs), np.array([len(one) for one in arcs], dtype=np.int64)),
            self.unit[columns],
            self.job[columns],
            self._phase[columns],
            self.capacity,
        )

    def put_in_place(self, counts: Ints) -> bool:
        """Move chunks in the assignment to match a placement; return whether any flow changed."""
        assignment = self._search.assignment
        changed = distinct(self.of_flow[counts != self.counts]).tolist()
        for flow in changed:
            low, high = int(self.first[flow]), int(self.last[flow])
            row = int(self.flow[low])
            chunks = [c for c, of in enumerate(assignment.flow) if of == row]
            inner = self._inner[low:high]
            group = QpGroup(chunks, _padded(assignment, inner), float(self.unit[low]))
            put_in_numbers(self._search, group, counts[low:high])
        return bool(changed)


def _padded(assignment: Assignment, paths: list[Ints]) -> Ints:
    width = max(map(len, paths))
    pad = assignment.network.pad
    return np.stack([np.pad(path, (0, width - len(path)), constant_values=pad) for path in paths])
