"""Who uses which arc of a plan: made once, and asked for every flow that is explained."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from heddle_controller.model.arrays import Floats, Ints, stable_order
from heddle_controller.model.plan import Plan, arc_loads


@dataclass(frozen=True, slots=True, eq=False)
class ArcUsers:
    """The paths over each arc, and what they come to."""

    loads: Floats
    """Of each arc, Gbit/s."""
    first: Ints
    """Where the paths over each arc begin, shape (arcs + 1,)."""
    paths: Ints
    """Rows in the plan's paths, ascending for each arc."""

    def of(self, arcs: Ints) -> tuple[Ints, Ints]:
        """The uses of some arcs: which of them, by place, and the row of the path."""
        begin = self.first[arcs]
        counts = self.first[arcs + 1] - begin
        ends = np.cumsum(counts)
        place = np.repeat(np.arange(len(arcs)), counts)
        within = np.arange(len(place)) - np.repeat(ends - counts, counts)
        return place, self.paths[np.repeat(begin, counts) + within]


def arc_users(plan: Plan) -> ArcUsers:
    """Those of a plan."""
    arcs = len(plan.fabric.structure.tail)
    counts = np.bincount(plan.paths.arcs, minlength=arcs)
    return ArcUsers(
        loads=arc_loads(arcs, plan.flows, plan.paths),
        first=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        paths=plan.paths.owner()[stable_order(plan.paths.arcs)],
    )
