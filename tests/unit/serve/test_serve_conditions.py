"""Conditions of unhealthy links: the worse of what both ends report."""

from __future__ import annotations

from heddle.v1 import agent_pb2 as pb
from heddle.v1 import common_pb2
from heddle_controller.reconcile.observations import LinkEnds
from heddle_controller.reconcile.ports import AgentSession
from heddle_controller.serve.agents.link_book import Condition, LinkBook
from heddle_controller.telemetry.metrics import Telemetry

LINK: LinkEnds = ("l0", "s0", "0")


def agent(switch: str) -> AgentSession:
    """Return a session of a switch in fabric f1."""
    return AgentSession(
        id=1,
        fabric="f1",
        switch=switch,
        instance="i",
        software_version="0",
        capabilities=frozenset(),
        table_size=0,
        highest_epoch=1,
        generation=3,
        table_digest=b"d",
    )


def report(reason: str, loss: float = 0.0, rate: float = 0.0) -> pb.LinkStateReport:
    """Return what an agent reports of the one link."""
    link = pb.LinkObservation(
        link=common_pb2.LinkRef(source="s0", target="l0", key="0"),
        reason=reason,
        loss_ratio=loss,
        rate_ratio=rate,
    )
    return pb.LinkStateReport(links=[link])


def test_both_ends_count_each_by_itself() -> None:
    """The worse of each value counts, until an end reports a healthy link or is gone."""
    book = LinkBook(Telemetry())
    book.take(agent("l0"), report("grey", loss=0.25))
    book.take(agent("s0"), report("slow", rate=0.5))
    assert book.unwell("f1") == {LINK: Condition("grey", 0.25, 0.5)}
    book.take(agent("l0"), report(""))
    assert book.unwell("f1") == {LINK: Condition("slow", 0.0, 0.5)}
    book.forget(agent("s0"))
    assert not book.unwell("f1")
    assert not book.unwell("f2")
