"""A time limit is kept, told by a clock of calls: the same on every machine, busy or not."""

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
    """Counts each call of a function, of Python's or of C's: what a plan takes, as time."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> float:
        """The time now."""
        return float(self.count)

    def _called(self, _: FrameType, event: str, __: object) -> None:
        self.count += event in {"call", "c_call"}

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Counts while this lasts."""
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
    """A zone with a fifth of its links dead."""
    return frayed(Random(3), clos(leaves=8, spines=6, nics_per_leaf=6), 0.2)


@pytest.mark.parametrize("fabric", [flat(), torn()], ids=["flat", "torn"])
def test_a_plan_takes_its_limit_and_what_any_plan_takes_at_most(fabric: Fabric) -> None:
    """Beyond paths and backups of some kind, all that it does ends with the limit."""
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
