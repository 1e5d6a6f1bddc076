"""What a listener receives of a stream that breaks and begins again."""

from __future__ import annotations

from heddle.client import merge
from heddle.v1 import common_pb2, fabric_pb2, placement_pb2

DOWN, UP = common_pb2.STATE_DOWN, common_pb2.STATE_UP


def job(name: str, etag: str) -> placement_pb2.JobEvent:
    """Return the event of a job."""
    return placement_pb2.JobEvent(job=placement_pb2.Job(name=name, etag=etag))


def link(target: str, state: common_pb2.State.ValueType) -> fabric_pb2.FabricEvent:
    """Return the event of a link."""
    one = fabric_pb2.Link(source="a", target=target, key="0", admin_state=UP, oper_state=state)
    return fabric_pb2.FabricEvent(link=one)


def test_jobs_are_told_once_and_those_that_went_meanwhile_are_deleted() -> None:
    """After a break only the differences come, and ``synced`` comes only the first time."""
    jobs, end = merge.Jobs(), placement_pb2.JobEvent(synced=True)
    jobs.begin()
    first = [job("j1", "1"), job("j2", "1"), end]
    assert [told for event in first for told in jobs.take(event)] == first
    jobs.begin()
    second = [job("j2", "2"), job("j3", "1"), end]
    told = [told for event in second for told in jobs.take(event)]
    assert told == [job("j2", "2"), job("j3", "1"), placement_pb2.JobEvent(deleted="j1")]
    assert not list(jobs.take(placement_pb2.JobEvent(deleted="j1")))


def test_links_that_came_up_meanwhile_are_told() -> None:
    """A stream begins with the links that are not up, so a missing link has come up."""
    fabric, end = merge.Fabric(), fabric_pb2.FabricEvent(synced=True)
    fabric.begin()
    first = [link("b", DOWN), link("c", DOWN), end]
    assert [told for event in first for told in fabric.take(event)] == first
    fabric.begin()
    told = [told for event in (link("c", DOWN), end) for told in fabric.take(event)]
    assert told == [link("b", UP)]


def test_an_up_link_is_told_once_although_another_controller_tells_it_too() -> None:
    """A controller that has just met the agents tells links as changed that were known as up."""
    fabric, end = merge.Fabric(), fabric_pb2.FabricEvent(synced=True)
    fabric.begin()
    assert [told for event in (end, link("b", UP)) for told in fabric.take(event)] == [
        end,
        link("b", UP),
    ]
    fabric.begin()
    assert not [told for event in (end, link("b", UP)) for told in fabric.take(event)]


def test_links_that_are_not_up_follow_a_fabric_that_was_put() -> None:
    """Whoever begins anew with the fabric gets all links that are not up, known or not.

    A change of states is no such fabric. Links that it may not have are not told.
    """
    fabric, end = merge.Fabric(), fabric_pb2.FabricEvent(synced=True)
    one, two = (
        fabric_pb2.FabricEvent(fabric=fabric_pb2.Fabric(structure_etag=etag)) for etag in "12"
    )
    drained = fabric_pb2.FabricEvent(fabric=fabric_pb2.Fabric(structure_etag="2", etag="3"))
    fabric.begin()
    first = [one, link("b", DOWN), link("c", DOWN), end, two, link("c", DOWN)]
    assert [told for event in first for told in fabric.take(event)] == first
    fabric.begin()
    assert not [told for event in (drained, link("c", DOWN), end) for told in fabric.take(event)]
    fabric.begin()
    told = [told for event in (one, link("d", DOWN), end) for told in fabric.take(event)]
    assert told == [one, link("d", DOWN)]
