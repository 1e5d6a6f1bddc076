"""OR-Tools' maximum flow, as far as it is needed and with types that hold."""

from __future__ import annotations

from typing import Any

import numpy as np
from ortools.graph.python.max_flow import SimpleMaxFlow

from heddle_controller.model.fabric import Bools, Ints


def unit_flow(left: Ints, right: Ints, count: int) -> Bools:
    """A largest matching of the bipartite multigraph ``left[i] - right[i]``, as a mask.

    Vertices of each side are 0 to ``count - 1``.
    """
    # The stubs that OR-Tools ships name no valid array type.
    flow: Any = SimpleMaxFlow()
    one = np.ones(count, dtype=np.int64)
    vertices = np.arange(count, dtype=np.int64)
    source, sink = np.full(count, 2 * count), np.full(count, 2 * count + 1)
    flow.add_arcs_with_capacity(left, right + count, np.ones(len(left), dtype=np.int64))
    flow.add_arcs_with_capacity(source, vertices, one)
    flow.add_arcs_with_capacity(vertices + count, sink, one)
    flow.solve(2 * count, 2 * count + 1)
    used = np.asarray(flow.flows(np.arange(len(left))), dtype=np.int64)
    return used > 0
