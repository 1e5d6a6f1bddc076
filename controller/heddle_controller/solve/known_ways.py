"""The paths that flows may take where some switches hash.

A flow that may come to a hashing switch with a choice there is carried by source ports. No switch
holds entries for its two NICs, so packets of one port take the same path until the hash changes.
Its candidates are the paths that known ports take. Addresses are hashed, too, so two pairs of NICs
on the same leaves have different paths. These candidates are therefore between NICs and not between
terminals.

All other flows are carried by entries, over paths that need no entry in a hashing switch.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.fabric import Fabric, State
from heddle_controller.model.flows import Flows
from heddle_controller.model.port_paths import PortPaths, padded
from heddle_controller.model.underlay import needs_entry
from heddle_controller.solve.assignment import of_sole_links
from heddle_controller.solve.candidates import Candidates
from heddle_controller.solve.network import Network


class KnownWays(Candidates):
    """Candidate paths of flows: between NICs if ports carry a flow, else between terminals."""

    def __init__(self, network: Network, flows: Flows, known: PortPaths, limit: int) -> None:
        super().__init__(network, limit)
        self.known = known
        inner = ~of_sole_links(network)[known.arcs]
        first = np.append(0, np.cumsum(inner))[known.first]
        width = int(np.diff(first).max(initial=0))
        matrix = padded(first, known.arcs[inner], width)
        self._matrix_of_known = np.where(matrix == NONE, network.pad, matrix)
        self._programmed = Candidates(network, limit)
        # Hashing ignores maintenance: it uses drained links like others.
        self._any, self._whole = (
            Candidates(Network(fabric), limit) for fabric in _undrained(network.fabric)
        )
        self._nic_at: dict[tuple[int, int], int] = {}
        """A NIC at the second of two terminals between which flows run."""
        self._nics: set[tuple[int, int]] = set()
        """Pairs of NICs whose flows are carried by ports."""
        self.by_ports = self._parted(flows)
        """Marks the flows that are carried by ports, shape (flows,)."""

    def ends_of(self, flows: Flows, flow: int) -> tuple[int, int]:
        """Return the NICs of a flow that ports carry, the terminals of any other flow."""
        nics = int(flows.source[flow]), int(flows.destination[flow])
        return nics if nics in self._nics else super().ends_of(flows, flow)

    def with_longer(self, source: int, destination: int) -> Ints:
        """Return the candidates only: hashing takes no longer paths."""
        return self.between(source, destination)

    with_detours = with_longer

    def _search(self, source: int, destination: int) -> Ints:
        if (source, destination) in self._nics:
            only = self._only_way(source, destination)
            if only is not None:
                return only
            rows = self.known.of(source, destination)
            return self._matrix_of_known[rows.start : rows.stop]
        paths = self._programmed.between(source, destination)
        nic = self._nic_at.get((source, destination))
        if nic is None or not len(paths):
            return paths
        return paths[~self._met_hash(self.network, paths, np.full(len(paths), nic))]

    def _only_way(self, source: int, destination: int) -> Ints | None:
        """Return the path that every port takes, if there is only one, else None."""
        ends, usable = (
            (int(network.terminal[source]), int(network.terminal[destination]))
            for network in (self._any.network, self.network)
        )
        if ends != usable or NONE in ends:
            return None
        only = self._any.shortest(*ends)
        taken = only[only != self.network.pad]
        return only if len(only) == 1 and self.network.usable[taken].all() else None

    def _parted(self, flows: Flows) -> Bools:
        """Mark flows that may come to a hashing switch with a choice, on any shortest path.

        Shortest paths of the whole fabric count, too: a flow that a loss leaves with one path keeps
        its ports.
        """
        fabric = self.network.fabric
        by_ports = np.zeros(len(flows), dtype=np.bool_)
        if not fabric.structure.hashes.any():
            return by_ports
        for ways in (self._any, self._whole):
            by_ports |= self._hashed(ways, flows)
        rows = np.flatnonzero(by_ports)
        self._nics.update(
            zip(flows.source[rows].tolist(), flows.destination[rows].tolist(), strict=True)
        )
        ends = [self.network.terminal[end].tolist() for end in (flows.source, flows.destination)]
        self._nic_at.update(zip(zip(*ends, strict=True), flows.destination.tolist(), strict=True))
        return by_ports

    def _hashed(self, ways: Candidates, flows: Flows) -> Bools:
        """Mark flows that may come to such a switch on a shortest path of one network."""
        network, hashed = ways.network, np.zeros(len(flows), dtype=np.bool_)
        ends = np.stack([network.terminal[flows.source], network.terminal[flows.destination]])
        some = np.flatnonzero((ends != NONE).all(axis=0))
        pairs, at, pair = np.unique(ends[:, some], axis=1, return_index=True, return_inverse=True)
        nic = flows.destination[some[at]]
        found = [ways.shortest(*map(int, one)) for one in pairs.T]
        owner = np.repeat(np.arange(len(found)), [len(one) for one in found])
        width = max((one.shape[1] for one in found), default=0)
        wide = [
            np.pad(one, ((0, 0), (0, width - one.shape[1])), constant_values=network.pad)
            for one in found
        ]
        paths = np.concatenate([*wide, np.empty((0, width), dtype=np.int64)])
        met = np.zeros(len(found), dtype=np.bool_)
        met[owner[self._met_hash(network, paths, nic[owner])]] = True
        hashed[some] = met[pair.ravel()]
        return hashed

    @staticmethod
    def _met_hash(network: Network, paths: Ints, nic: Ints) -> Bools:
        """Mark paths between terminals that would need an entry in a hashing switch.

        Args:
            network: The network of the paths.
            paths: Rows of arcs, padded.
            nic: The NIC that each path leads to.
        """
        structure = network.fabric.structure
        used = paths != network.pad
        owner, place = np.nonzero(used)
        arcs = paths[owner, place]
        lengths = used.sum(axis=1) + (network.terminal[nic] != nic)
        at = np.flatnonzero(structure.hashes[structure.tail[arcs]])
        met = np.zeros(len(paths), dtype=np.bool_)
        if len(at):
            row = owner[at]
            left = lengths[row] - place[at]
            needed = needs_entry(structure, arcs[at], nic[row], left)
            met[row[needed]] = True
        return met


def _undrained(fabric: Fabric) -> tuple[Fabric, Fabric]:
    """Return the same fabric with drained parts up, and the same with everything up."""
    links, nodes = fabric.link_state, fabric.node_state
    states = (
        (np.where(one == State.DRAINED, State.UP, one), np.full_like(one, State.UP))
        for one in (links, nodes)
    )
    now, whole = zip(*states, strict=True)
    return Fabric(fabric.structure, *now), Fabric(fabric.structure, *whole)
