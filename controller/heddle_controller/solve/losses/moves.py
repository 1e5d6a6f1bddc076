"""Which paths each single loss breaks, and what becomes of them before anybody plans.

Agents turn every path that crosses what was lost to its backup. A path whose backup is lost as
well, or that has none, is *stranded*: until routing has settled nobody can say where it goes. If
its source is cut off at its own NIC it is *apart*: switches never see its packets, and the host has
to move it, if it has another link. So it is if its destination is cut off altogether.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints, among
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.plan import Paths, Plan

Kind: TypeAlias = Literal["link", "switch"]
MOVED, STRANDED, APART = range(3)


@dataclass(frozen=True, slots=True, eq=False)
class SingleLosses:
    """All single losses of one kind: links between switches, or switches, that are in service."""

    fabric: Fabric
    kind: Kind
    rows: Ints
    """Links or nodes of the fabric, ascending, shape (losses,)."""

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, fabric: Fabric, kind: Kind) -> SingleLosses:
        """Those of a fabric as it stands."""
        inner = _inner(fabric) & fabric.carries
        if kind == "link":
            return cls(fabric, kind, np.flatnonzero(inner[::2]))
        return cls(fabric, kind, np.unique(fabric.structure.head[inner]))

    def name(self, loss: int) -> str:
        """A loss as ``--down`` takes it."""
        structure, row = self.fabric.structure, int(self.rows[loss])
        if self.kind == "switch":
            return structure.nodes.ids[row]
        return self.fabric.link_name(row)

    def takes(self, loss: Ints, arc: Ints) -> Bools:
        """Whether each loss takes each arc with it; both of one shape."""
        row = self.rows[loss]
        if self.kind == "link":
            return np.asarray(arc >> 1 == row)
        structure = self.fabric.structure
        return np.asarray((structure.tail[arc] == row) | (structure.head[arc] == row))

    def met(self, paths: Paths) -> tuple[Ints, Ints]:
        """Loss and path, parallel: every loss that breaks each path."""
        structure = self.fabric.structure
        owner, arcs = paths.owner(), paths.arcs
        if self.kind == "link":
            kept = _inner(self.fabric)[arcs]
            row, owner = arcs[kept] >> 1, owner[kept]
        else:
            kept = structure.nodes.kind[structure.head[arcs]] != NodeKind.NIC
            row, owner = structure.head[arcs][kept], owner[kept]
        place = np.full(max(self.fabric.link_count, len(structure.nodes.kind)), NONE)
        place[self.rows] = np.arange(len(self.rows))
        known = place[row] >= 0
        return place[row[known]], owner[known]


@dataclass(frozen=True, slots=True, eq=False)
class Moves:
    """A row for each path that a loss breaks, ordered by loss and path."""

    loss: Ints
    path: Ints
    fate: Ints

    @classmethod
    def of(cls, plan: Plan, losses: SingleLosses) -> Moves:
        """What becomes of every path after every loss."""
        loss, path = losses.met(plan.paths)
        width = max(len(plan.paths), 1)
        # A path has no loss twice: it has no loops.
        code = np.sort(loss * width + path, kind="stable")
        loss, path = code // width, code % width
        spare = np.diff(plan.backups.first) > 0
        fate = np.where(spare[path], MOVED, STRANDED)
        struck, owner = losses.met(plan.backups)
        fate[among(code, np.sort(struck * width + owner, kind="stable"))] = STRANDED
        fate[_apart(plan, losses, loss, path, fate)] = APART
        return cls(loss, path, fate)

    def rows(self, fate: int) -> Ints:
        """Rows of one fate."""
        return np.flatnonzero(self.fate == fate)


def _apart(plan: Plan, losses: SingleLosses, loss: Ints, path: Ints, fate: Ints) -> Bools:
    """Whether a stranded path's source, or all of its destination, is cut off with the loss."""
    if losses.kind == "link":
        return np.zeros(len(loss), dtype=np.bool_)
    structure, paths = plan.fabric.structure, plan.paths
    first = structure.head[paths.arcs[paths.first[:-1][path]]]
    target = structure.head[paths.arcs[paths.first[1:][path] - 1]]
    nodes, live = len(structure.nodes.kind), plan.fabric.carries
    total = np.bincount(structure.head[live], minlength=nodes)
    codes, count = np.unique(
        structure.tail[live] * nodes + structure.head[live], return_counts=True
    )
    row = losses.rows[loss]
    code = row * nodes + target
    place = np.minimum(np.searchsorted(codes, code), max(len(codes) - 1, 0))
    taken = np.where(codes[place] == code, count[place], 0) if len(codes) else np.zeros(len(code))
    return np.asarray((fate != MOVED) & ((first == row) | (total[target] == taken)))


def _inner(fabric: Fabric) -> Bools:
    """Arcs between switches."""
    structure = fabric.structure
    is_nic = structure.nodes.kind == NodeKind.NIC
    return np.asarray(~is_nic[structure.tail] & ~is_nic[structure.head])
