"""When a plan was made and held, by what controllers told of it."""

from __future__ import annotations

from heddle.v1 import common_pb2, fabric_pb2, plan_pb2
from heddle_emulator.client import ControllerView

HOUR = 3600 * 10**9


def _plan(generation: int, committed: int, programmed: int = 0) -> plan_pb2.Plan:
    plan = plan_pb2.Plan(generation=generation)
    plan.commit_time.FromNanoseconds(committed)
    if programmed:
        plan.programmed_time.FromNanoseconds(programmed)
    return plan


def test_a_plan_told_of_twice_is_one() -> None:
    """When it was committed, then when all held it, whoever tells of it again later."""
    view = ControllerView(plans=[(5, _plan(1, 3)), (9, _plan(1, 3, 8)), (20, _plan(1, 3, 8))])
    (one,) = view.generations()
    assert (one.committed, one.programmed) == (3, 8)


def test_clocks_that_are_wrong_are_not_believed() -> None:
    """What a controller whose clock is an hour behind tells of was when it was first heard."""
    told = [(HOUR + 5, _plan(2, 4)), (HOUR + 9, _plan(2, 4, 8)), (HOUR + 20, _plan(2, 4, 8))]
    (one,) = ControllerView(plans=told, skewed=True).generations()
    assert (one.committed, one.programmed) == (HOUR + 5, HOUR + 9)


def test_a_link_told_of_by_every_watch_is_reported_once() -> None:
    """Who watches anew hears of each link that is down."""
    link = fabric_pb2.Link(source="l0", target="s0", oper_state=common_pb2.STATE_DOWN)
    link.state_time.FromNanoseconds(7)
    view = ControllerView(links=[(10, link), (30, link)])
    assert [when for when, _ in view.reports()] == [7]
    view.skewed = True
    assert [when for when, _ in view.reports()] == [10]


def test_only_what_changes_a_link_is_a_change() -> None:
    """So that a plan made before a watch began anew does not look too old."""
    view, link = ControllerView(), fabric_pb2.Link(source="l0", target="s0")
    link.oper_state = common_pb2.STATE_DOWN
    view.take_link(link)
    changed = view.changed
    assert changed
    view.take_link(link)
    assert (view.changed, view.down) == (changed, {("l0", "s0", "")})
