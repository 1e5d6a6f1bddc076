"""Hop counts after a few links went or came, from those before.

A link that goes matters to the distance of a place only where one of its ends has no other next
hop there; one that comes, only where it is a short cut. Where neither holds at any end of any such
link, all distances stand: each switch still has a neighbour that is one hop nearer, and none that
is two. So only those places are searched again; of all others it is asked anew, at the ends of
these links alone, whether there is more than one next hop.

Where all places are searched at once, each step is an OR over all links, and their ends are put
in order before that. For the one place or two to which a lost link matters that is most of the
work: from those, every link is walked once, backwards, as the search comes by.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import Bools, Ints
from heddle_controller.model.fabric import NodeKind, Structure
from heddle_controller.model.hop_counts import HopArray
from heddle_controller.model.reach import UNREACHED, Bits, HopCountOrigin, Reach

Spread = Callable[[Ints, Ints, HopArray], Bits]

MOST_SEARCHED_SINGLY = 4
"""Places, beyond which they are searched all at once."""
MOST_CHANGED = 64
"""Arcs that went or came, beyond which everything is searched again."""


def updated_reach(
    structure: Structure, carries: Bools, known: Mapping[bytes, Reach], spread: Spread
) -> Reach | None:
    """The reach over the arcs that carry, from the most like of those known, by packed mask.

    ``spread`` fills in the distances of some places, by arcs. None where too much is different, or
    links of NICs are.
    """
    if not known:
        return None
    packed = np.packbits(carries)
    other = {key: packed ^ np.frombuffer(key, dtype=np.uint8) for key in known}
    key = min(other, key=lambda one: int(np.count_nonzero(other[one])))
    changed = np.flatnonzero(np.unpackbits(other[key], count=len(carries)))
    nic = structure.nodes.kind == NodeKind.NIC
    at_nic = nic[structure.tail[changed]] | nic[structure.head[changed]]
    if len(changed) > MOST_CHANGED or at_nic.any() or not known[key].distance.size:
        return None
    return _updated(structure, carries, known[key], changed, spread)


def _updated(
    structure: Structure, carries: Bools, known: Reach, changed: Ints, spread: Spread
) -> Reach:
    again = _shortened(structure, known, changed[carries[changed]])
    several = known.several.copy()
    for node in sorted({*structure.tail[changed].tolist()}):
        count, counts = _next_hops(structure, carries, known, node)
        again |= counts & (count == 0)
        several[known.row[node]] = np.packbits(counts & (count > 1))
    columns = np.flatnonzero(again)
    rows = np.unique(known.row[structure.tail[changed]])
    made = HopCountOrigin(of=known.made.token, columns=columns, rows=rows)
    if not len(columns):
        return replace(known, several=several, made=made)
    part = np.where(known.distance.columns(columns) == 0, 0, UNREACHED).astype(np.int16)
    bits = _searched(structure, carries, known, part, spread)
    distance = known.distance.with_columns(columns, part)
    _set_bits(several, columns, bits)
    return replace(known, distance=distance, several=several, made=made)


def _searched(
    structure: Structure, carries: Bools, known: Reach, part: HopArray, spread: Spread
) -> Bits:
    """Fill in the distances of some places; whether next hops are several, a byte for each."""
    places = part.shape[1]
    if places <= MOST_SEARCHED_SINGLY:
        return _search_singly(structure, carries, known.row, part).view(np.uint8)
    switch = structure.nodes.kind != NodeKind.NIC
    arcs = np.flatnonzero(carries & switch[structure.tail] & switch[structure.head])
    bits = spread(known.row[structure.tail[arcs]], known.row[structure.head[arcs]], part)
    return np.unpackbits(bits, axis=1, count=places)


def _set_bits(packed: Bits, columns: Ints, bits: Bits) -> None:
    """Write some columns, ascending, of a table packed along its rows; others are not unpacked."""
    places = columns >> 3
    first = np.diff(places, prepend=-1) > 0
    touched = places[first]
    some = np.unpackbits(packed[:, touched], axis=1)
    some[:, 8 * (np.cumsum(first) - 1) + (columns & 7)] = bits
    packed[:, touched] = np.packbits(some, axis=1)


def _shortened(structure: Structure, known: Reach, come: Ints) -> Bools:
    """To which places arcs that came are a shorter way."""
    result = np.zeros(known.distance.shape[1], dtype=np.bool_)
    for arc in come.tolist():
        ends = np.array([structure.tail[arc], structure.head[arc]])
        here, there = known.distance.lines(known.row[ends]).astype(np.int32)
        result |= there + 1 < here
    return result


def _next_hops(structure: Structure, carries: Bools, known: Reach, node: int) -> tuple[Ints, Bools]:
    """Next hops of a switch to each place by the distances known, and where it needs any."""
    first, arcs = structure.out
    own = arcs[first[node] : first[node + 1]]
    own = own[carries[own] & (structure.nodes.kind[structure.head[own]] != NodeKind.NIC)]
    lines = known.distance.lines(known.row[np.append(node, structure.head[own])])
    here = lines[0]
    nearer = lines[1:] == here - 1
    count: Ints = np.count_nonzero(nearer, axis=0).astype(np.int64)
    return count, (here > 0) & (here != UNREACHED)


def _search_singly(structure: Structure, carries: Bools, row: Ints, distance: HopArray) -> Bools:
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
    switches = structure.switches
    for column in range(distance.shape[1]):
        edge = switches[distance[row[switches], column] == 0]
        reached = np.ones(len(row), dtype=np.bool_)  # nobody's way leads through a NIC
        reached[switches] = False
        step = 0
        while len(edge):
            reached[edge] = True
            if reached.all():  # the last are the most, and lead nowhere new
                break
            step += 1
            count = _arcs_into(structure, carries, edge)
            count[reached] = 0
            edge = np.flatnonzero(count)
            distance[row[edge], column] = step
            several[row[edge], column] = count[edge] > 1
    return several


def _arcs_into(structure: Structure, carries: Bools, nodes: Ints) -> Ints:
    """From each node, how many arcs lead to some nodes, shape (nodes,)."""
    first, arcs = structure.out
    lengths = first[nodes + 1] - first[nodes]
    shift = np.repeat(first[nodes] - (np.cumsum(lengths) - lengths), lengths)
    back = arcs[np.arange(len(shift)) + shift] ^ 1
    return np.bincount(structure.tail[back[carries[back]]], minlength=len(structure.nodes.ids))
