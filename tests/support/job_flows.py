"""Flows of jobs between the NICs of the sample fabric, committed as a plan without paths."""

from __future__ import annotations

import numpy as np

from heddle_controller.model.demand import resolve
from heddle_controller.model.flows import Flows
from heddle_controller.model.plan import Plan, no_paths
from heddle_controller.state.records import PlanFacts
from tests.support.serving import Serving
from tests.support.store_samples import clos, demands, program_of

PAIRS = (("n0.0", "n1.0"), ("n0.0", "n1.1"), ("n0.1", "n1.0"), ("n0.0", "n1.0"))


def flows_of(jobs: dict[str, int], qps: int = 4) -> Flows:
    """Return so many of ``PAIRS`` as flows of each job, one job after the other."""
    asked = [(job, pair) for job, count in jobs.items() for pair in PAIRS[:count]]
    flows = resolve(demands(*(pair for _, pair in asked)), clos(), origin="test")
    names = tuple(jobs)
    return Flows(
        **{
            **{name: getattr(flows, name) for name in flows.__slots__},
            "ids": tuple(f"{job}/{at}" for at, (job, _) in enumerate(asked)),
            "job": np.array([names.index(job) for job, _ in asked], dtype=np.int64),
            "job_names": names,
            "qps": np.full(len(asked), qps, dtype=np.int64),
        }
    )


async def commit(s: Serving, flows: Flows) -> int:
    """Commit a plan that leaves all these flows to the underlay; return its generation."""
    if not s.epoch:
        s.epoch = await s.store.acquire_leadership("test")
    newest = (await s.store.versions("f1")).generation
    reasons = dict.fromkeys(range(len(flows)), "not asked")
    fabric = (await s.store.get_fabric("f1")).fabric
    plan = Plan(fabric, flows, no_paths(), no_paths(), unrouted=reasons)
    committed = await s.store.commit(
        "f1",
        epoch=s.epoch,
        expected_generation=newest,
        plan=plan,
        program=program_of(plan, s.epoch, newest + 1),
        facts=PlanFacts(changed_count=0, solve_seconds=0.0),
    )
    return committed.generation
