"""Places flows one by one, greatest first, each where it weighs least.

For what colouring cannot place: irregular graphs, holes left by dead links, NICs
with several uplinks, QPs that rounding left over. Search improves on the result.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.solve.search.search import Search


def place_greedily(search: Search, flow: Ints, first_qp: Ints, last_qp: Ints) -> list[int]:
    """Places QPs of flows, parallel columns; returns flows that no path exists for."""
    assignment = search.assignment
    gbps = assignment.unit[flow] * (last_qp - first_qp + 1)
    order = np.argsort(-gbps, kind="stable")
    columns = (flow[order].tolist(), first_qp[order].tolist(), last_qp[order].tolist())
    stuck = []
    for row, first, last in zip(*columns, strict=True):
        paths = search.chains.paths(row)
        if not len(paths):
            stuck.append(row)
        elif search.chains.deadline.passed():  # any path is better than none
            assignment.move(assignment.place(row, first, last), search.chains.trimmed(paths[0]))
        else:
            search.settle(assignment.place(row, first, last))
    return stuck
