"""Room in tables for pairs of NICs that were to be given up.

A pair comes back on the paths it had, if the tables have room for them by now, or
with all its QPs on the candidate path that fits and leaves the least full links.
Looking at candidates takes time, so only the most important pairs are looked at.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints, starts
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, arc_loads, no_paths
from heddle_controller.model.underlay import needs_entry
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.export import with_nics
from heddle_controller.solve.network import Network
from heddle_controller.solve.tables.needs import limited

MOST_SOUGHT = 1000
"""Pairs that are looked at in vain before no more are."""


class Readmission:
    """Tables and links as they fill up."""

    def __init__(self, network: Network, candidates: Candidates, flows: Flows, room: Ints) -> None:
        """``room`` is what each node's table still holds, and is kept up to date."""
        self.network, self.candidates, self.flows, self.room = network, candidates, flows, room
        self._load: Floats = np.zeros(network.arc_count)
        self._vain = 0

    def load(self, paths: Paths) -> None:
        """Puts the load of paths on links, beside what is there."""
        self._load += arc_loads(self.network.arc_count, self.flows, paths)

    def keep(self, paths: Paths, switches: Ints, entries: Ints) -> bool:
        """Takes paths back if each of the switches has room for so many entries."""
        if (self.room[switches] < entries).any():
            return False
        self.room[switches] -= entries
        self.load(paths)
        return True

    def find(self, rows: Ints) -> Paths | None:
        """One path with room for the flows of a pair, or None."""
        if self._vain >= MOST_SOUGHT:
            return None
        choice = self._choice(rows)
        tails = self.network.tail[choice.arcs]
        lacking = limited(self.network.fabric)[tails]
        at = np.flatnonzero(lacking)
        to = np.full(len(at), self.flows.destination[rows[0]])
        left = choice.first[choice.owner()[at] + 1] - at
        structure = self.network.fabric.structure
        lacking[at] = needs_entry(structure, choice.arcs[at], to, left)
        full = np.bincount(
            choice.owner(), weights=lacking & (self.room[tails] < 1), minlength=len(choice)
        )
        fits = np.flatnonzero(full == 0)
        if not len(fits):
            self._vain += 1
            return None
        best = int(fits[self._fullness(choice, float(self.flows.gbps[rows].sum()))[fits].argmin()])
        arcs, needing = choice.of(best), lacking[choice.first[best] : choice.first[best + 1]]
        self.room[self.network.tail[arcs[needing]]] -= 1
        found = Paths(
            rows,
            np.zeros_like(rows),
            self.flows.qps[rows] - 1,
            starts(np.full(len(rows), len(arcs))),
            np.tile(arcs, len(rows)),
        )
        self.load(found)
        return found

    def _choice(self, rows: Ints) -> Paths:
        """Every path that all flows of a pair may take, from NIC to NIC."""
        network, flows = self.network, self.flows
        ends = flows.source[rows[0]], flows.destination[rows[0]]
        source, destination = (int(network.terminal[end]) for end in ends)
        if NONE in (source, destination):
            return no_paths()
        strictest = int(flows.traffic_class[rows].max())
        matrix = self.candidates.of_class(source, destination, strictest)
        lengths = (matrix != network.pad).sum(axis=1)
        flow = np.full(len(matrix), rows[0])
        inner = Paths(flow, flow, flow, starts(lengths), matrix[matrix != network.pad])
        return with_nics(network, flows, inner)

    def _fullness(self, choice: Paths, gbps: float) -> Floats:
        """Worst utilisation along each path if so much more used it."""
        after = (self._load[choice.arcs] + gbps) * self.network.per_gbps[choice.arcs]
        worst = np.zeros(len(choice))
        np.maximum.at(worst, choice.owner(), after)
        return worst
