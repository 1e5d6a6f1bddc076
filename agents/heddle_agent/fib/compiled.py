"""Exact-match entries as sorted arrays, to look up tens of thousands of packets at once.

The arrays are built on the first lookup after a change. So programming stays as cheap as a
dictionary, and a switch without bulk lookups never pays. A lookup makes two searches, first for the
pair of NICs and then for pair and ports, because both do not fit into one 64-bit key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heddle_agent.fib.hashing import Ints
from heddle_agent.fib.names import NicIds, Packets
from heddle_agent.fib.values import ANY_PORT, Match

MISS = -1
# Which ports (source, destination) a match may fix. More exact ones win, then the source port.
SHAPES = ((True, True), (True, False), (False, True), (False, False))


def find(keys: Ints, wanted: Ints) -> Ints:
    """Return the position of each wanted key among sorted keys; MISS if it is absent."""
    if not len(keys):
        return np.full(len(wanted), MISS, dtype=np.int64)
    row = np.searchsorted(keys, wanted)
    row[row == len(keys)] = 0
    return np.where(keys[row] == wanted, row, MISS)


@dataclass(frozen=True, slots=True, eq=False)
class Compiled:
    """Entries ready for bulk lookup; row i is the i-th match passed to ``compiled``."""

    pairs: Ints
    keys: Ints
    rows: Ints
    shapes: tuple[tuple[bool, bool], ...]

    def find(self, packets: Packets) -> Ints:
        """Return the row of the entry that matches each packet; MISS if none does."""
        pair = find(self.pairs, packets.source << 32 | packets.destination)
        found = np.full(len(packets), MISS, dtype=np.int64)
        for exact_source, exact_destination in self.shapes:
            open_ = np.flatnonzero((found == MISS) & (pair != MISS))
            key = pair[open_] << 32
            if exact_source:
                key |= packets.source_port[open_] << 16
            if exact_destination:
                key |= packets.destination_port[open_]
            hit = find(self.keys, key)
            found[open_] = np.where(hit == MISS, MISS, self.rows[hit])
        return found


def compiled(matches: Sequence[Match], names: NicIds) -> Compiled:
    """Arrange matches for bulk lookup."""
    count = len(matches)
    columns = tuple(zip(*matches, strict=True)) or ((), (), (), ())
    source, destination = names.ids(columns[0]), names.ids(columns[1])
    source_port = np.fromiter(columns[2], dtype=np.int64, count=count)
    destination_port = np.fromiter(columns[3], dtype=np.int64, count=count)
    pairs, pair = np.unique(source << 32 | destination, return_inverse=True)
    keys = pair.astype(np.int64) << 32 | source_port << 16 | destination_port
    order = np.argsort(keys)
    return Compiled(pairs, keys[order], order, _shapes(source_port, destination_port))


def _shapes(source_port: Ints, destination_port: Ints) -> tuple[tuple[bool, bool], ...]:
    """Return the shapes that occur, most exact first. Most tables have one or two."""
    exact: tuple[NDArray[np.bool_], NDArray[np.bool_]] = (
        source_port != ANY_PORT,
        destination_port != ANY_PORT,
    )
    return tuple(
        shape for shape in SHAPES if bool(((exact[0] == shape[0]) & (exact[1] == shape[1])).any())
    )
