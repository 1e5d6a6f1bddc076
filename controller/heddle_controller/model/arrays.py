"""The arrays that hold bulk data, one row a flow, a link or a node; and how they are sorted.

Hop counts from every switch to every place.

Each value of a column once, and columns numbered by value.

By sorting, not hashing: codes of entries and links come nearly in order already, and on some ten
thousand of them ``np.unique`` with its table takes ten times as long.
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
"""Row number that stands for "there is none"."""


def starts(lengths: Ints) -> Ints:
    """Where each row of compressed rows begins, and where the last ends."""
    first = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=first[1:])
    return first


def ranges(low: Ints, high: Ints) -> Ints:
    """All numbers from each low to below each high, in order."""
    lengths = high - low
    offset = np.cumsum(lengths) - lengths
    return np.repeat(low - offset, lengths) + np.arange(int(lengths.sum()), dtype=np.int64)


def among(values: Ints, keys: Ints) -> Bools:
    """Which values are among some keys, which are ascending."""
    if not len(keys):
        return np.zeros(len(values), dtype=np.bool_)
    found: Bools = keys[np.minimum(np.searchsorted(keys, values), len(keys) - 1)] == values
    return found


DIGIT, MOST_BITS = 16, 48
"""Bits of a digit that numpy sorts by in time for its places; of numbers sorted so at most."""
FEW_TO_SORT = 500
"""Numbers that any sort is quick with."""


def stable_order(values: Ints) -> Ints:
    """Places of the values in ascending order, equal ones as they stand; shape of the values.

    Digit by digit, the last first: numpy sorts numbers of 16 bits by counting. Of up to 32 bits
    that takes a quarter of the time of a stable sort of the whole numbers.
    """
    if (values[1:] >= values[:-1]).all():
        return np.arange(len(values), dtype=np.int64)
    least = int(values.min())
    bits = (int(values.max()) - least).bit_length()
    if len(values) < FEW_TO_SORT or bits > MOST_BITS:
        return np.argsort(values, kind="stable").astype(np.int64)
    above = values - least
    order = np.argsort(above.astype(np.uint16), kind="stable")
    for shift in range(DIGIT, bits, DIGIT):
        digit = (above >> shift).astype(np.uint16)
        order = order[np.argsort(digit[order], kind="stable")]
    return order.astype(np.int64, copy=False)


Bits = npt.NDArray[np.uint8]
HopArray = npt.NDArray[np.int16]

UNREACHED = np.iinfo(np.int16).max
"""Distance where no path leads."""


@dataclass(frozen=True, slots=True, eq=False)
class Reach:
    """Hop counts from every switch to every place; never written to once made."""

    place: Ints
    """Place of each node: ``NONE`` for switches and for NICs without a live link."""
    row: Ints
    """Row of each node in ``distance``; all NICs share the last one."""
    distance: HopArray
    """Links from a switch to the nearest switch of a place, shape (switches + 1,
    places); ``UNREACHED`` where there is no way, and all along the last row."""
    several: Bits
    """A bit for each distance above 0: is there more than one next hop?"""
    twin: Bools
    """Whether each arc runs to a NIC beside another one from the same switch."""


def distinct(values: Ints) -> Ints:
    """Each value once, ascending."""
    ordered = np.sort(values)
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first]


def numbered(values: Ints) -> tuple[Ints, Ints]:
    """A number for each element, in order of value, and where each value stands first."""
    order = stable_order(values)
    ordered = values[order]
    first = np.ones(len(ordered), dtype=np.bool_)
    first[1:] = ordered[1:] != ordered[:-1]
    number = np.empty(len(values), dtype=np.int64)
    number[order] = np.cumsum(first) - 1
    return number, order[first]
