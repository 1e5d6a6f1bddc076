"""Paths laid down beforehand, as packets meet them: exact entries and nothing under them.

Ways of choosing that end in paths are measured by the same walk as hashing is. A
packet without a path, or off its path, is dropped.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Ints
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.flows import FIRST_SOURCE_PORT, SOURCE_PORT_COUNT, Flows
from heddle_controller.model.plan import Paths


class Pinned:
    """A ``Forwarding`` along given paths of given flows."""

    def __init__(self, fabric: Fabric, flows: Flows, paths: Paths) -> None:
        self._nodes = fabric.node_count
        self._tail = fabric.structure.tail
        self._match(flows, paths)
        owner = paths.owner()
        self._hops, place = np.unique(
            owner * self._nodes + self._tail[paths.arcs], return_index=True
        )
        self._arcs = np.append(paths.arcs[place], NONE)

    def _match(self, flows: Flows, paths: Paths) -> None:
        """The path of each source, destination and port; codes ascend."""
        count = paths.qp_count
        path = np.repeat(np.arange(len(paths), dtype=np.int64), count)
        qp = np.arange(len(path)) - np.repeat(np.cumsum(count) - count - paths.first_qp, count)
        flow = paths.flow[path]
        offset = flows.source_ports()[flow] - FIRST_SOURCE_PORT + qp
        port = FIRST_SOURCE_PORT + offset % SOURCE_PORT_COUNT
        self._codes, row = np.unique(
            self._code(flows.source[flow], flows.destination[flow], port), return_index=True
        )
        self._path = np.append(path[row], NONE)

    def _code(self, source: Ints, destination: Ints, port: Ints) -> Ints:
        return ((source * self._nodes + destination) << 16) + port

    def forward(self, switch: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
        """As ``Forwarding`` says."""
        return self._along(switch, source, destination, source_port)

    def leave(self, nic: Ints, destination: Ints, source_port: Ints) -> Ints:
        """As ``Hosting`` says."""
        return self._along(nic, nic, destination, source_port)

    def _along(self, node: Ints, source: Ints, destination: Ints, source_port: Ints) -> Ints:
        path = self._path[_found(self._codes, self._code(source, destination, source_port))]
        hop = _found(self._hops, np.where(path == NONE, NONE, path * self._nodes + node))
        return self._arcs[hop]


def _found(codes: Ints, wanted: Ints) -> Ints:
    """Place of each wanted code among ascending ones, -1 where it is not there."""
    if not len(codes):
        return np.full(len(wanted), -1, dtype=np.int64)
    place = np.minimum(np.searchsorted(codes, wanted), len(codes) - 1)
    return np.where(codes[place] == wanted, place, -1)
