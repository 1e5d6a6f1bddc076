"""Ways for edges such that no vertex has more than its even share on any way.

What falls from one link must fall on all others alike, at both its ends: that is an
edge colouring of the graph whose vertices are the arcs that paths leave and enter
leaves by. Such a graph has few edges at a vertex, mostly, and then ranks alone tell
the edges of a vertex apart: the rank at the one end counts units, that at the other
counts in steps of the largest rank. Where there are too many for that, the exact
colouring (``balanced``) does it, at more cost; beyond some tens of thousands of edges
ranks have to do, and are even on the whole, not at every vertex.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Bools, Ints
from heddle_controller.solve.colouring.balanced import equitable_colouring
from heddle_controller.solve.colouring.layers import ordinals

MOST_EXACT = 50_000
"""Edges beyond which an exact colouring takes longer than all the rest of a plan."""


def spread(left: Ints, right: Ints, ways: Ints) -> Ints:
    """A way, 0 to ``ways[i] - 1``, for each edge ``left[i] - right[i]``; all shapes equal.

    Among edges with equally many ways, up to ``MOST_EXACT``, each way is used at most
    ceil(degree / ways) times at every vertex. Vertices are integers of 0 and above, on
    two sides of their own.
    """
    result = np.zeros(len(left), dtype=np.int64)
    for count in np.unique(ways).tolist():
        rows = np.flatnonzero(ways == count)
        if count > 1:
            result[rows] = _of_equal(left[rows], right[rows], count)
    return result


def _of_equal(left: Ints, right: Ints, count: int) -> Ints:
    first, second = ordinals(left), ordinals(right)
    way = (first + (int(first.max()) + 1) * second) % count
    if len(left) > MOST_EXACT or (_even(left, way, count) & _even(right, way, count)).all():
        return way
    return equitable_colouring(left, right, count)


def _even(vertex: Ints, way: Ints, count: int) -> Bools:
    """Whether each edge's way is used at its vertex no more than evenly."""
    most = -(-np.bincount(vertex) // count)
    used = np.bincount(vertex * count + way)
    result: Bools = used[vertex * count + way] <= most[vertex]
    return result
