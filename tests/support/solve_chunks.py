"""Chunks of an assignment as paths between terminals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.plan import Paths
from heddle_controller.solve.assignment import Assignment


def inner_paths(flow: Ints, first_qp: Ints, last_qp: Ints, ways: Sequence[Ints]) -> Paths:
    """Paths of given arcs."""
    first = np.concatenate([[0], np.cumsum([len(way) for way in ways])]).astype(np.int64)
    arcs = np.concatenate([*ways, np.empty(0, dtype=np.int64)])
    return Paths(flow, first_qp, last_qp, first, arcs)


def chunks_of(assignment: Assignment) -> Paths:
    """All chunks as paths, by flow and QP."""
    flow, first, last = (
        np.array(column, dtype=np.int64)
        for column in (assignment.flow, assignment.first_qp, assignment.last_qp)
    )
    order = np.lexsort((first, flow))
    ways = [assignment.path[chunk] for chunk in order.tolist()]
    return inner_paths(flow[order], first[order], last[order], ways)
