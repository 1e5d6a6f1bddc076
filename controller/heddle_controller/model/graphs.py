"""Algorithms on graphs; those from scipy are loaded by the first that is asked for.

That takes longer than all else a planning process loads, and the first plan of most fabrics needs
none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from heddle_controller.model.arrays import Floats, Ints

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix


def load_graphs() -> None:
    """Load them now, where nobody waits for that."""
    import_module("scipy.sparse.csgraph")


def joined_parts(tails: Ints, heads: Ints, count: int) -> Ints:
    """Number of the connected part that each node is in, counted by first nodes, shape (count,).

    ``tails`` and ``heads``, each of shape (edges,), are rows of the ``count`` nodes.
    """
    label = np.arange(count, dtype=np.int64)
    while True:
        # Each part takes the least label beside it, then all of it that of its least node.
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
    """A matrix by rows; values of the same place are added up."""
    from scipy.sparse import csr_matrix  # noqa: PLC0415 - see above

    return csr_matrix((values, (row, column)), shape=shape)
