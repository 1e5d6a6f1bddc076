"""Algorithms on graphs. The scipy modules are imported on first use.

Their import takes longer than all other imports of a planning process, and the first plan of most
fabrics does not need them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle_controller.model.arrays import Floats, Ints

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


def load_graphs() -> None:
    """Import scipy's graph algorithms now, at a time when nobody waits for them."""
    import_module("scipy.sparse.csgraph")


def joined_parts(tails: Ints, heads: Ints, count: int) -> Ints:
    """Return the number of the connected component of each node, shape (count,).

    Components are numbered from 0, in the order of their first nodes. ``tails`` and ``heads``,
    each of shape (edges,), are node rows.
    """
    label = np.arange(count, dtype=np.int64)
    while True:
        # Labels spread over the edges to the lesser one, then along chains of labels.
        ends = label[tails], label[heads]
        least = np.minimum(*ends)
        if (ends[0] == ends[1]).all():
            break
        for end in ends:
            np.minimum.at(label, end, least)
        while (label[label] != label).any():
            label = label[label]
    first = label == np.arange(count)
    part: Ints = (np.cumsum(first) - 1)[label]
    return part


def sparse(values: Floats, row: Ints, column: Ints, shape: tuple[int, int]) -> csr_matrix[Any]:
    """Return a sparse matrix by rows (CSR). Values at the same place are added up."""
    from scipy.sparse import csr_matrix  # noqa: PLC0415 - see above

    return csr_matrix((values, (row, column)), shape=shape)
