"""When a plan was made and held, by what the lab's controllers told of it."""

from __future__ import annotations

from heddle.v1 import common_pb2, fabric_pb2, plan_pb2
from heddle_emulator.drill.lab.seen import Seen

HOUR = 3600 * 10**9


def _plan(generation: int, committed: int, programmed: int = 0) -> plan_pb2.Plan:
    plan = plan_pb2.Plan(generation=generation)
    plan.commit_time.FromNanoseconds(committed)
    if programmed:
        plan.programmed_time.FromNanoseconds(programmed)
    return plan


def test_a_plan_told_of_twice_is_one() -> None:
    """When it was committed, then when all held it, whoever tells of it again later."""
    seen = Seen(plans=[(5, _plan(1, 3)), (9, _plan(1, 3, 8)), (20, _plan(1, 3, 8))])
    (one,) = seen.generations()
    assert (one.committed, one.programmed) == (3, 8)


def test_clocks_that_are_wrong_are_not_believed() -> None:
    """What a controller whose clock is an hour behind tells of was when it was first heard."""
    told = [(HOUR + 5, _plan(2, 4)), (HOUR + 9, _plan(2, 4, 8)), (HOUR + 20, _plan(2, 4, 8))]
    (one,) = Seen(plans=told, skewed=True).generations()
    assert (one.committed, one.programmed) == (HOUR + 5, HOUR + 9)


def test_a_link_told_of_by_every_watch_is_reported_once() -> None:
    """Who watches anew hears of each link that is down."""
    link = fabric_pb2.Link(source="l0", target="s0", oper_state=common_pb2.STATE_DOWN)
    link.state_time.FromNanoseconds(7)
    seen = Seen(links=[(10, link), (30, link)])
    assert [when for when, _ in seen.reports()] == [7]
    seen.skewed = True
    assert [when for when, _ in seen.reports()] == [10]


def test_only_what_changes_a_link_is_a_change() -> None:
    """So that a plan made before a watch began anew does not look too old."""
    seen, link = Seen(), fabric_pb2.Link(source="l0", target="s0")
    link.oper_state = common_pb2.STATE_DOWN
    seen.link(link)
    changed = seen.changed
    assert changed
    seen.link(link)
    assert (seen.changed, seen.down) == (changed, {("l0", "s0", "")})
