"""How cables are: whole, degraded, silent or dark, each by itself.

A dark cable has lost its carrier; a silent one keeps it and loses packets, some or all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

from heddle_controller.model.arrays import Bools, Floats
from heddle_controller.model.fabric import Fabric


@dataclass(slots=True)
class Cables:
    """Conditions by link row; what is not named is whole."""

    cut: set[int] = field(default_factory=set)
    silent: dict[int, float] = field(default_factory=dict)
    """Share of packets lost, above 0 and at most 1."""
    degraded: dict[int, float] = field(default_factory=dict)
    """Gbit/s each way."""
    powerless: Mapping[int, int] = field(default_factory=dict)
    """Cables of switches without power, and how many of their ends are."""

    @property
    def broken(self) -> list[int]:
        """Rows of cables that are not whole by themselves."""
        return sorted(self.cut | self.silent.keys() | self.degraded.keys())

    @property
    def without_carrier(self) -> set[int]:
        """Rows of cables that have none."""
        return self.cut | {row for row, ends in self.powerless.items() if ends}

    def dark(self, row: int) -> bool:
        """Whether a cable has no carrier."""
        return row in self.cut or self.powerless.get(row, 0) > 0

    def carries(self, row: int) -> bool:
        """Whether any packet gets through."""
        return not self.dark(row) and self.silent.get(row, 0.0) < 1

    def mend(self, rows: Iterable[int]) -> None:
        """Make cables whole; a switch without power keeps its own dark."""
        for row in rows:
            self.cut.discard(row)
            self.silent.pop(row, None)
            self.degraded.pop(row, None)

    def power(self, rows: Iterable[int], *, on: bool) -> None:
        """The switch at one end of each of these lost its power, or has it again."""
        counts = dict(self.powerless)
        for row in rows:
            counts[row] = counts.get(row, 0) + (-1 if on else 1)
        self.powerless = counts

    def capacity(self, fabric: Fabric) -> Floats:
        """Gbit/s that each arc brings to its end: what is lost on the way does not count."""
        found = fabric.structure.capacity.astype(np.float64)
        for row in range(fabric.link_count):
            if not self.carries(row):
                found[2 * row : 2 * row + 2] = 0.0
        for row, gbps in self.degraded.items():
            arcs = slice(2 * row, 2 * row + 2)
            found[arcs] = np.minimum(found[arcs], gbps)
        return found * (1 - self.loss(fabric))

    def loss(self, fabric: Fabric) -> Floats:
        """Share of packets that each arc loses, shape (arcs,)."""
        found = np.zeros(2 * fabric.link_count)
        for row, share in self.silent.items():
            found[2 * row : 2 * row + 2] = share
        return found

    def lossy(self, fabric: Fabric) -> Bools:
        """Arcs that lose some packets and let others through."""
        loss = self.loss(fabric)
        return (loss > 0) & (loss < 1)
