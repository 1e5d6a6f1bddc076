"""Names of NICs as small integers, so that packets can be arrays.

All agents of a process share one ``NicIds``, so that an array of packets means the same to each of
them. It only grows, and only one thread may use it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from heddle_agent.fib.hashing import Hashes, Ints, name_hash


class NicIds:
    """NIC names and their ids, numbered from 0 in the order in which they were first seen."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._ids: dict[str, int] = {}
        self._names: list[str] = []
        self._hashes: Hashes = np.empty(0, dtype=np.uint64)
        self.ids(names)

    def __len__(self) -> int:
        return len(self._names)

    def id(self, name: str) -> int:
        """Return the id of a name. A name that is new gets a new id."""
        known = self._ids.setdefault(name, len(self._names))
        if known == len(self._names):
            self._names.append(name)
        return known

    def ids(self, names: Iterable[str]) -> Ints:
        """Return the ids of names, as an array with one element per name."""
        return np.fromiter(map(self.id, names), dtype=np.int64)

    def name(self, number: int) -> str:
        """Return the name with this id; IndexError if there is none."""
        return self._names[number]

    @property
    def hashes(self) -> Hashes:
        """The 64-bit hash of each name, indexed by id."""
        if len(self._hashes) < len(self._names):
            fresh = map(name_hash, self._names[len(self._hashes) :])
            self._hashes = np.concatenate([self._hashes, np.fromiter(fresh, dtype=np.uint64)])
        return self._hashes


@dataclass(frozen=True, slots=True, eq=False)
class Packets:
    """UDP packets as arrays of the same length, one element per packet."""

    source: Ints
    """Ids of source NICs in the ``NicIds`` of the FIB that looks the packets up."""
    destination: Ints
    """Ids of destination NICs."""
    source_port: Ints
    destination_port: Ints

    def __len__(self) -> int:
        return len(self.source)

    def take(self, rows: Ints) -> Packets:
        """Return the packets at these positions."""
        return Packets(
            self.source[rows],
            self.destination[rows],
            self.source_port[rows],
            self.destination_port[rows],
        )
