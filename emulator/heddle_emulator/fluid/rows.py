"""Compressed rows: row ``r`` of something is at ``first[r]`` to ``first[r + 1]``."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import Ints
from heddle_controller.model.plan import starts


def places(first: Ints, rows: Ints) -> Ints:
    """Places of all elements of some rows, in the order of ``rows``."""
    lengths = first[rows + 1] - first[rows]  # not of all rows: few are asked for, often
    begin = starts(lengths)
    within = np.arange(begin[-1], dtype=np.int64) - np.repeat(begin[:-1], lengths)
    found: Ints = np.repeat(first[rows], lengths) + within
    return found
