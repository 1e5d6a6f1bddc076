"""Condition of each cable: whole, degraded, silent or dark.

A dark cable has lost its carrier. A silent cable keeps its carrier and loses some or all packets.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from heddle_controller.model.arrays import Bools, Floats
from heddle_controller.model.fabric import Fabric


@dataclass(slots=True)
class Cables:
    """Conditions of cables by link row. A row that is not listed is whole."""

    cut: set[int] = field(default_factory=set)
    silent: dict[int, float] = field(default_factory=dict)
    """Share of packets lost by link row, above 0 and at most 1."""
    degraded: dict[int, float] = field(default_factory=dict)
    """Remaining Gbit/s each way by link row."""
    powerless: Mapping[int, int] = field(default_factory=dict)
    """By link row, how many of the two ends are at a switch without power."""

    @property
    def broken(self) -> list[int]:
        """Rows of cut, silent or degraded cables; cables that only lack power are left out."""
        return sorted(self.cut | self.silent.keys() | self.degraded.keys())

    @property
    def without_carrier(self) -> set[int]:
        """Rows of cables that have no carrier."""
        return self.cut | {row for row, ends in self.powerless.items() if ends}

    def dark(self, row: int) -> bool:
        """Whether a cable has no carrier."""
        return row in self.cut or self.powerless.get(row, 0) > 0

    def carries(self, row: int) -> bool:
        """Whether at least some packets get through."""
        return not self.dark(row) and self.silent.get(row, 0.0) < 1

    def mend(self, rows: Iterable[int]) -> None:
        """Make cables whole. Cables of a switch without power stay dark."""
        for row in rows:
            self.cut.discard(row)
            self.silent.pop(row, None)
            self.degraded.pop(row, None)

    def power(self, rows: Iterable[int], *, on: bool) -> None:
        """Note that the switch at one end of each of these cables lost or regained power."""
        counts = dict(self.powerless)
        for row in rows:
            counts[row] = counts.get(row, 0) + (-1 if on else 1)
        self.powerless = counts

    def capacity(self, fabric: Fabric) -> Floats:
        """Return the Gbit/s that each arc delivers at its end, less losses, shape (arcs,)."""
        found = fabric.structure.capacity.astype(np.float64)
        for row in range(fabric.link_count):
            if not self.carries(row):
                found[2 * row : 2 * row + 2] = 0.0
        for row, gbps in self.degraded.items():
            arcs = slice(2 * row, 2 * row + 2)
            found[arcs] = np.minimum(found[arcs], gbps)
        return found * (1 - self.loss(fabric))

    def loss(self, fabric: Fabric) -> Floats:
        """Return the share of packets that each arc loses, shape (arcs,)."""
        found = np.zeros(2 * fabric.link_count)
        for row, share in self.silent.items():
            found[2 * row : 2 * row + 2] = share
        return found

    def lossy(self, fabric: Fabric) -> Bools:
        """Return whether each arc loses some packets but not all, shape (arcs,)."""
        loss = self.loss(fabric)
        return (loss > 0) & (loss < 1)
