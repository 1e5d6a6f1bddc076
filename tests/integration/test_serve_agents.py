from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

from heddle.v1 import agent_pb2 as pb
from heddle.v1 import common_pb2, doctor_pb2, fabric_pb2
from heddle_agent.fib import Link
from heddle_agent.session.decode import decode_push
from heddle_controller.model.fabric import no_fabric
from heddle_controller.model.program import no_entries
from heddle_controller.reconcile.ports import Push, PushMode, PushStatus
from heddle_controller.serve.agents import introductions, service
from heddle_controller.serve.agents.link_book import SPARE
from heddle_controller.serve.codec import times
from heddle_controller.state.errors import SessionLost
from heddle_controller.state.records import FabricRecord
from tests.support.reconcile_world import three_tiers
from tests.support.serving import Serving, reason, refusal, serving, violations
from tests.support.store_samples import clos
from tests.support.waiting import until


def introduction(switch: str = "l0", **more: Any) -> pb.AgentMessage:
    """Return the first message of an agent."""
    told: dict[str, Any] = {"fabric": "fabrics/f1", "switch": switch, "instance_id": f"i-{switch}"}
    return pb.AgentMessage(session_parameters=pb.SessionParameters(**(told | more)))


class Agent:
    """The agent's end of a session."""

    def __init__(self, s: Serving) -> None:
        self.call = s.agents.Session()

    async def say(self, message: pb.AgentMessage) -> None:
        """Send a message."""
        await self.call.write(message)

    async def hear(self) -> pb.ControllerMessage:
        """Receive a message; raise the stream's error, or ``EOFError`` if it ended well."""
        message = await self.call.read()
        if message is aio.EOF:
            raise EOFError
        assert isinstance(message, pb.ControllerMessage)
        return message

    async def answer(self, push: pb.Push, stage: pb.PushStage.ValueType) -> None:
        """Report that a stage of a push was applied."""
        await self.say(
            pb.AgentMessage(
                push_result=pb.PushResult(
                    nonce=push.nonce,
                    epoch=push.epoch,
                    generation=push.generation,
                    stage=stage,
                    status=pb.PUSH_STATUS_APPLIED,
                    highest_epoch=push.epoch,
                )
            )
        )


@asynccontextmanager
async def connected(s: Serving, switch: str = "l0") -> AsyncIterator[Agent]:
    """An agent whose session was accepted."""
    agent = Agent(s)
    await agent.say(introduction(switch))
    accepted = (await agent.hear()).session_accepted
    assert (accepted.controller_id, accepted.epoch) == ("test", 1)
    yield agent
    agent.call.cancel()


async def sample_push(s: Serving) -> Push:
    """Return a full sync with the entries of the committed sample plan."""
    committed = await s.commit_plan()
    program = committed.program
    return Push(
        PushMode.FULL_SYNC,
        program.epoch,
        program.generation,
        committed.plan.fabric,
        program.entries,
        no_entries(),
        sweep_stale=True,
        completes_generation=True,
    )


async def test_a_push_goes_down_and_its_acks_come_up(tmp_path: Path) -> None:
    """The entry of a push reaches the agent, and its acknowledgements give the push's result."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        push = await sample_push(s)
        async with connected(s) as agent:
            session = s.gateway.sessions("f1")["l0"]
            assert session.instance == "i-l0"
            waiting = asyncio.ensure_future(s.gateway.push(session, push))
            sent = (await agent.hear()).push
            assert sent.mode == pb.PUSH_MODE_FULL_SYNC
            assert sent.completes_generation
            operations = decode_push(sent).operations
            assert [match[:2] for match in operations.matches] == [("n0.0", "n1.0")]
            ((primary, backup, risks, _),) = operations.keys
            assert (primary.node, backup.node if backup else "") == ("s0", "s1")
            assert risks == (Link.between("s0", "l1"),)
            await agent.answer(sent, pb.PUSH_STAGE_RIB)
            await agent.answer(sent, pb.PUSH_STAGE_FIB)
            assert (await waiting).status is PushStatus.APPLIED


async def test_what_an_agent_sees_of_links_is_listed(tmp_path: Path) -> None:
    """A link that an agent reports down is listed as observed down, with its wanted state up.

    It stays down after the agent has gone.
    """
    report = pb.LinkStateReport(full=True)
    report.links.add(
        link=common_pb2.LinkRef(source="l0", target="s1", key="0"),
        state=common_pb2.STATE_DOWN,
        time=times.time_to_pb(5.0),
        sequence=1,
    )
    async with serving(tmp_path) as s:
        await s.put_fabric()
        async with connected(s) as agent:
            await agent.say(pb.AgentMessage(link_state=report))
            seen = s.observations.of("f1")
            await until(lambda: seen.down == {("l0", "s1", "0")})
            assert seen.heard == {"l0"}
            request = fabric_pb2.ListLinksRequest(parent="fabrics/f1", not_up_only=True)
            (link,) = (await s.fabrics.ListLinks(request)).links
            assert (link.admin_state, link.oper_state) == (
                common_pb2.STATE_UP,
                common_pb2.STATE_DOWN,
            )
            assert link.state_time.seconds
        await until(lambda: not seen.heard)
        assert seen.down, "who is silent has not said that it is back"


def told_down(*others: str, full: bool = False) -> pb.AgentMessage:
    """Return a report that l0's links to these nodes are down."""
    report = pb.LinkStateReport(full=full)
    for other in others:
        link = common_pb2.LinkRef(source="l0", target=other, key="0")
        report.links.add(link=link, state=common_pb2.STATE_DOWN, sequence=1)
    return pb.AgentMessage(link_state=report)


async def test_a_link_that_is_down_before_the_fabric_has_it_is_down_in_it(tmp_path: Path) -> None:
    """What an agent says of a cable counts once the fabric gets it, and is not said again.

    Nobody fills memory with links that do not exist: only so many count, only those at the agent's
    own switch, and none outlasts the session's successor.
    """
    async with serving(tmp_path) as s:
        await s.put_fabric(clos(spines=1))
        seen = s.observations.of("f1")
        async with connected(s) as agent:
            await agent.say(told_down("s1", full=True))
            for number in range(40):
                await agent.say(told_down(*(f"x{number}.{one}" for one in range(20))))
            await agent.say(told_down("s0"))
            await until(lambda: ("l0", "s0", "0") in seen.down)
            assert len(seen.down) <= 3 + SPARE + 3
            request = fabric_pb2.ListLinksRequest(parent="fabrics/f1", not_up_only=True)
            (known,) = (await s.fabrics.ListLinks(request)).links
            assert known.target == "s0"
            await s.put_fabric(clos(spines=2))
            links = (await s.fabrics.ListLinks(request)).links
            assert [(one.source, one.target) for one in links] == [("l0", "s0"), ("l0", "s1")]
            assert all(one.oper_state == common_pb2.STATE_DOWN for one in links)
        async with connected(s) as agent:
            await agent.say(told_down("s1"))  # the first report of a session is of all links
            await until(lambda: seen.down == {("l0", "s1", "0")})
            assert set(seen.seen(clos()).since) == set(clos().find_links("l0", "s1"))


async def test_sessions_hold_no_copy_of_the_fabric(tmp_path: Path) -> None:
    """Sessions do not keep the fabric record that was current when their agents came.

    Such copies would be large, and there may be thousands.
    """
    async with serving(tmp_path) as s, AsyncExitStack() as stack:
        await s.put_fabric()
        gc.collect()
        before = sum(isinstance(one, FabricRecord) for one in gc.get_objects())
        for switch in ("l0", "l1", "s0", "s1"):
            await stack.enter_async_context(connected(s, switch))
        gc.collect()
        after = sum(isinstance(one, FabricRecord) for one in gc.get_objects())
        assert after - before < 4


async def test_a_session_ends_with_its_stream(tmp_path: Path) -> None:
    """A half-closed session ends with OK; its switch is forgotten and its open pushes are lost."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        push = await sample_push(s)
        async with connected(s) as agent:
            waiting = asyncio.ensure_future(s.gateway.push(s.gateway.sessions("f1")["l0"], push))
            await agent.hear()
            await agent.call.done_writing()
            with pytest.raises(EOFError):
                await agent.hear()
            assert (await agent.call.code()).name == "OK"
            with pytest.raises(SessionLost):
                await waiting
            await until(lambda: not s.gateway.sessions("f1"))


async def test_a_second_session_of_a_switch_ends_the_first(tmp_path: Path) -> None:
    """The older session ends with ABORTED, and the newer one takes its place."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        async with connected(s) as older:
            first = s.gateway.sessions("f1")["l0"]
            async with connected(s):
                error = await refusal(older.hear())
                assert (error.code().name, reason(error)) == ("ABORTED", "SESSION_REPLACED")
                assert s.gateway.sessions("f1")["l0"].id > first.id


@pytest.mark.parametrize(
    ("switch", "fabric", "code", "cure"),
    [
        ("l0", "fabrics/none", "NOT_FOUND", "heddle fabric import"),
        ("l9", "fabrics/f1", "NOT_FOUND", "node id of its switch"),
        ("n0.0", "fabrics/f1", "FAILED_PRECONDITION", "name a switch"),
    ],
)
async def test_a_stranger_is_told_the_cure(
    tmp_path: Path, switch: str, fabric: str, code: str, cure: str
) -> None:
    """An unknown fabric, an unknown switch or a NIC as switch is refused with the cure."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        agent = Agent(s)
        await agent.say(introduction(switch, fabric=fabric))
        error = await refusal(agent.hear())
        assert error.code().name == code
        assert cure in str(error.details())
        assert not s.gateway.sessions("f1")


@pytest.mark.parametrize(
    ("holds", "newest", "why"),
    [
        (b"", 1, "it has no entries"),
        (b"d", 0, "it has followed nobody as a switch of this fabric: its name may be wrong"),
        (b"d", 3, "it has a newer plan: the store lost that, or this is another controller"),
        (b"d", 1, ""),
    ],
)
@pytest.mark.parametrize("deleted", [True, False])
async def test_only_entries_of_fabrics_that_are_gone_are_withdrawn(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    holds: bytes,
    newest: int,
    why: str,
    *,
    deleted: bool,
) -> None:
    """Sessions of a deleted fabric, or of a switch that a new fabric leaves out, end.

    The leader accepts another one only to withdraw entries.
    """
    monkeypatch.setattr(introductions, "_LOOK_SECONDS", 0.01)
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.commit_plan()
        async with connected(s) as agent:
            if deleted:
                await s.store.delete_fabric("f1")  # generation 2
            else:
                await s.store.put_fabric("f1", three_tiers())
            assert (await refusal(_heard_out(agent))).code().name == "NOT_FOUND"
        again = Agent(s)
        await again.say(introduction(table_digest=holds, highest_generation=newest))
        if why:
            assert (await refusal(again.hear())).code().name == "NOT_FOUND"
            return
        assert (await again.hear()).HasField("session_accepted")
        session, none = s.gateway.sessions("f1")["l0"], no_entries()
        push = Push(PushMode.FULL_SYNC, 1, 2, no_fabric(), none, none, True, True)
        waiting = asyncio.ensure_future(s.gateway.push(session, push))
        sent = (await again.hear()).push
        assert sent.sweep_stale
        assert not decode_push(sent).operations.matches
        await again.say(pb.AgentMessage(link_state=pb.LinkStateReport(full=True)))
        await again.answer(sent, pb.PUSH_STAGE_FIB)
        assert (await refusal(again.hear())).code().name == "NOT_FOUND"
        assert (await waiting).status is PushStatus.APPLIED
        s.gateway.guard.heard(2)  # another controller leads
        await until(lambda: not s.gateway.sessions("f1"))
        later = Agent(s)
        await later.say(introduction(table_digest=holds, highest_generation=newest))
        assert (await refusal(later.hear())).code().name == "NOT_FOUND"


async def test_a_switch_that_a_new_fabric_leaves_out_waits_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its session lasts until the leader tells it to remove its entries, and the doctor names it.

    The session ends if the fabric gets the switch back.
    """
    monkeypatch.setattr(service, "_WITHDRAWAL", 0.01)
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.commit_plan()
        await s.store.put_fabric("f1", three_tiers())
        agent = Agent(s)
        await agent.say(introduction(table_digest=b"d", highest_generation=1))
        assert (await agent.hear()).HasField("session_accepted")
        ended = asyncio.ensure_future(agent.hear())
        request = doctor_pb2.ExamineInstallationRequest(fabric="fabrics/f1")
        for _ in range(3):
            told = await s.doctor.ExamineInstallation(request)
            texts = [one.text for one in told.findings]
            assert "1 switch with entries that the fabric does not have: l0." in texts
        await s.put_fabric()
        with pytest.raises(EOFError):
            await ended


async def _heard_out(agent: Agent) -> None:
    while True:
        await agent.hear()


UP, DOWN, DRAINED = common_pb2.STATE_UP, common_pb2.STATE_DOWN, common_pb2.STATE_DRAINED
LINK = common_pb2.LinkRef(source="l0", target="s1")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.AgentMessage(), "message"),
        (introduction(), "message"),
        (pb.AgentMessage(push_result=pb.PushResult(nonce=1)), "push_result"),
        (
            pb.AgentMessage(link_state=pb.LinkStateReport(links=[pb.LinkObservation(state=UP)])),
            "link_state.links[0].link",
        ),
        (
            pb.AgentMessage(link_state=pb.LinkStateReport(links=[pb.LinkObservation(link=LINK)])),
            "link_state.links[0].state",
        ),
        (
            pb.AgentMessage(
                link_state=pb.LinkStateReport(links=[pb.LinkObservation(link=LINK, state=DRAINED)])
            ),
            "link_state.links[0].state",
        ),
        (
            pb.AgentMessage(
                link_state=pb.LinkStateReport(
                    links=[pb.LinkObservation(link=LINK, state=DOWN, sequence=2**64 - 1)]
                )
            ),
            "link_state.links[0].sequence",
        ),
        (pb.AgentMessage(counters=pb.CounterReport(sources=[1])), "counters"),
    ],
    ids=["empty", "twice", "result", "no link", "no state", "drained", "sequence", "counters"],
)
async def test_a_malformed_message_ends_the_session(
    tmp_path: Path, message: pb.AgentMessage, field: str
) -> None:
    """A malformed message ends the session with an error that names the field; nothing is kept."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        push = await sample_push(s)
        before = await s.store.versions("f1")
        async with connected(s) as agent:
            waiting = asyncio.ensure_future(s.gateway.push(s.gateway.sessions("f1")["l0"], push))
            await agent.hear()
            await agent.say(message)
            error = await refusal(agent.hear())
            assert list(violations(error)) == [field]
            with pytest.raises(SessionLost):
                await waiting
        assert await s.store.versions("f1") == before


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"fabric": "f1"}, "session_parameters.fabric"),
        ({"switch": ""}, "session_parameters.switch"),
        ({"instance_id": "x" * 300}, "session_parameters.instance_id"),
        ({"highest_epoch": 2**63}, "session_parameters.highest_epoch"),
        ({"generation": 2**64 - 1}, "session_parameters.generation"),
    ],
)
async def test_a_malformed_introduction_is_refused(
    tmp_path: Path, more: dict[str, Any], field: str
) -> None:
    """A malformed introduction is refused by the name of its field."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        agent = Agent(s)
        await agent.say(introduction(**more))
        assert list(violations(await refusal(agent.hear()))) == [field]


async def test_a_silent_agent_is_not_waited_for(tmp_path: Path) -> None:
    """A stream without an introduction ends with DEADLINE_EXCEEDED."""
    async with serving(tmp_path, introduction_limit=0.1) as s:
        error = await refusal(Agent(s).hear())
        assert (error.code().name, reason(error)) == ("DEADLINE_EXCEEDED", "NO_INTRODUCTION")


async def test_an_agent_that_speaks_out_of_turn_is_refused(tmp_path: Path) -> None:
    """If the first message is not the introduction, the refusal says that it must be."""
    async with serving(tmp_path) as s:
        agent = Agent(s)
        await agent.say(pb.AgentMessage(counters=pb.CounterReport()))
        assert "session_parameters" in violations(await refusal(agent.hear()))["message"]
        closed = Agent(s)
        await closed.call.done_writing()
        assert "session_parameters" in violations(await refusal(closed.hear()))["message"]


async def test_an_agent_that_reads_nothing_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """If an agent reads nothing and its queue overflows, only pushes to its switch are lost.

    A new session begins for that switch.
    """
    async with serving(tmp_path, queue_limit=4) as s:
        await s.put_fabric()
        push = await sample_push(s)
        async with connected(s, "l0"), connected(s, "l1") as other:
            first = s.gateway.sessions("f1")["l0"]
            stuck = [asyncio.ensure_future(s.gateway.push(first, push)) for _ in range(5)]
            waiting = asyncio.ensure_future(s.gateway.push(s.gateway.sessions("f1")["l1"], push))
            sent = (await other.hear()).push
            await other.answer(sent, pb.PUSH_STAGE_FIB)
            assert (await waiting).status is PushStatus.APPLIED
            results = await asyncio.gather(*stuck, return_exceptions=True)
            assert {type(result) for result in results} == {SessionLost}
            assert s.gateway.sessions("f1")["l0"].id > first.id


async def test_sessions_end_when_the_controller_does(tmp_path: Path) -> None:
    """When the controller stops, sessions end with UNAVAILABLE and the reason SHUTTING_DOWN."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        async with connected(s) as agent:
            stopping = asyncio.create_task(s.api.stop(2.0))
            error = await refusal(agent.hear())
            assert (error.code().name, reason(error)) == ("UNAVAILABLE", "SHUTTING_DOWN")
            await stopping
