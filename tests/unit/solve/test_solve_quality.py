"""How near plans come to what their paths allow, on seeded cases."""

from __future__ import annotations

import pytest

from heddle_controller.plan.verify import verify_plan
from tests.support.depth import DEEP, examples
from tests.support.solve_checks import same_plan
from tests.unit.solve.solve_quality import CASES, measure, planned

DRAWN = [(case, seed, qps) for case in CASES for seed in range(4) for qps in (4, 16)]
QUICK = [(case, 1, 4) for case in CASES if case != "dragonfly"]
HARD = [("dragonfly", seed, 4) for seed in (8, 9)]
"""Cases in which a search that moves one chunk after another ends a QP too high."""


@pytest.mark.deep
@pytest.mark.parametrize(("case", "seed", "qps"), [*DRAWN, *HARD] if DEEP else [*QUICK, HARD[0]])
def test_plans_come_within_a_qp_of_the_relaxation(case: str, seed: int, qps: int) -> None:
    """Plans are at most 1 % and one QP of the largest flow above the relaxation.

    The relaxation is the linear optimum between switches, over the candidates that every plan
    starts from. A plan that uses more of them may be below it, but never below what is proven.
    """
    measured = measure(case, seed, qps)
    verify_plan(measured.plan)
    assert not measured.plan.unrouted
    assert measured.reached >= measured.proven - 1e-6
    assert measured.within


@pytest.mark.deep
@pytest.mark.parametrize("case", [*CASES][: examples(1, len(CASES))])
def test_equal_cases_give_equal_plans(case: str) -> None:
    """Equal cases give equal plans to the last bit, after a relaxation and a long search."""
    assert same_plan(planned(case, 1, 4), planned(case, 1, 4))
