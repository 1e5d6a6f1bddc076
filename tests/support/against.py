"""What is wrong with the plan of a drawn case, beside what is known of it exactly.

To look for cases: ``python -m tests.support.against FIRST LAST [KIND ...]`` prints the
faults of each seed from first to last.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from random import Random

import numpy as np

from heddle_controller.model.arrays import Floats
from heddle_controller.model.flows import TrafficClass
from heddle_controller.model.plan import Plan
from heddle_controller.plan.verify import PlanInvalid, verify_plan
from heddle_controller.solve import solve
from heddle_emulator.fluid.rates import flow_ratios
from heddle_emulator.strategy import ecmp
from tests.support.drawn import Case, drawn
from tests.support.exact import CLOSE, Exact
from tests.support.fairest import Fairest
from tests.support.solve_checks import plain_loads

HASHES = 8
"""Hashes that no plan's slowest flow may be behind."""
WORTH = 1e-3
"""Relative gain of the slowest flow that a plan may leave."""


def faults(case: Case, plan: Plan) -> Iterator[str]:
    """What must not be, each with what should be."""
    yield from soundness(case, plan)
    yield from distance(case, plan)
    yield from unfairness(case, plan, looks=40)
    yield from hashed_better(case, plan)


def soundness(case: Case, plan: Plan) -> Iterator[str]:
    """The plan is invalid, leaves flows out that could have a path, or says what is not so."""
    try:
        verify_plan(plan)
    except PlanInvalid as invalid:
        yield f"invalid: {invalid}"
        return
    exact = Exact(case.fabric, case.flows)
    left = {*range(len(case.flows))} - {*exact.routed}
    if left != {*plan.unrouted}:
        yield f"unrouted: {sorted(plan.unrouted)}, where no way exists for {sorted(left)}"
        return
    told = plan.certificate
    best, tiers = exact.least(), case.fabric.structure.tier_of_arc
    if told.lower_bound > best.high * (1 + CLOSE):
        yield f"bound: {told.lower_bound:.6g} is above the optimum {best.high:.6g}"
    for number, tier in enumerate(told.tiers):
        if tier.lower_bound > CLOSE:
            least = exact.least(tiers == number).high
            if tier.lower_bound > least * (1 + CLOSE):
                yield f"bound: {tier.lower_bound:.6g} of {tier.tier} is above {least:.6g}"


def distance(case: Case, plan: Plan) -> Iterator[str]:
    """The worst link is fuller than in the best plan of whole QPs.

    Others may be as full as that one where it helps the slowest flow.
    """
    overall = float(utilization_of(plan).max(initial=0.0))
    best = Exact(case.fabric, case.flows).least()
    if best.exact and overall > best.high * (1 + CLOSE):
        bound = plan.certificate.lower_bound
        yield f"load: {overall:.6g}, optimum {best.high:.6g}, bound {bound:.6g}"


def unfairness(case: Case, plan: Plan, looks: int = 0) -> Iterator[str]:
    """The least value of a flow could be raised with no link fuller than the fullest is.

    Where places are too many to try all, in so many looks; cases with flows cut off do not count.
    """
    exact, used = Exact(case.fabric, case.flows), utilization_of(plan)
    if not exact.routed:
        return
    fairest = Fairest(exact, np.full(len(used), max(1.0, float(used.max()))))
    held = float(fairest.least([fairest.place_of(plan)])[0])
    best = fairest.best(plan, Random(case.seed), looks)
    if best.value > held * (1 + WORTH):
        yield f"fairness: least value {held:.6g}, could be {best.value:.6g}"


def hashed_better(case: Case, plan: Plan) -> Iterator[str]:
    """A hash at equal QPs serves its slowest flow better, though it fills no link more.

    It may not use links in maintenance, nor lose packets; flows are of one priority, and
    none has to take a shortest path, which hashing does not heed.
    """
    fabric, flows = case.fabric, case.flows
    bound = flows.traffic_class == TrafficClass.LATENCY
    if plan.unrouted or bound.any() or (flows.weight != flows.weight[:1]).any():
        return
    capacity = fabric.structure.capacity
    slowest = float(flow_ratios(capacity, flows, plan.paths).min())
    most = max(1.0, float(utilization_of(plan).max()))
    for seed in range(HASHES):
        hashed = ecmp(fabric, flows, seed)
        whole = int(hashed.paths.qp_count.sum()) == int(flows.qps.sum())
        alike = whole and bool(fabric.plannable[hashed.paths.arcs].all())
        fuller = float((hashed.loads / capacity).max()) > most * (1 + CLOSE)
        if alike and not fuller and hashed.slowest > slowest * (1 + WORTH):
            yield f"hashing: slowest flow {slowest:.6g}, hash {seed} has {hashed.slowest:.6g}"
            return


def utilization_of(plan: Plan) -> Floats:
    """Load over capacity of each arc, one flow after another."""
    return plain_loads(plan.fabric, plan.flows, plan.paths) / plan.fabric.structure.capacity


def digest(plan: Plan) -> str:
    """Equal for plans that are equal to the last bit."""
    columns = ("flow", "first_qp", "last_qp", "first", "arcs")
    text = hashlib.sha256(repr((plan.certificate, sorted(plan.unrouted.items()))).encode())
    for paths in (plan.paths, plan.backups):
        for column in columns:
            text.update(np.ascontiguousarray(getattr(paths, column)).tobytes())
    return text.hexdigest()


def main(first: int, last: int, kinds: list[str]) -> None:
    """Prints the faults of the cases of some seeds."""
    cases = (drawn(seed) for seed in range(first, last + 1))
    for case in cases:
        if not kinds or case.kind in kinds:
            for fault in faults(case, solve(case.fabric, case.flows)):
                sys.stdout.write(f"{case}: {fault}\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
