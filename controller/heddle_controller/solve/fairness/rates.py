"""Max-min fair rates of the paths of a plan."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Floats
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Plan
from heddle_controller.solve.fairness.filling import Filling

_EQUAL = 1e-9
"""Utilisation above 1 that still counts as room for all."""


def planned_rates(plan: Plan, used: Floats, capacity: Floats) -> Floats:
    """Return the Gbit/s of each path: max-min fair among QPs, shape (paths,).

    Phases of a job share no time, so rates are those while the worst phases meet. Paths that cross
    no overloaded arc get what their QPs ask for.

    Args:
        plan: The plan.
        used: Load over ``capacity`` of each arc, shape (arcs,).
        capacity: Gbit/s that each arc offers, shape (arcs,).
    """
    flows, paths = plan.flows, plan.paths
    rates = paths.gbps(flows)
    over = used > 1 + _EQUAL
    rows = np.flatnonzero(paths.crosses(over))
    if not len(rows):
        return rates
    some = paths.take(rows)
    full = over[some.arcs]
    way = some.arcs[full], np.bincount(some.owner()[full], minlength=len(rows))
    phase = flows.phase[some.flow]
    job = np.where(phase == ANY_PHASE, NONE, flows.job[some.flow])
    unit = flows.gbps[some.flow] / flows.qps[some.flow]
    filling = Filling(way, unit, job, phase, capacity)
    count = some.qp_count.astype(np.float64)
    rates[rows] = filling.rates(count[None, :])[0] * count
    return rates
