"""Places flows one by one, greatest first, each where it weighs least.

For what colouring cannot place: irregular graphs, holes left by dead links, NICs
with several uplinks, flows that lost their path. A flow that would overfill even
the best path is split by its QPs, by halves, as far as that helps. Search
improves on the result afterwards.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.fabric import Ints
from heddle_controller.solve.assignment import Assignment
from heddle_controller.solve.search import Search


def place_greedily(
    assignment: Assignment, search: Search, flow: Ints, first_qp: Ints, last_qp: Ints
) -> list[int]:
    """Places QPs of flows, parallel columns; returns flows that no path exists for."""
    gbps = assignment.unit[flow] * (last_qp - first_qp + 1)
    order = np.argsort(-gbps, kind="stable")
    columns = (flow[order].tolist(), first_qp[order].tolist(), last_qp[order].tolist())
    stuck = []
    for row, first, last in zip(*columns, strict=True):
        if len(search.paths(row)):
            _place(assignment, search, row, (first, last))
        else:
            stuck.append(row)
    return stuck


def _place(assignment: Assignment, search: Search, flow: int, qps: tuple[int, int]) -> None:
    """Places a range of QPs, first and last, on the best path or on several."""
    first, last = qps
    paths = search.paths(flow)
    best, over = _least_loaded(assignment, search, flow, last - first + 1, paths)
    path = search.trimmed(paths[best])
    if first == last or over <= 0.0:
        assignment.place(flow, first, last, path)
        return
    middle = (first + last) // 2
    _place(assignment, search, flow, (first, middle))
    _place(assignment, search, flow, (middle + 1, last))


def _least_loaded(
    assignment: Assignment, search: Search, flow: int, qps: int, paths: Ints
) -> tuple[int, float]:
    """The path least over its targets, among equals least full, and by how much over."""
    if len(paths) == 1 or not paths.shape[1]:
        return 0, 0.0
    after = assignment.used_with(flow, float(assignment.unit[flow]) * qps, paths)
    over = np.maximum(after - search.target[paths], 0.0).max(axis=1)
    best = int(np.lexsort((after.sum(axis=1), after.max(axis=1), np.round(over, 9)))[0])
    return best, float(over[best])
