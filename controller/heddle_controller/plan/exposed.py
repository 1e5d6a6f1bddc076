"""Who only passes by: flows that PFC may hold up though every link of theirs has room.

In a lossless fabric a switch that has too much for an over-full link pauses the links by which that
came, and with them all who share those: an incast, or a core that is over-subscribed, slows flows
that never come near it. A plan cannot always part them, so it says whose they are.
"""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import Ints
from heddle_controller.model.plan import Plan, utilization

_TOLERANCE = 1e-9


def exposed_flows(plan: Plan) -> Ints:
    """Rows of flows that share a link with another job's flow on its way to an over-full link.

    On some path of theirs that crosses no over-full link itself; ascending.
    """
    paths, flows = plan.paths, plan.flows
    owner, arcs = paths.owner(), paths.arcs
    full = (utilization(plan.fabric, plan.loads) > 1 + _TOLERANCE)[arcs]
    if not full.any():
        return np.empty(0, dtype=np.int64)
    before: Ints = np.cumsum(full) - full
    until = np.append(before, np.count_nonzero(full))[paths.first]
    ahead = until[1:][owner] - before - full > 0
    job = flows.job[paths.flow[owner]]
    least = np.full(len(plan.loads), len(flows.job_names), dtype=np.int64)
    most = np.full(len(plan.loads), -1, dtype=np.int64)
    np.minimum.at(least, arcs[ahead], job[ahead])
    np.maximum.at(most, arcs[ahead], job[ahead])
    fed = (most[arcs] >= 0) & ((least[arcs] != job) | (most[arcs] != job))
    at_risk = np.bincount(owner[fed], minlength=len(paths)) > 0
    free = until[1:] == until[:-1]
    return np.unique(paths.flow[at_risk & free])
