"""Links that are not well, told from replica to replica: every one lists those of all."""

from __future__ import annotations

from collections.abc import Mapping

from heddle.v1 import agent_pb2 as pb
from heddle.v1 import common_pb2, relay_pb2
from heddle_controller.reconcile.southbound import AgentSession
from heddle_controller.serve.agents.link_book import Condition, Ends, LinkBook
from heddle_controller.serve.replicas.conditions import SILENT_SECONDS, Conditions
from heddle_controller.serve.replicas.post import Post
from heddle_controller.telemetry.metrics import Telemetry
from tests.unit.serve.office import Office
from tests.unit.serve.test_serve_replicas import Replica, replicas
from tests.waiting import until

LINK: Ends = ("l0", "s0", "0")
GREY = Condition("grey", 0.25)


def agent(switch: str) -> AgentSession:
    """Of a switch of the fabric f1."""
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
    """What an agent says of the one link."""
    link = pb.LinkObservation(
        link=common_pb2.LinkRef(source="s0", target="l0", key="0"),
        reason=reason,
        loss_ratio=loss,
        rate_ratio=rate,
    )
    return pb.LinkStateReport(links=[link])


def book(replica: Replica) -> LinkBook:
    """A replica's book, wired as the controller does it."""
    links = LinkBook(Telemetry())
    replica.exchange.conditions.own = links.own
    links.others = replica.exchange.conditions.others
    links.changed = replica.exchange.conditions.tell
    return links


async def test_each_lists_what_agents_of_any_replica_say() -> None:
    """The worse of what both ends say, one with each replica; and well again when both are."""
    async with replicas(Office(), "a", "b") as made:
        a, b = (book(replica) for replica in made)
        a.take(agent("l0"), report("grey", loss=0.25))
        b.take(agent("s0"), report("slow", rate=0.5))
        both: Mapping[Ends, Condition] = {LINK: Condition("grey", 0.25, 0.5)}
        await until(lambda: a.unwell("f1") == both == b.unwell("f1"))
        assert a.own("f1") == {LINK: GREY}
        a.take(agent("l0"), report(""))
        await until(lambda: b.unwell("f1") == {LINK: Condition("slow", 0.0, 0.5)})
        b.forget(agent("s0"))
        await until(lambda: not a.unwell("f1") and not b.unwell("f1"))


async def test_what_a_replica_told_goes_with_it() -> None:
    """What is not told again is forgotten; what is, stays; our own letters are not taken."""
    clock, office = [0.0], Office()
    ours, theirs = Post(office, "ours"), "theirs"
    conditions = Conditions(ours, lambda: clock[0])
    told = relay_pb2.LinkConditions(
        fabric="fabrics/f1",
        links=[
            relay_pb2.LinkCondition(
                link=common_pb2.LinkRef(source="l0", target="s0", key="0"),
                reason="grey",
                loss_ratio=0.25,
            )
        ],
    )
    conditions.heard("ours", told)
    assert not dict(conditions.others("f1"))
    conditions.heard(theirs, told)
    clock[0] = SILENT_SECONDS - 1
    assert dict(conditions.others("f1")) == {LINK: GREY}
    assert not dict(conditions.others("f2"))
    conditions.heard(theirs, told)
    clock[0] += SILENT_SECONDS - 1
    assert dict(conditions.others("f1")) == {LINK: GREY}
    clock[0] += 2
    assert not dict(conditions.others("f1"))
    told.links[0].reason = "haunted"
    conditions.heard(theirs, told)
    assert not dict(conditions.others("f1"))


async def test_nothing_is_told_where_nothing_is_wrong() -> None:
    """A storm of reports of sound links is no letter; neither is one that says the same again."""
    office = Office()
    async with replicas(office, "a", "b") as made:
        a = book(made[0])
        await until(lambda: office.letters_sent > 0)
        told: list[str] = []
        a.changed = told.append
        for _ in range(100):
            a.take(agent("l0"), report(""))
        assert told == []
        for _ in range(100):
            a.take(agent("l0"), report("grey", loss=0.25))
        assert told == ["f1"]
