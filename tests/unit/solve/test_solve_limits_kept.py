"""A time limit is kept, by a clock that counts calls and so is the same on any machine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from types import FrameType

import pytest

from heddle_controller.model.fabric import Fabric
from heddle_controller.plan.verify import verify_plan
from heddle_controller.solve import Options, solve
from heddle_emulator.topology import clos, random_regular
from tests.support.solve_fabrics import frayed
from tests.support.solve_flows import permutations


class Calls:
    """A clock whose time is the number of function calls, of Python and C, counted so far."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> float:
        """Return the number of calls so far."""
        return float(self.count)

    def _called(self, _: FrameType, event: str, __: object) -> None:
        self.count += event in {"call", "c_call"}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count calls while the context is active."""
        before = sys.getprofile()
        sys.setprofile(self._called)
        try:
            yield
        finally:
            sys.setprofile(before)


def flat() -> Fabric:
    """A random regular graph."""
    return random_regular(switches=12, degree=4, nics_per_switch=4, seed=3)


def torn() -> Fabric:
    """A two-tier zone with a fifth of its links between switches down."""
    return frayed(Random(3), clos(leaves=8, spines=6, nics_per_leaf=6), 0.2)


@pytest.mark.parametrize("fabric", [flat(), torn()], ids=["flat", "torn"])
def test_a_plan_takes_its_limit_and_what_any_plan_takes_at_most(fabric: Fabric) -> None:
    """A plan takes at most its limit plus what the hastiest plan takes."""
    flows = permutations(fabric, Random(1), 1, 4)

    def taken(limit: float | None) -> int:
        calls = Calls()
        options = Options(time_limit_seconds=limit, clock=calls)
        with calls.counting():
            plan = solve(fabric, flows, options)
        verify_plan(plan)
        assert not plan.unrouted
        return calls.count

    least, most = taken(0.0), taken(None)
    limit = (most - least) // 3
    assert limit > 0
    assert taken(limit) <= limit + least
