"""The arrays that bulk data is kept in, one row a flow, a link or a node."""

from __future__ import annotations

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
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def among(values: Ints, keys: Ints) -> Bools:
    """Which values are among some keys, which are ascending."""
    if not len(keys):
        return np.zeros(len(values), dtype=np.bool_)
    found: Bools = keys[np.minimum(np.searchsorted(keys, values), len(keys) - 1)] == values
    return found
