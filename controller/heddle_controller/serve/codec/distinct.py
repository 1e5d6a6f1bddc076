"""Numbering, by arrays, what each of many owners has."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Ints

DENSE = 64
"""A table of all owners and values is filled where it has at most so many cells for each item;
beyond that sorting is quicker."""


@dataclass(frozen=True, slots=True, eq=False)
class Distinct:
    """The distinct values of each owner: owner by owner, ascending."""

    owner: Ints
    value: Ints
    first: Ints
    """Where those of each owner begin, shape (owners + 1,)."""
    place: Ints
    """Of each item that was given: where its value is."""

    def within(self, owner: Ints) -> Ints:
        """Each item's number among its owner's values; ``owner`` is that of each item."""
        return self.place - self.first[owner]

    @property
    def rows(self) -> Ints:
        """Each value's number among those of its owner."""
        return np.arange(len(self.value)) - self.first[self.owner]


def distinct_by_owner(owner: Ints, value: Ints, owners: int, span: int) -> Distinct:
    """The distinct values of each of ``owners``.

    Args:
        owner: Of each item, below ``owners``.
        value: Likewise, 0 to ``span - 1``.
        owners: How many there are; the product with ``span`` is below 2^63.
        span: How many values there could be.
    """
    code = owner * span + value
    if owners * span <= DENSE * len(code):
        there = np.zeros(owners * span, dtype=np.bool_)
        there[code] = True
        codes = np.flatnonzero(there)
        number = np.empty(owners * span, dtype=np.int32)
        number[codes] = np.arange(len(codes), dtype=np.int32)
        place = number[code].astype(np.int64)
    else:
        codes, place = np.unique(code, return_inverse=True)
    of = codes // span
    first = np.searchsorted(of, np.arange(owners + 1))
    return Distinct(of, codes - of * span, first, place)
