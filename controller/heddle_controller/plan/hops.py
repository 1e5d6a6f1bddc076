"""The hops of a plan at switches: what each path asks of each switch it passes.

One row a hop, in order of paths and of travel. Which hops need an entry is the
underlay's to say (``model.underlay``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import NONE, Bools, Ints
from heddle_controller.model.fabric import NodeKind
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.model.underlay import needs_entry


@dataclass(frozen=True, slots=True, eq=False)
class Hops:
    """Hops at switches, parallel columns."""

    path: Ints
    """Row in the plan's paths."""
    place: Ints
    """Position in the paths' arcs."""
    arc: Ints
    switch: Ints
    source: Ints
    destination: Ints
    needed: Bools
    """Whether the hop needs an entry."""
    backup: Ints
    """Position in the backups' arcs where the backup leaves this switch by another
    arc; ``NONE`` where it does not."""

    def __len__(self) -> int:
        return len(self.path)


def hops_of(plan: Plan) -> Hops:
    """Every hop of every path that leaves a switch."""
    paths, structure = plan.paths, plan.fabric.structure
    tails = structure.tail[paths.arcs]
    place = np.flatnonzero(structure.nodes.kind[tails] != NodeKind.NIC)
    path = paths.owner()[place]
    arc = paths.arcs[place]
    flow = paths.flow[path]
    destination = plan.flows.destination[flow]
    return Hops(
        path=path,
        place=place,
        arc=arc,
        switch=tails[place],
        source=plan.flows.source[flow],
        destination=destination,
        needed=needs_entry(structure, arc, destination, paths.first[path + 1] - place)
        & ~plan.by_ports[flow],
        backup=_backups(plan, path, arc),
    )


def _backups(plan: Plan, path: Ints, arc: Ints) -> Ints:
    """Where each hop's backup leaves the same switch by another arc."""
    backups, structure = plan.backups, plan.fabric.structure
    if not len(backups.arcs):
        return np.full(len(path), NONE, dtype=np.int64)
    nodes = len(structure.nodes.ids)
    codes = backups.owner() * nodes + structure.tail[backups.arcs]
    order = np.argsort(codes)
    sought = path * nodes + structure.tail[arc]
    found = order[np.minimum(np.searchsorted(codes, sought, sorter=order), len(codes) - 1)]
    leaves = (codes[found] == sought) & (backups.arcs[found] != arc)
    return np.where(leaves, found, NONE)


def links_ahead(plan: Plan, paths: Paths, path: Ints, place: Ints) -> tuple[Ints, Ints]:
    """Links between switches from a position of a path on, shape (uses,) both.

    Returns:
        The row in ``place`` each use belongs to, and its link.
    """
    rows, arcs = arcs_ahead(plan, paths, path, place)
    return rows, arcs >> 1


def arcs_ahead(plan: Plan, paths: Paths, path: Ints, place: Ints) -> tuple[Ints, Ints]:
    """As ``links_ahead``, in order of travel, by their arcs."""
    structure = plan.fabric.structure
    length = paths.first[path + 1] - place
    rows = np.repeat(np.arange(len(place)), length)
    within = np.arange(len(rows)) - np.repeat(np.cumsum(length) - length, length)
    arcs = paths.arcs[np.repeat(place, length) + within]
    switch = structure.nodes.kind != NodeKind.NIC
    inner = switch[structure.tail[arcs]] & switch[structure.head[arcs]]
    return rows[inner], arcs[inner]
