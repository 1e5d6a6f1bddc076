"""When a plan was made and programmed, by what controllers report of it."""

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
    """A plan has one commit time and one programming time, however often it is reported."""
    view = ControllerView(plans=[(5, _plan(1, 3)), (9, _plan(1, 3, 8)), (20, _plan(1, 3, 8))])
    (one,) = view.generations()
    assert (one.committed, one.programmed) == (3, 8)


def test_clocks_that_are_wrong_are_not_believed() -> None:
    """If a controller's clock is wrong, times are those at which its reports first arrived."""
    told = [(HOUR + 5, _plan(2, 4)), (HOUR + 9, _plan(2, 4, 8)), (HOUR + 20, _plan(2, 4, 8))]
    (one,) = ControllerView(plans=told, skewed=True).generations()
    assert (one.committed, one.programmed) == (HOUR + 5, HOUR + 9)


def test_a_link_told_of_by_every_watch_is_reported_once() -> None:
    """Every new watch begins with the links that are down, which are not new reports."""
    link = fabric_pb2.Link(source="l0", target="s0", oper_state=common_pb2.STATE_DOWN)
    link.state_time.FromNanoseconds(7)
    view = ControllerView(links=[(10, link), (30, link)])
    assert [when for when, _ in view.reports()] == [7]
    view.skewed = True
    assert [when for when, _ in view.reports()] == [10]


def test_only_what_changes_a_link_is_a_change() -> None:
    """Only another state is a change, so a renewed watch does not make a plan look outdated."""
    view, link = ControllerView(), fabric_pb2.Link(source="l0", target="s0")
    link.oper_state = common_pb2.STATE_DOWN
    view.take_link(link)
    changed = view.changed
    assert changed
    view.take_link(link)
    assert (view.changed, view.down) == (changed, {("l0", "s0", "")})
