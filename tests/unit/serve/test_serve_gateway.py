from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from heddle.v1 import agent_pb2 as pb
from heddle_controller.model.errors import InputError
from heddle_controller.model.program import no_entries
from heddle_controller.reconcile.ports import (
    UNKNOWN_DIGEST,
    AgentSession,
    FailureReason,
    Push,
    PushMode,
    PushStatus,
    SessionChange,
)
from heddle_controller.serve.agents.gateway import Gateway
from heddle_controller.serve.errors import Refusal
from heddle_controller.state.errors import SessionLost
from heddle_controller.telemetry.metrics import Telemetry
from tests.support.store_samples import clos, plan_of, program_of

FABRIC = clos()
ENTRIES = program_of(plan_of(FABRIC), 1, 1).entries


def session(gateway: Gateway, switch: str = "l0", instance: str = "i") -> AgentSession:
    """Return an agent's session as the agent introduces itself."""
    return AgentSession(
        id=gateway.next_id(),
        fabric="f1",
        switch=switch,
        instance=instance,
        software_version="0",
        capabilities=frozenset(),
        table_size=0,
        highest_epoch=4,
        generation=3,
        table_digest=b"d",
    )


def push(generation: int = 1) -> Push:
    """Return a push that sets one entry."""
    return Push(PushMode.INCREMENTAL, 5, generation, FABRIC, ENTRIES, no_entries())


def result(nonce: int, stage: pb.PushStage.ValueType, **more: Any) -> pb.PushResult:
    """Return an agent's answer to ``push()``."""
    told: dict[str, Any] = {
        "epoch": 5,
        "generation": 1,
        "status": pb.PUSH_STATUS_APPLIED,
        "highest_epoch": 5,
    }
    return pb.PushResult(nonce=nonce, stage=stage, **(told | more))


@pytest.fixture
def telemetry() -> Telemetry:
    """Return real meters."""
    return Telemetry()


@pytest.fixture
def gateway(telemetry: Telemetry) -> Gateway:
    """Return a gateway that allows three unanswered pushes."""
    return Gateway(telemetry, queue_limit=3)


async def test_a_push_is_answered_by_its_fib_result(gateway: Gateway) -> None:
    """A RIB result does not end the wait. Both stages are in the report."""
    about = session(gateway)
    stream = gateway.open(about)
    waiting = asyncio.ensure_future(gateway.push(about, push()))
    message = await anext(stream.outgoing())
    assert message.push.nonce == 1
    assert message.push.epoch == 5
    stream.answered(result(1, pb.PUSH_STAGE_RIB), now=10.0)
    await asyncio.sleep(0)
    assert not waiting.done()
    failure = pb.OperationFailure(operation=0, reason=pb.FAILURE_REASON_TABLE_FULL, message="full")
    stream.answered(result(1, pb.PUSH_STAGE_FIB, failures=[failure]), now=11.0)
    report = await waiting
    assert report.fib is not None
    assert (report.rib.time, report.fib.time) == (10.0, 11.0)
    assert report.status is PushStatus.APPLIED
    assert [f.reason for f in report.failures] == [FailureReason.TABLE_FULL]


async def test_a_push_refused_whole_has_no_fib_stage(gateway: Gateway) -> None:
    """STALE_EPOCH at the RIB stage ends the push and has the highest epoch the agent has seen."""
    about = session(gateway)
    stream = gateway.open(about)
    waiting = asyncio.ensure_future(gateway.push(about, push()))
    await asyncio.sleep(0)
    stale = result(1, pb.PUSH_STAGE_RIB, status=pb.PUSH_STATUS_STALE_EPOCH, highest_epoch=9)
    stream.answered(stale, now=1.0)
    report = await waiting
    assert report.status is PushStatus.STALE_EPOCH
    assert report.fib is None
    assert report.highest_epoch == 9


async def test_a_fib_ack_stands_for_a_rib_ack_that_was_lost(gateway: Gateway) -> None:
    """Once the FIB has the entries, the table must have accepted them."""
    about = session(gateway)
    stream = gateway.open(about)
    waiting = asyncio.ensure_future(gateway.push(about, push()))
    await asyncio.sleep(0)
    stream.answered(result(1, pb.PUSH_STAGE_FIB), now=1.0)
    stream.answered(result(1, pb.PUSH_STAGE_RIB), now=2.0)
    stream.answered(result(77, pb.PUSH_STAGE_FIB), now=2.0)
    report = await waiting
    assert report.rib.status is PushStatus.APPLIED


@pytest.mark.parametrize(
    "answer",
    [
        result(1, pb.PUSH_STAGE_UNSPECIFIED),
        result(1, pb.PUSH_STAGE_RIB, status=pb.PUSH_STATUS_UNSPECIFIED),
        result(1, pb.PUSH_STAGE_RIB, epoch=4),
        result(1, pb.PUSH_STAGE_RIB, generation=2),
        result(1, pb.PUSH_STAGE_FIB, failures=[pb.OperationFailure(operation=1)]),
        result(1, pb.PUSH_STAGE_FIB, highest_epoch=2**64 - 1),
    ],
    ids=["stage", "status", "epoch", "generation", "operation", "number"],
)
async def test_an_answer_that_contradicts_its_push_is_refused(
    gateway: Gateway, answer: pb.PushResult
) -> None:
    """The error names the field, and the push stays unanswered."""
    about = session(gateway)
    stream = gateway.open(about)
    waiting = asyncio.ensure_future(gateway.push(about, push()))
    await asyncio.sleep(0)
    with pytest.raises(InputError, match="push_result"):
        stream.answered(answer, now=1.0)
    assert not waiting.done()
    waiting.cancel()


async def test_pushes_leave_in_the_order_of_the_calls(gateway: Gateway) -> None:
    """Nonces grow by one."""
    about = session(gateway)
    stream = gateway.open(about)
    tasks = [asyncio.ensure_future(gateway.push(about, push(g))) for g in (1, 2, 3)]
    outgoing = stream.outgoing()
    sent = [(await anext(outgoing)).push for _ in tasks]
    assert [(p.nonce, p.generation) for p in sent] == [(1, 1), (2, 2), (3, 3)]
    stream.end()
    assert all(
        isinstance(e, SessionLost) for e in await asyncio.gather(*tasks, return_exceptions=True)
    )


async def test_cancelling_stops_the_waiting_not_the_push(gateway: Gateway) -> None:
    """The push is still sent, and its answer is accepted although nobody waits."""
    about = session(gateway)
    stream = gateway.open(about)
    waiting = asyncio.ensure_future(gateway.push(about, push()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert (await anext(stream.outgoing())).push.nonce == 1
    stream.answered(result(1, pb.PUSH_STAGE_FIB), now=1.0)
    assert stream.pending_count == 0


async def test_names_come_again_where_the_agent_may_have_others(gateway: Gateway) -> None:
    """Names are sent once a session, and again after a refusal."""
    about = session(gateway)
    stream = gateway.open(about)
    outgoing = stream.outgoing()

    async def sent() -> pb.Push:
        waiting = asyncio.ensure_future(gateway.push(about, push()))
        message = await anext(outgoing)
        stream.answered(result(message.push.nonce, pb.PUSH_STAGE_FIB), now=1.0)
        await waiting
        return message.push

    first, second = await sent(), await sent()
    assert first.new_names
    assert len(first.operations.names) > len(second.operations.names) == 0
    stream.answered(result(9, pb.PUSH_STAGE_FIB, status=pb.PUSH_STATUS_INVALID), now=1.0)
    assert (await sent()).operations == first.operations


async def test_a_queue_that_overflows_becomes_a_new_session(
    gateway: Gateway, telemetry: Telemetry
) -> None:
    """Waiting pushes are lost. The stream continues under a new id with an unknown table."""
    about = session(gateway)
    stream = gateway.open(about)
    events = gateway.events()
    tasks = [asyncio.ensure_future(gateway.push(about, push(g))) for g in (1, 2, 3, 4)]
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(r) for r in results] == [SessionLost] * 4
    event = await anext(events)
    anew = gateway.sessions("f1")["l0"]
    assert event.change is SessionChange.CONNECTED
    assert event.session == anew
    assert anew.id > about.id
    assert (anew.generation, anew.table_digest) == (0, UNKNOWN_DIGEST)
    value = telemetry.registry.get_sample_value("heddle_sessions_coalesced_total", {"fabric": "f1"})
    assert value == 1
    waiting = asyncio.ensure_future(gateway.push(anew, replace(push(), mode=PushMode.FULL_SYNC)))
    sent = (await anext(stream.outgoing())).push
    assert sent.mode == pb.PUSH_MODE_FULL_SYNC
    assert sent.nonce == 4, "nonces of the stream go on"
    waiting.cancel()


async def test_a_second_session_of_a_switch_replaces_the_first(gateway: Gateway) -> None:
    """The older stream ends with ABORTED and its pushes are lost. Its end changes nothing else."""
    older = session(gateway)
    stream = gateway.open(older)
    waiting = asyncio.ensure_future(gateway.push(older, push()))
    await asyncio.sleep(0)
    newer = session(gateway, instance="j")
    gateway.open(newer)
    with pytest.raises(Refusal, match="taken its place") as caught:
        async for _ in stream.outgoing():
            pass
    assert caught.value.code.name == "ABORTED"
    with pytest.raises(SessionLost):
        await waiting
    assert not gateway.close_session(stream)
    assert gateway.sessions("f1") == {"l0": newer}


async def test_a_push_to_a_session_that_is_over_is_lost(gateway: Gateway) -> None:
    """A push to a session that has ended is lost."""
    about = session(gateway)
    with pytest.raises(SessionLost):
        await gateway.push(about, push())
    stream = gateway.open(about)
    assert gateway.close_session(stream)
    with pytest.raises(SessionLost):
        await gateway.push(about, push())


async def test_events_keep_only_the_newest_of_each_switch(gateway: Gateway) -> None:
    """A slow reader gets one event a switch, however often the switch came and went."""
    events = gateway.events()
    for _ in range(5):
        stream = gateway.open(session(gateway, "l0"))
        gateway.close_session(stream)
    gateway.open(session(gateway, "l1"))
    first, second = await anext(events), await anext(events)
    assert (first.session.switch, first.change) == ("l0", SessionChange.DISCONNECTED)
    assert (second.session.switch, second.change) == ("l1", SessionChange.CONNECTED)


async def test_closing_ends_every_session_and_takes_no_new_one(gateway: Gateway) -> None:
    """Agents are told to go elsewhere, and readers of events end."""
    streams = [gateway.open(session(gateway, switch)) for switch in ("l0", "l1")]
    events = gateway.events()
    gateway.close()
    for stream in streams:
        with pytest.raises(Refusal, match="shutting down"):
            await anext(stream.outgoing())
    with pytest.raises(Refusal, match="shutting down"):
        gateway.open(session(gateway))
    assert [event async for event in events] == []


async def test_connected_agents_are_counted(gateway: Gateway, telemetry: Telemetry) -> None:
    """The gauge follows sessions that begin and end."""

    def connected() -> float | None:
        return telemetry.registry.get_sample_value("heddle_connected_agents", {"fabric": "f1"})

    stream = gateway.open(session(gateway, "l0"))
    gateway.open(session(gateway, "l1"))
    assert connected() == 2
    gateway.close_session(stream)
    assert connected() == 1
