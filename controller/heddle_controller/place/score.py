"""What jobs get from the network in a plan: worst link, slowest flow and network time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from heddle_controller.model.arrays import Floats, Ints
from heddle_controller.model.fair_rates import planned_rates
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Paths, Plan, utilization
from heddle_controller.place.ask import EQUAL, Score


def scores(plan: Plan) -> dict[str, Score]:
    """Return the score of each job in a plan, by job name.

    Rates are max-min fair among QPs, for the worst phases that can meet. A flow without a path gets
    nothing. A phase takes as long as its longest flow. A flow whose bytes are unknown would send
    for one second at the rate that it asks for.
    """
    used = utilization(plan.fabric, plan.loads)
    return _scores(
        plan.flows, plan.paths, used, planned_rates(plan, used, plan.fabric.structure.capacity)
    )


def scores_beside(plan: Plan, known: Plan, was: Mapping[str, Score]) -> Mapping[str, Score]:
    """Return the scores of a plan that may only add jobs to another, reusing known scores.

    If the plan only adds flows of new jobs and these cross no overloaded link, no other job is
    slower. Then the other jobs keep their scores ``was``, although their worst link may be fuller
    now. Otherwise all scores are computed.

    Args:
        plan: The plan.
        known: The plan that it was made from.
        was: Scores of the jobs in ``known``.
    """
    paths = added_paths(plan, known)
    if paths is None:
        return scores(plan)
    used, first = utilization(plan.fabric, plan.loads), len(known.flows)
    flows = plan.flows.take(np.arange(first, len(plan.flows), dtype=np.int64))
    larger = (flows.job < len(known.flows.job_names)).any()
    if larger or (used[paths.arcs] > 1 + EQUAL).any():
        return scores(plan)
    paths = replace(paths, flow=paths.flow - first)
    found = _scores(flows, paths, used, paths.gbps(flows))
    return {**was, **{name: found[name] for name in plan.flows.job_names if name not in was}}


def added_paths(plan: Plan, known: Plan) -> Paths | None:
    """Return the paths that a plan has after those of another; None if anything else differs."""
    count, flows = len(known.paths), len(known.flows)
    names = ("gbps", "qps", "job", "phase", "bytes")
    now, was = plan.paths, known.paths
    pairs = [(getattr(plan.flows, name)[:flows], getattr(known.flows, name)) for name in names]
    pairs += [
        (now.flow[:count], was.flow),
        (now.first_qp[:count], was.first_qp),
        (now.last_qp[:count], was.last_qp),
        (now.first[: count + 1], was.first),
        (now.arcs[: len(was.arcs)], was.arcs),
    ]
    jobs = known.flows.job_names
    if plan.flows.job_names[: len(jobs)] != jobs or not all(
        np.array_equal(one, other) for one, other in pairs
    ):
        return None
    behind = now.take(np.arange(count, len(now), dtype=np.int64))
    return behind if behind.flow.min(initial=flows) >= flows else None


def _scores(flows: Flows, paths: Paths, used: Floats, rates: Floats) -> dict[str, Score]:
    """Return scores of the jobs of some flows, given all their paths.

    ``used`` is the utilisation of each arc, and ``rates`` are the Gbit/s of each path.
    """
    if not len(flows):
        return {}
    part = np.minimum(np.bincount(paths.flow, rates, len(flows)) / flows.gbps, 1.0)
    alone = np.where(np.isfinite(flows.bytes), flows.bytes * 8e-9 / flows.gbps, 1.0)
    with np.errstate(divide="ignore"):
        lasts = alone / part
    jobs, phases = len(flows.job_names), len(flows.phase_names) + 1  # no phase is -1
    longest = _greatest(flows.job * phases + flows.phase + 1, lasts, jobs * phases)
    seconds = longest.reshape(jobs, phases).sum(axis=1)
    own = flows.job[paths.flow]
    new = np.flatnonzero(np.diff(own, prepend=-1))  # a job's paths are mostly in one run
    worst = np.maximum.reduceat(used[paths.arcs], paths.first[new]) if len(new) else used[:0]
    fullest = _greatest(own[new], worst, jobs)
    slowest = -_greatest(flows.job, -part, jobs, least=-1.0)
    told = zip(fullest.tolist(), slowest.tolist(), seconds.tolist(), strict=True)
    return {name: Score(*one) for name, one in zip(flows.job_names, told, strict=True)}


def gain_of_jobs(plan: Plan, other: Plan) -> float:
    """Return how much less time jobs take in another plan of the same flows.

    It is the sum over jobs of the logarithm of old over new time. A job counts nothing if its time
    is infinite in both plans, because flows have no path, or 0 in one of them. If the time of a job
    is infinite in only one plan, the result is infinite: negative if a job loses its path.
    """
    was, now = scores(plan), scores(other)
    seconds = np.array([(was[job].seconds, now[job].seconds) for job in was]).reshape(-1, 2)
    lasting = np.isfinite(seconds).any(axis=1) & (seconds > 0).all(axis=1)
    gains = np.log(seconds[lasting, 0]) - np.log(seconds[lasting, 1])
    return -np.inf if np.isneginf(gains).any() else float(gains.sum())


def _greatest(owner: Ints, values: Floats, count: int, least: float = 0.0) -> Floats:
    found = np.full(count, least)
    np.maximum.at(found, owner, values)
    return found
