"""What links carry after one of them has failed, while backups are being chosen.

The load that falls on an arc when a link fails is kept for each link by itself, so
that flows of one link do not all fall back on the same way, which looked idle to each.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import Floats, Ints
from heddle_controller.model.flows import Flows
from heddle_controller.model.load import arc_loads
from heddle_controller.model.plan import Paths
from heddle_controller.solve.network import Network

MOST_CELLS = 10_000_000
"""Links times arcs that are kept account of; the failures of more are not told apart."""


class FailureLoads:
    """Loads after each single failure; arrays are by arc, the padding last."""

    def __init__(self, network: Network, flows: Flows, paths: Paths) -> None:
        self._network = network
        self._load: Floats = np.append(arc_loads(network.arc_count, flows, paths), 0.0)
        self._gbps = paths.gbps(flows)
        self._fallen: dict[int, Floats] = {}
        self._most = MOST_CELLS // len(self._load)

    def utilization(self, links: Ints, row: int) -> Floats:
        """The worst over failures of the links, if a path's rate were on every arc then.

        What the failure takes off an arc is not taken off: it may be too much, never too
        little.
        """
        fallen = [self._fallen[link] for link in links.tolist() if link in self._fallen]
        worst = np.max(fallen, axis=0) if fallen else 0.0
        after: Floats = (self._load + worst + self._gbps[row]) * self._network.per_gbps
        return after

    def note(self, links: Ints, row: int, backup: Ints) -> None:
        """A path that uses the links falls back on a backup."""
        for link in links.tolist():
            fallen = self._fallen.get(link)
            if fallen is None and len(self._fallen) < self._most:
                fallen = self._fallen[link] = np.zeros(len(self._load), dtype=np.float64)
            if fallen is not None:
                fallen[backup] += self._gbps[row]
