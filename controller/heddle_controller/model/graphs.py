"""Algorithms on graphs from scipy, loaded by the first that is asked for.

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
    from scipy.sparse import coo_matrix  # noqa: PLC0415 - see above
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415 - see above

    graph = coo_matrix((np.ones(len(tails)), (tails, heads)), shape=(count, count))
    part: Ints = connected_components(graph, directed=False)[1].astype(np.int64)
    return part


def sparse(values: Floats, row: Ints, column: Ints, shape: tuple[int, int]) -> csr_matrix[Any]:
    """A matrix by rows; values of the same place are added up."""
    from scipy.sparse import csr_matrix  # noqa: PLC0415 - see above

    return csr_matrix((values, (row, column)), shape=shape)
