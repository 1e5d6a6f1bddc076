from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from heddle_agent.fib import Link, NextHop
from heddle_agent.watch import LinkWatch, ManualLinks


def links() -> ManualLinks:
    """Return a watch of links to two spines, one of them with two links. Its clock stands still."""
    hops = [NextHop("spine0"), NextHop("spine1", "0"), NextHop("spine1", "1")]
    return ManualLinks("leaf0", hops, clock=lambda: 5.0)


def test_links_are_up_at_first() -> None:
    """At the start every link is listed and up."""
    watch: LinkWatch = links()
    seen = watch.current()
    assert [one.link for one in seen] == [
        Link("leaf0", "spine0", "0"),
        Link("leaf0", "spine1", "0"),
        Link("leaf0", "spine1", "1"),
    ]
    assert {(one.up, one.sequence, one.reason, one.time) for one in seen} == {
        (True, 0, "start", 5.0)
    }


async def test_changes_come_in_order_and_together() -> None:
    """Changes since the last step form one step, with the newest change of each link."""
    watch = links()
    async with aclosing(watch.changes()) as changes:
        watch.down("spine0", reason="bfd")
        watch.down("spine1", "1")
        watch.up("spine0")
        step = await anext(changes)
        assert {(one.link.target, one.link.key, one.up, one.sequence) for one in step} == {
            ("spine0", "0", True, 3),
            ("spine1", "1", False, 2),
        }
        watch.down("spine0")
        (only,) = await anext(changes)
        assert (only.link.target, only.up, only.reason) == ("spine0", False, "carrier")
    states = {(one.link.target, one.link.key): one.up for one in watch.current()}
    assert states == {("spine0", "0"): False, ("spine1", "0"): True, ("spine1", "1"): False}


async def test_a_state_that_does_not_change_is_no_change() -> None:
    """Setting a link down twice gives one change."""
    watch = links()
    watch.up("spine0")
    await watch.settled()
    watch.down("spine0")
    watch.down("spine0")
    async with aclosing(watch.changes()) as changes:
        (only,) = await anext(changes)
    assert only.sequence == 1


async def test_settled_waits_for_the_consumer() -> None:
    """``settled`` returns once the consumer has dealt with the change, not when it takes it."""
    watch = links()
    dealt: list[str] = []
    may_go_on = asyncio.Event()

    async def consume() -> None:
        async with aclosing(watch.changes()) as changes:
            async for step in changes:
                await may_go_on.wait()
                dealt.extend(one.link.target for one in step)

    consumer = asyncio.create_task(consume())
    watch.down("spine0")
    settled = asyncio.create_task(watch.settled())
    await asyncio.sleep(0.01)
    assert not settled.done()
    may_go_on.set()
    await settled
    assert dealt == ["spine0"]
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer


@pytest.mark.parametrize(("node", "key"), [("spine9", "0"), ("spine0", "1"), ("leaf0", "0")])
def test_a_link_that_is_none_is_refused(node: str, key: str) -> None:
    """The error names switch, neighbour and key."""
    with pytest.raises(ValueError, match=f"leaf0 has no link to {node} key {key}"):
        links().down(node, key)
