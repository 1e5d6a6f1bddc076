"""One switch whose agent says too much is set aside, and told of; all others go on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from pathlib import Path

import orjson
from grpc import aio

from heddle.v1 import agent_pb2 as pb
from heddle.v1 import common_pb2, fabric_pb2
from heddle.v1.agent_pb2_grpc import AgentServiceStub
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle_controller.reconcile.loop import CLAIMS
from tests.integration.test_security_overlay import answered, furnish, switches
from tests.support.operating import Controller, controlling
from tests.support.store_samples import clos
from tests.support.waiting import PATIENCE, until

MANY = 30_000
LIST = fabric_pb2.ListLinksRequest(parent="fabrics/f1")

Lie = Callable[[pb.Push], pb.AgentMessage]
"""What an agent says to a push."""


def _observed(source: str, target: str, number: int) -> pb.LinkObservation:
    link = common_pb2.LinkRef(source=source, target=target)
    return pb.LinkObservation(link=link, state=common_pb2.STATE_UP, sequence=number)


def unknown_links(_: pb.Push) -> pb.AgentMessage:
    """Links that no fabric has."""
    links = [_observed("l2", f"x{number}", number) for number in range(MANY)]
    return pb.AgentMessage(link_state=pb.LinkStateReport(links=links))


def the_same_link(_: pb.Push) -> pb.AgentMessage:
    """One of its own, again and again."""
    links = [_observed("l3", "s0", number) for number in range(MANY)]
    return pb.AgentMessage(link_state=pb.LinkStateReport(links=links))


def entries_beyond_its_table(_: pb.Push) -> pb.AgentMessage:
    """Counters of more entries than it can hold."""
    zeros = [0] * MANY
    report = pb.CounterReport(
        endpoints=[pb.Endpoint(nic="n1.0")],
        sources=zeros,
        destinations=zeros,
        source_ports=zeros,
        packets=zeros,
        bytes=zeros,
    )
    report.time.GetCurrentTime()
    return pb.AgentMessage(counters=report)


def failures_of_nothing(push: pb.Push) -> pb.AgentMessage:
    """More failures than a push had operations."""
    failures = [pb.OperationFailure(operation=0)] * MANY
    result = pb.PushResult(
        nonce=push.nonce,
        epoch=push.epoch,
        generation=push.generation,
        stage=pb.PUSH_STAGE_FIB,
        status=pb.PUSH_STATUS_APPLIED,
        failures=failures,
    )
    return pb.AgentMessage(push_result=result)


def another_leader(push: pb.Push) -> pb.AgentMessage:
    """Whatever the epoch, to have followed a later one."""
    result = pb.PushResult(
        nonce=push.nonce,
        epoch=push.epoch,
        generation=push.generation,
        stage=pb.PUSH_STAGE_RIB,
        status=pb.PUSH_STATUS_STALE_EPOCH,
        highest_epoch=push.epoch + 1,
    )
    return pb.AgentMessage(push_result=result)


LIES: dict[str, Lie] = {
    "l2": unknown_links,
    "l3": the_same_link,
    "l4": entries_beyond_its_table,
    "l5": failures_of_nothing,
    "l6": another_leader,
}
"""What the agent of each switch says."""


async def lies(controller: Controller, switch: str) -> None:
    """Come again and again, and answer each push so, until no session is given any more."""
    about = pb.SessionParameters(
        fabric="fabrics/f1", switch=switch, instance_id="i1", table_size=1000
    )
    async with controller.channel() as channel, asyncio.timeout(PATIENCE):
        while True:
            call = AgentServiceStub(channel).Session()
            try:
                await call.write(pb.AgentMessage(session_parameters=about))
                async for message in _messages(call):
                    if message.HasField("push"):
                        await call.write(LIES[switch](message.push))
            except aio.AioRpcError as error:
                if error.code().name == "RESOURCE_EXHAUSTED" and "set aside" in str(
                    error.details()
                ):
                    return
            except asyncio.InvalidStateError:  # the stream ended under a write
                pass


async def _messages(call: aio.StreamStreamCall) -> AsyncIterator[pb.ControllerMessage]:  # type: ignore[type-arg] # any
    while isinstance(message := await call.read(), pb.ControllerMessage):
        yield message


async def test_liars_hold_up_no_other(tmp_path: Path) -> None:
    """Each is refused in the end, and named; others are programmed, and every call is answered."""
    fabric = clos(leaves=2 + len(LIES))
    fleet = switches(fabric)
    async with controlling(tmp_path, "--log-format", "json") as controller:
        await furnish(controller, tmp_path, fabric)
        async with (
            fleet["l0"].agent(controller.address) as leaf,
            fleet["l1"].agent(controller.address),
            fleet["s0"].agent(controller.address),
            fleet["s1"].agent(controller.address),
            controller.channel() as channel,
        ):
            lying = asyncio.gather(*(lies(controller, switch) for switch in LIES))
            while not lying.done():
                await FabricServiceStub(channel).ListLinks(LIST, timeout=PATIENCE)
            await lying
            await until(lambda: leaf.held.entries)
            assert sorted(answered(fleet["l0"])) == ["s0", "s1"]
            shown = (await controller.does("fabric", "show")).out
            assert not [switch for switch in LIES if f"{switch} (set aside for" not in shown]
            # A change after all that reaches the others as ever.
            done = await controller.does("fabric", "link", "l1,s0", "down")
            assert done.code == 0, done.err
            await until(lambda: set(answered(fleet["l0"])) <= {"s1", "hash"})
        assert await controller.ends() == 0
    assert len(_leaderships(controller)) <= 1 + CLAIMS


def _leaderships(controller: Controller) -> list[int]:
    found = []
    for line in controller.log.read_text().splitlines():
        with suppress(orjson.JSONDecodeError):
            told = orjson.loads(line)
            if told.get("event") == "leading":
                found.append(told["epoch"])
    return found
