"""Types of the arrays that hold bulk data, and operations on integer columns.

An array has one row per flow, link or node. *Compressed rows* are rows of different lengths in one
array, with a second array that says where each row begins.

``distinct`` and ``numbered`` sort, or mark values in a table, instead of hashing: for ten thousand
codes of entries or links, ``np.unique`` with its hash table takes ten times as long or more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Ints: TypeAlias = npt.NDArray[np.int64]
Floats: TypeAlias = npt.NDArray[np.float64]
Bools: TypeAlias = npt.NDArray[np.bool_]

NONE = -1
"""Row number that means "none" or "not given"."""


def starts(lengths: Ints) -> Ints:
    """Return where each of some compressed rows begins, and where the last one ends.

    Args:
        lengths: Length of each row, shape (rows,). The result has shape (rows + 1,).
    """
    first = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=first[1:])
    return first


def ranges(low: Ints, high: Ints) -> Ints:
    """Return the integers of all half-open ranges ``low[i]`` to ``high[i]``, one after another."""
    lengths = high - low
    offset = np.cumsum(lengths) - lengths
    return np.repeat(low - offset, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


def cut_rows(first: Ints, rows: Ints) -> tuple[Ints, Ints]:
    """Select compressed rows: where each begins afterwards, and the old place of each element.

    ``first`` says where each row begins. The time depends on what is selected alone.
    """
    low = first[rows]
    lengths = first[rows + 1] - low
    begins = starts(lengths)
    return begins, np.repeat(low - begins[:-1], lengths) + np.arange(begins[-1])


def among(values: Ints, keys: Ints) -> Bools:
    """Return whether each value is one of the keys, which must be ascending."""
    if not len(keys):
        return np.zeros(len(values), dtype=np.bool_)
    found: Bools = keys[np.minimum(np.searchsorted(keys, values), len(keys) - 1)] == values
    return found


def marked(table: Bools) -> tuple[Ints, Ints]:
    """Return row and column of each marked element of a table, as ``np.nonzero`` does, but faster.

    For thousands of short rows this takes a seventh of the time.
    """
    found = np.flatnonzero(table)
    row = found // table.shape[1]
    return row, found - row * table.shape[1]


DIGIT, MOST_BITS = 16, 63
"""Bits of numbers that numpy sorts in linear time, and of the longest that it sorts by vectors."""
FEW_TO_SORT = 500
"""Below this many numbers, an ordinary sort is fast enough."""
CELLS_TO_MARK = 8
"""Numbers are marked instead of sorted if their range is at most this many times their count."""


def stable_order(values: Ints) -> Ints:
    """Return what a stable ``np.argsort`` of the values returns, but faster.

    numpy sorts 16-bit numbers by counting, and long ones by vector instructions, but the latter
    only in place. So each longer value is sorted together with its position in one number. This
    takes a seventh of the time of a stable sort.
    """
    if (values[1:] >= values[:-1]).all():
        return np.arange(len(values), dtype=np.int64)
    least, places = int(values.min()), len(values).bit_length()
    bits = (int(values.max()) - least).bit_length()
    if len(values) < FEW_TO_SORT or bits + places > MOST_BITS:
        return np.argsort(values, kind="stable").astype(np.int64)
    above = values - least
    if bits <= DIGIT:
        return np.argsort(above.astype(np.uint16), kind="stable").astype(np.int64, copy=False)
    above <<= places
    above |= np.arange(len(values))
    above.sort()
    above &= (1 << places) - 1
    return above


Bits = npt.NDArray[np.uint8]
HopArray = npt.NDArray[np.int16]

UNREACHED = np.iinfo(np.int16).max
"""Hop count that means "no path"."""


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Hop counts from every switch to every place. Its arrays are not changed once made.

    A *place* stands for all NICs that are attached to the same set of switches.
    """

    place: Ints
    """Place of each node, shape (nodes,). ``NONE`` for switches and NICs without a live link."""
    row: Ints
    """Row of each node in ``distance``, shape (nodes,). All NICs share the last row."""
    distance: HopArray
    """Links from each switch to the nearest switch of each place, shape (switches + 1, places).
    ``UNREACHED`` where there is no path, and in the whole last row."""
    several: Bits
    """Whether the switch has more than one next hop towards the place. One bit for each element
    of ``distance`` in the order of ``np.packbits``; the bit is 0 where the distance is 0."""
    twin: Bools
    """Whether each arc leads to a NIC and has a parallel arc from the same switch, shape
    (arcs,)."""


def distinct(values: Ints) -> Ints:
    """Return each value once, ascending.

    Many values that lie close together are marked in a table, which takes a tenth of the time of
    sorting them.
    """
    if len(values) >= FEW_TO_SORT:
        least, most = int(values.min()), int(values.max())
        if most - least <= CELLS_TO_MARK * len(values):
            found = np.zeros(most - least + 1, dtype=np.bool_)
            found[values - least] = True
            return np.flatnonzero(found) + least
    ordered = np.sort(values)
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def distinct_floats(values: Floats) -> Floats:
    """Return each value once, ascending. It is fast where equal values follow one another."""
    first = np.ones(len(values), dtype=np.bool_)
    np.not_equal(values[1:], values[:-1], out=first[1:])
    return np.unique(values[first])


def numbered(values: Ints) -> tuple[Ints, Ints]:
    """Number the distinct values in ascending order.

    Returns:
        The number of each element, shape of ``values``; and for each distinct value, the index of
        its first occurrence.
    """
    if len(values) >= FEW_TO_SORT:
        least, most = int(values.min()), int(values.max())
        if most - least <= len(values):
            above = values - least
            start = np.full(most - least + 1, NONE, dtype=np.int64)
            start[above[::-1]] = np.arange(len(values) - 1, -1, -1)
            found = start != NONE
            return (np.cumsum(found) - 1)[above], start[found]
    order = stable_order(values)
    ordered = values[order]
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    number = np.empty(len(values), dtype=np.int64)
    number[order] = np.cumsum(first) - 1
    return number, order[first]
