"""What taking links out of service does: who is left on them, and who is cut off."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Bools, Ints
from heddle_controller.model.fabric import Fabric, NodeKind
from heddle_controller.model.plan import Plan


def flows_over(plan: Plan, links: Ints, *, backups: bool) -> Ints:
    """Rows of the flows with a path over some links, by row, or also a backup; ascending."""
    arcs = np.zeros(2 * plan.fabric.link_count, dtype=np.bool_)
    arcs[2 * links] = arcs[2 * links + 1] = True
    over = np.zeros(len(plan.flows), dtype=np.bool_)
    over[plan.paths.flow[plan.paths.crosses(arcs)]] = True
    if backups:
        over[plan.backups.flow[plan.backups.crosses(arcs)]] = True
    return np.flatnonzero(over)


def links_of(fabric: Fabric, switches: Ints) -> Ints:
    """Rows of all links of some nodes, ascending."""
    links = fabric.structure.links
    return np.flatnonzero(np.isin(links.a, switches) | np.isin(links.b, switches))


def cut_off(before: Fabric, after: Fabric) -> Ints:
    """Node rows of NICs that could take new paths to most of those they now can take none to.

    Of the NICs that are joined in ``before``, those that are alone in ``after``, or not with the
    greatest part of them. NICs with several links join what these lead to. Both fabrics have one
    structure.
    """
    nics = np.flatnonzero(before.structure.nodes.kind == NodeKind.NIC)
    was, now = _parts(before, before.plannable), _parts(after, after.plannable)
    pairs, part = np.unique(np.stack([was[nics], now[nics]]), axis=1, return_inverse=True)
    sizes = np.bincount(part.ravel(), minlength=pairs.shape[1])
    order = np.lexsort((sizes, pairs[0]))  # of those that were one, the greatest part is the last
    last = order[np.flatnonzero(np.diff(pairs[0][order], append=-1))]
    stays = np.zeros(len(sizes), dtype=np.bool_)
    stays[last] = True
    stays &= (sizes > 1) | (np.bincount(pairs[0], sizes)[pairs[0]] == 1)
    return nics[~stays[part.ravel()]]


def _parts(fabric: Fabric, usable: Bools) -> Ints:
    """For each node the least row of those that it is joined to by usable arcs."""
    tail, head = fabric.structure.tail[usable], fabric.structure.head[usable]
    part: Ints = np.arange(fabric.node_count)
    while True:
        least = part.copy()
        np.minimum.at(least, tail, part[head])
        least = least[least]  # as far as is known by now, so that long chains take few rounds
        if np.array_equal(least, part):
            return part
        part = least
