"""Agents that say too much are set aside and named; all other switches go on."""

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
"""Makes the message with which an agent answers a push."""


def _observed(source: str, target: str, number: int) -> pb.LinkObservation:
    link = common_pb2.LinkRef(source=source, target=target)
    return pb.LinkObservation(link=link, state=common_pb2.STATE_UP, sequence=number)


def unknown_links(_: pb.Push) -> pb.AgentMessage:
    """Report links that no fabric has."""
    links = [_observed("l2", f"x{number}", number) for number in range(MANY)]
    return pb.AgentMessage(link_state=pb.LinkStateReport(links=links))


def the_same_link(_: pb.Push) -> pb.AgentMessage:
    """Report one of its own links again and again."""
    links = [_observed("l3", "s0", number) for number in range(MANY)]
    return pb.AgentMessage(link_state=pb.LinkStateReport(links=links))


def entries_beyond_its_table(_: pb.Push) -> pb.AgentMessage:
    """Report counters of more entries than its table can hold."""
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
    """Report more failures than the push had operations."""
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
    """Claim to follow a later epoch, whatever the epoch of the push."""
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
"""The lie that each switch's agent tells."""


async def lies(controller: Controller, switch: str) -> None:
    """Open sessions and answer each push with the switch's lie, until the switch is set aside."""
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
            except asyncio.InvalidStateError:  # the stream ended during a write
                pass


async def _messages(call: aio.StreamStreamCall) -> AsyncIterator[pb.ControllerMessage]:  # type: ignore[type-arg] # any
    while isinstance(message := await call.read(), pb.ControllerMessage):
        yield message


async def shown_aside(controller: Controller, switch: str) -> bool:
    """Return whether operators see that the switch is set aside now."""
    return f"{switch} (set aside for" in (await controller.does("fabric", "show")).out


async def test_liars_hold_up_no_other(tmp_path: Path) -> None:
    """Each liar is refused and named in the end; other switches and all calls are served."""
    fabric = clos(leaves=2 + len(LIES))
    fleet = switches(fabric)
    async with controlling(tmp_path, "--log-format", "json") as controller:
        await furnish(controller, tmp_path, fabric)
        async with (
            fleet["l0"].agent(controller.address),
            fleet["l1"].agent(controller.address),
            fleet["s0"].agent(controller.address),
            fleet["s1"].agent(controller.address),
            controller.channel() as channel,
        ):
            lying = asyncio.gather(*(lies(controller, switch) for switch in LIES))
            while not lying.done():
                await FabricServiceStub(channel).ListLinks(LIST, timeout=PATIENCE)
            await lying
            await until(lambda: sorted(answered(fleet["l0"])) == ["s0", "s1"])
            again = 0
            async with asyncio.timeout(PATIENCE):
                for switch in LIES:
                    # If its minute is over on a busy machine, it is set aside once more.
                    while not await shown_aside(controller, switch):
                        await lies(controller, switch)
                        again += 1
            # A later change still reaches the other switches.
            done = await controller.does("fabric", "link", "l1,s0", "down")
            assert done.code == 0, done.err
            await until(lambda: set(answered(fleet["l0"])) <= {"s1", "hash"})
        assert await controller.ends() == 0
    assert len(_leaderships(controller)) <= 1 + CLAIMS + again


def _leaderships(controller: Controller) -> list[int]:
    found = []
    for line in controller.log.read_text().splitlines():
        with suppress(orjson.JSONDecodeError):
            told = orjson.loads(line)
            if told.get("event") == "leading":
                found.append(told["epoch"])
    return found
