"""What a plan means for jobs: worst link, slowest flow, time in the network."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.arrays import NONE, Floats, Ints
from heddle_controller.model.flows import ANY_PHASE
from heddle_controller.model.plan import Plan, utilization
from heddle_controller.place.ask import EQUAL, Score
from heddle_controller.solve.fairness.filling import Filling


def scores(plan: Plan) -> dict[str, Score]:
    """How the flows of each job fare in a plan.

    Rates are max-min fair among QPs, whichever phases of the jobs meet; a flow without a path gets
    nothing. A phase lasts as long as its longest flow; a flow whose bytes nobody has told sends for
    a second.
    """
    flows, paths = plan.flows, plan.paths
    if not len(flows):
        return {}
    used = utilization(plan.fabric, plan.loads)
    of_flow = np.zeros(len(flows))
    if len(paths):
        np.maximum.at(of_flow, paths.flow, np.maximum.reduceat(used[paths.arcs], paths.first[:-1]))
    part = np.minimum(np.bincount(paths.flow, _rates(plan, used), len(flows)) / flows.gbps, 1.0)
    alone = np.where(np.isfinite(flows.bytes), flows.bytes * 8e-9 / flows.gbps, 1.0)
    with np.errstate(divide="ignore"):
        lasts = alone / part
    jobs, phases = len(flows.job_names), len(flows.phase_names) + 1  # any time is -1
    longest = _greatest(flows.job * phases + flows.phase + 1, lasts, jobs * phases)
    seconds = longest.reshape(jobs, phases).sum(axis=1)
    fullest = _greatest(flows.job, of_flow, jobs)
    slowest = -_greatest(flows.job, -part, jobs, least=-1.0)
    told = zip(fullest.tolist(), slowest.tolist(), seconds.tolist(), strict=True)
    return {name: Score(*one) for name, one in zip(flows.job_names, told, strict=True)}


def gain_of_jobs(plan: Plan, other: Plan) -> float:
    """How much less time jobs take in another plan of the same flows: logarithms, added up.

    A job that has no path in either of the two counts nothing.
    """
    was, now = scores(plan), scores(other)
    seconds = np.array([(was[job].seconds, now[job].seconds) for job in was]).reshape(-1, 2)
    lasting = np.isfinite(seconds).any(axis=1) & (seconds > 0).all(axis=1)
    return float(np.log(seconds[lasting, 0] / seconds[lasting, 1]).sum())


def _rates(plan: Plan, used: Floats) -> Floats:
    """Gbit/s of each path: all it asks for, but where it crosses an arc that is over-full."""
    flows, paths = plan.flows, plan.paths
    rates = paths.gbps(flows)
    over = used > 1 + EQUAL
    rows = np.flatnonzero(paths.crosses(over))
    if not len(rows):
        return rates
    some = paths.take(rows)
    full = over[some.arcs]
    way = some.arcs[full], np.bincount(some.owner()[full], minlength=len(rows))
    phase = flows.phase[some.flow]
    job = np.where(phase == ANY_PHASE, NONE, flows.job[some.flow])
    unit = flows.gbps[some.flow] / flows.qps[some.flow]
    filling = Filling(way, unit, job, phase, plan.fabric.structure.capacity)
    count = some.qp_count.astype(np.float64)
    rates[rows] = filling.rates(count[None, :])[0] * count
    return rates


def _greatest(owner: Ints, values: Floats, count: int, least: float = 0.0) -> Floats:
    found = np.full(count, least)
    np.maximum.at(found, owner, values)
    return found
