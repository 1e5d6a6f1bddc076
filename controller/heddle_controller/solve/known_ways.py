"""The paths that flows may take where switches hash: those that ports of their NICs lead to.

Two NICs on the same leaves as two others have ways of their own, since addresses are hashed too: so
candidates are between NICs here, not between terminals. Where there is one way only, as between
NICs of one leaf, every port takes it.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import NONE, Fabric, Ints, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.port_paths import PortPaths, padded
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.network import Network
from heddle_controller.solve.repair.carry_over import of_sole_links


class KnownWays(Candidates):
    """Candidate paths between NICs, from their terminals on."""

    def __init__(self, network: Network, known: PortPaths, limit: int) -> None:
        super().__init__(network, limit)
        self.known = known
        inner = ~of_sole_links(network)[known.arcs]
        first = np.append(0, np.cumsum(inner))[known.first]
        width = int(np.diff(first).max(initial=0))
        matrix = padded(first, known.arcs[inner], width)
        self._matrix_of_known = np.where(matrix == NONE, network.pad, matrix)
        # Hashing knows no maintenance: drained links are taken like others.
        self._any = Candidates(Network(_undrained(network.fabric)), limit)

    def ends_of(self, flows: Flows, flow: int) -> tuple[int, int]:
        """The NICs of a flow."""
        return int(flows.source[flow]), int(flows.destination[flow])

    def with_longer(self, source: int, destination: int) -> Ints:
        """The candidates: hashing takes no longer ways."""
        return self.between(source, destination)

    with_detours = with_longer

    def _search(self, source: int, destination: int) -> Ints:
        ends, usable = (
            (int(network.terminal[source]), int(network.terminal[destination]))
            for network in (self._any.network, self.network)
        )
        if ends == usable and NONE not in ends:
            only = self._any.shortest(*ends)
            if len(only) == 1 and self.network.usable[only[only != self.network.pad]].all():
                return only
        rows = self.known.of(source, destination)
        return self._matrix_of_known[rows.start : rows.stop]


def _undrained(fabric: Fabric) -> Fabric:
    """The same fabric with nothing in maintenance."""
    links, nodes = (
        np.where(states == State.DRAINED, State.UP, states)
        for states in (fabric.link_state, fabric.node_state)
    )
    return Fabric(fabric.structure, links, nodes)
