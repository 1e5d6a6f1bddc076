"""When a command may say that nothing is left of what was deleted."""

from __future__ import annotations

import pytest

from heddle.client import Client, Unavailable
from heddle.client.withdrawal import Withdrawal
from heddle.v1 import plan_pb2 as pb


def plan(generation: int, answered: int, settled: int, *unsettled: str) -> pb.Plan:
    """Return a plan as a controller reports it."""
    return pb.Plan(
        generation=generation,
        answered_version=answered,
        settled_generation=settled,
        unsettled_switches=unsettled,
    )


def test_a_plan_from_before_counts_for_nothing() -> None:
    """A plan from before the deletion does not count, however many switches hold it."""
    withdrawal = Withdrawal(9)
    assert not withdrawal.done(plan(4, 8, 4))
    assert withdrawal.why_not().startswith("no plan without it is known")
    assert not withdrawal.done(plan(5, 9, 4, "l0", "l1"))
    assert withdrawal.why_not().endswith("its entries are gone: l0, l1")
    assert withdrawal.done(plan(5, 9, 5))


def test_a_plan_that_was_kept_answers_too() -> None:
    """If no switch held anything, a plan that was kept answers the question."""
    withdrawal = Withdrawal(9)
    assert not withdrawal.done(plan(4, 8, 4))
    assert withdrawal.done(plan(4, 9, 4))


def test_it_is_done_though_there_are_newer_plans_all_the_time() -> None:
    """A switch that holds any plan since then holds nothing of earlier plans."""
    withdrawal = Withdrawal(9)
    assert not withdrawal.done(plan(5, 9, 3, "l0"))
    assert not withdrawal.done(plan(6, 10, 4, "l0"))
    assert withdrawal.done(plan(7, 11, 5, "l0"))


def test_plans_that_are_counted_anew_are_waited_for_anew() -> None:
    """A store that lost its plans starts at generation 1 again, so the earlier wait is void."""
    withdrawal = Withdrawal(9)
    assert not withdrawal.done(plan(5, 9, 4, "l0"))
    assert not withdrawal.done(plan(1, 12, 0, "l0", "l1"))
    assert withdrawal.done(plan(1, 12, 1))


def test_a_plan_that_is_not_known_yet_is_waited_for() -> None:
    """The controller that is asked may know of a plan later than the one that named it."""
    withdrawal = Withdrawal(0, 5)
    assert not withdrawal.done(plan(4, 8, 4))
    assert withdrawal.why_not() == "plan 5 is not known yet, only plan 4"
    assert not withdrawal.done(plan(5, 9, 4, "l0"))
    assert not withdrawal.done(plan(4, 8, 4))
    assert withdrawal.done(plan(5, 9, 5))


def test_a_version_that_nobody_could_tell_is_not_waited_for() -> None:
    """A controller that lost its store after a deletion answers 0, which every plan would meet."""
    with Client("127.0.0.1:1", fabric="f1") as client, pytest.raises(Unavailable, match="not tell"):
        client.wait_until_gone(0)
