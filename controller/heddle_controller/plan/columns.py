"""Each value of a column once, and columns numbered by value.

By sorting, not hashing: codes of entries and links come nearly in order already, and on some ten
thousand of them ``np.unique`` with its table takes ten times as long.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Ints, stable_order


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
