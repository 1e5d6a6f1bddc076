"""What is wrong with the plan of a drawn case, beside what is known of it exactly.

To look for cases: ``python -m tests.support.against FIRST LAST [KIND ...]`` prints the
faults of each seed from first to last.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator

import numpy as np

from heddle_controller.model.fabric import Floats
from heddle_controller.model.plan import Plan
from heddle_controller.plan.verify import PlanInvalid, verify_plan
from heddle_controller.solve import solve
from tests.support.drawn import Case, drawn
from tests.support.exact import CLOSE, Exact
from tests.unit.solve.solve_checks import plain_loads


def faults(case: Case, plan: Plan) -> Iterator[str]:
    """What must not be, each with what should be."""
    yield from soundness(case, plan)
    yield from distance(case, plan)


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

    Of all links; and of those between switches, where they are above line rate: below, they
    slow nobody.
    """
    exact, used = Exact(case.fabric, case.flows), utilization_of(plan)
    overall, best = float(used.max(initial=0.0)), exact.least()
    if best.exact and overall > best.high * (1 + CLOSE):
        bound = plan.certificate.lower_bound
        yield f"load: {overall:.6g}, optimum {best.high:.6g}, bound {bound:.6g}"
        return
    inner = exact.between_switches
    worst = float(used[inner].max(initial=0.0))
    if 1 + CLOSE < worst < overall * (1 - CLOSE):
        least = exact.least(inner, overall * (1 + CLOSE))
        if least.exact and worst > max(1.0, least.high) * (1 + CLOSE):
            yield f"load between switches: {worst:.6g}, optimum {least.high:.6g}"


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
