"""Names of NICs as small integers, so that packets travel as arrays.

One ``NicIds`` is shared by all agents of a process: an array of packets then means the same to each
of them. It only grows, and belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from heddle_agent.fib.hashing import Hashes, Ints, name_hash


class NicIds:
    """NIC names and their ids, counted from 0 in the order first seen."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._ids: dict[str, int] = {}
        self._names: list[str] = []
        self._hashes: Hashes = np.empty(0, dtype=np.uint64)
        self.ids(names)

    def __len__(self) -> int:
        return len(self._names)

    def id(self, name: str) -> int:
        """The id of a name, a new one if it was never seen."""
        known = self._ids.setdefault(name, len(self._names))
        if known == len(self._names):
            self._names.append(name)
        return known

    def ids(self, names: Iterable[str]) -> Ints:
        """The ids of names, one element each."""
        return np.fromiter(map(self.id, names), dtype=np.int64)

    def name(self, number: int) -> str:
        """The name behind an id; IndexError if there is none."""
        return self._names[number]

    @property
    def hashes(self) -> Hashes:
        """64-bit hash of each name, by id."""
        if len(self._hashes) < len(self._names):
            fresh = map(name_hash, self._names[len(self._hashes) :])
            self._hashes = np.concatenate([self._hashes, np.fromiter(fresh, dtype=np.uint64)])
        return self._hashes


@dataclass(frozen=True, slots=True, eq=False)
class Packets:
    """UDP packets as arrays, one element each, all of one length."""

    source: Ints
    """Ids of source NICs in the ``NicIds`` of the FIB that is asked."""
    destination: Ints
    """Ids of destination NICs."""
    source_port: Ints
    destination_port: Ints

    def __len__(self) -> int:
        return len(self.source)

    def take(self, rows: Ints) -> Packets:
        """Some of the packets, by position."""
        return Packets(
            self.source[rows],
            self.destination[rows],
            self.source_port[rows],
            self.destination_port[rows],
        )
