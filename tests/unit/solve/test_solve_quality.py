"""How near plans come to what their paths allow, on forty-odd seeded cases."""

from __future__ import annotations

import pytest

from heddle_controller.plan.verify import verify_plan
from tests.unit.solve.solve_quality import CASES, measure

DRAWN = [(case, seed, qps) for case in CASES for seed in range(4) for qps in (4, 16)]
FAR = pytest.mark.xfail(
    strict=True, reason="the search ends at 1.5 where whole QPs could reach 1.25 and water 1.2"
)
HARD = [pytest.param("dragonfly", seed, 4, marks=FAR) for seed in (8, 9)]


@pytest.mark.parametrize(("case", "seed", "qps"), [*DRAWN, *HARD])
def test_plans_come_within_a_qp_of_the_relaxation(case: str, seed: int, qps: int) -> None:
    """Between switches, at most 1 % and one QP of the largest flow over the linear optimum."""
    measured = measure(case, seed, qps)
    verify_plan(measured.plan)
    assert not measured.plan.unrouted
    assert measured.reached >= measured.relaxed - 1e-9
    assert measured.within
