"""Hop counts to a few places, searched place by place.

Where all places are searched at once, each step is an OR over all links, and their ends are put
in order before that. For the one place or two to which a lost link matters that is most of the
work: from those, every link is walked once, backwards, as the search comes by.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import Bools, Ints, NodeKind, Structure
from heddle_controller.model.hop_counts import Hops

MOST = 4
"""Places, beyond which they are searched all at once."""


def search_few(structure: Structure, carries: Bools, row: Ints, distance: Hops) -> Bools:
    """Fill in the distances of all places, 0 where a place is; say where next hops are several.

    Args:
        structure: Arcs ``2 * n`` and ``2 * n + 1`` are the two ways of one link.
        carries: Arcs that exist, shape (arcs,).
        row: Row of each node in ``distance``.
        distance: Shape (rows, places); what is not reached stays as it is.

    Returns:
        For each distance above 0 whether there is more than one next hop, shape of ``distance``.
    """
    several = np.zeros(distance.shape, dtype=np.bool_)
    switches = np.flatnonzero(structure.nodes.kind != NodeKind.NIC)
    for column in range(distance.shape[1]):
        edge = switches[distance[row[switches], column] == 0]
        reached = np.ones(len(row), dtype=np.bool_)  # nobody's way leads through a NIC
        reached[switches] = False
        step = 0
        while len(edge):
            reached[edge] = True
            step += 1
            count = _ways_into(structure, carries, edge)
            count[reached] = 0
            edge = np.flatnonzero(count)
            distance[row[edge], column] = step
            several[row[edge], column] = count[edge] > 1
    return several


def _ways_into(structure: Structure, carries: Bools, nodes: Ints) -> Ints:
    """From each node, how many arcs lead to some nodes, shape (nodes,)."""
    first, arcs = structure.out
    lengths = first[nodes + 1] - first[nodes]
    shift = np.repeat(first[nodes] - (np.cumsum(lengths) - lengths), lengths)
    back = arcs[np.arange(len(shift)) + shift] ^ 1
    return np.bincount(structure.tail[back[carries[back]]], minlength=len(structure.nodes.ids))
