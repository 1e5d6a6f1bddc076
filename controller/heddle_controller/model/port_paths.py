"""Which path each UDP source port takes between two NICs, where switches hash.

Where forwarding is plain ECMP, the source port of a QP decides its path. A *way* is a path between
two NICs that some ports are known to take, either because they were probed or because a model of
the hash says so. Ways are stored as compressed rows, sorted by source and then by destination.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from enum import IntEnum

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, cut_rows, starts


class Learned(IntEnum):
    """How the path of some ports is known."""

    PROBED = 0
    """Packets with these ports were traced."""
    MODELLED = 1
    """A fitted model of the hash predicts it. No packet with these ports was traced."""


@dataclass(frozen=True, slots=True, eq=False)
class PortPaths:
    """All known ways."""

    source: Ints
    """Node row of the NIC where each way begins, shape (ways,)."""
    destination: Ints
    """Node row of the NIC where each way ends, shape (ways,)."""
    learned: Ints
    """``Learned`` of each way, shape (ways,)."""
    first: Ints
    """Where each way's arcs begin in ``arcs``, shape (ways + 1,)."""
    arcs: Ints
    """Arcs of all ways, each way's in order of travel."""
    first_port: Ints
    """Where each way's ports begin in ``ports``, shape (ways + 1,)."""
    ports: Ints
    """Ports of all ways. Each way has at least one; a port has one way between two NICs."""

    def __len__(self) -> int:
        return len(self.source)

    @property
    def port_count(self) -> Ints:
        """Number of ports of each way, shape (ways,)."""
        return np.diff(self.first_port)

    def of(self, source: int, destination: int) -> range:
        """Return the rows of the ways between two NICs, given by node row."""
        low, high = (
            int(np.searchsorted(self.source, source, side=side)) for side in ("left", "right")
        )
        ends = self.destination[low:high]
        return range(
            low + int(np.searchsorted(ends, destination, side="left")),
            low + int(np.searchsorted(ends, destination, side="right")),
        )

    def take(self, rows: Ints) -> PortPaths:
        """Return some of the ways, in the order of ``rows``."""
        first, at = cut_rows(self.first, rows)
        first_port, port_at = cut_rows(self.first_port, rows)
        return PortPaths(
            self.source[rows],
            self.destination[rows],
            self.learned[rows],
            first,
            self.arcs[at],
            first_port,
            self.ports[port_at],
        )

    def same_as(self, other: PortPaths | None) -> bool:
        """Return whether both are equal in every column."""
        return self is other or (
            other is not None
            and all(
                np.array_equal(getattr(self, one.name), getattr(other, one.name))
                for one in fields(self)
            )
        )

    def without(self, source: Ints, destination: Ints) -> PortPaths:
        """Return all ways except those between the pairs ``source[i]``, ``destination[i]``."""
        pairs = set(zip(source.tolist(), destination.tolist(), strict=True))
        ends = zip(self.source.tolist(), self.destination.tolist(), strict=True)
        return self.take(np.flatnonzero([pair not in pairs for pair in ends]))

    def over(self, usable: Bools) -> PortPaths:
        """Return the ways whose arcs are all usable; ``usable`` has shape (arcs of the fabric,)."""
        owner = np.repeat(np.arange(len(self)), np.diff(self.first))
        broken = np.bincount(owner[~usable[self.arcs]], minlength=len(self)) > 0
        return self.take(np.flatnonzero(~broken))


def no_port_paths() -> PortPaths:
    """Return an empty set of ways."""
    none = np.empty(0, dtype=np.int64)
    begin = np.zeros(1, dtype=np.int64)
    return PortPaths(none, none, none, begin, none, begin, none)


def joined_port_paths(parts: Sequence[PortPaths]) -> PortPaths:
    """Return the ways of several sets. No two sets may have ways between the same two NICs."""
    known = [part for part in parts if len(part)]
    if not known:
        return no_port_paths()
    source, destination, learned = (
        np.concatenate([getattr(part, name) for part in known])
        for name in ("source", "destination", "learned")
    )
    whole = PortPaths(
        source,
        destination,
        learned,
        starts(np.concatenate([np.diff(part.first) for part in known])),
        np.concatenate([part.arcs for part in known]),
        starts(np.concatenate([part.port_count for part in known])),
        np.concatenate([part.ports for part in known]),
    )
    return whole.take(np.lexsort((whole.destination, whole.source)))


def padded(first: Ints, values: Ints, width: int) -> Ints:
    """Return compressed rows as a matrix, filled up with ``NONE``, shape (rows, width)."""
    lengths = np.diff(first)
    matrix = np.full((len(lengths), width), NONE, dtype=np.int64)
    owner = np.repeat(np.arange(len(lengths)), lengths)
    matrix[owner, np.arange(len(values)) - np.repeat(first[:-1], lengths)] = values
    return matrix


def gathered(ends: Ints, port: Ints, learned: Ints, taken: tuple[Ints, Ints]) -> PortPaths:
    """Group the paths of single ports, given in any order, into ways.

    A port whose path has no arcs is left out. If a port occurs twice for the same two NICs, the
    last one counts. A way counts as probed if any of its ports was.

    Args:
        ends: Node rows of the source and destination NIC of each port, shape (2, ports).
        port: UDP source ports, shape (ports,).
        learned: How each port's path is known (``Learned``), shape (ports,).
        taken: Path of each port as compressed rows: where each begins, and the arcs of all.
    """
    first, arcs = taken
    lengths = np.diff(first)
    keys = np.concatenate([ends, port[None]])
    # The first of reversed rows is the last one.
    _, last = np.unique(keys[:, ::-1], axis=1, return_index=True)
    rows = len(port) - 1 - last
    rows = rows[lengths[rows] > 0]
    matrix = padded(first, arcs, int(lengths.max(initial=0)))[rows]
    whole = np.concatenate([ends[:, rows].T, matrix], axis=1)
    ways, way = np.unique(whole, axis=0, return_inverse=True)
    way = way.ravel()
    order = np.lexsort((port[rows], way))
    known = np.full(len(ways), int(Learned.MODELLED), dtype=np.int64)
    np.minimum.at(known, way, learned[rows])
    used = ways[:, 2:] != NONE
    return PortPaths(
        ways[:, 0],
        ways[:, 1],
        known,
        starts(used.sum(axis=1)),
        ways[:, 2:][used],
        starts(np.bincount(way, minlength=len(ways))),
        port[rows][order],
    )
