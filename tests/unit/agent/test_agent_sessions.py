"""An agent with several controllers: a session with each, and obedience to the highest epoch."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import grpc
import pytest

from heddle.v1 import agent_pb2 as pb
from heddle.v1 import agent_pb2_grpc, common_pb2
from tests.support.agent_controllers import Controller, listening, wire_push
from tests.support.waiting import until
from tests.unit.agent.test_agent_session import ENTRY, QUICK, running

OTHER = ("nic0", "far0", 0, 1, 0)


@asynccontextmanager
async def two() -> AsyncIterator[tuple[Controller, Controller]]:
    """Run two controllers that listen."""
    async with listening(Controller()) as one, listening(Controller()) as other:
        yield one, other


async def test_there_is_a_session_with_each_at_the_same_time() -> None:
    """Both controllers learn who the agent is and which link is lost, from the same instance."""
    async with two() as (one, other), running(one.address, other.address) as leaf:
        streams = [await one.stream(), await other.stream()]
        await until(lambda: leaf.agent.sessions.connected == 2)
        assert len({stream.parameters.instance_id for stream in streams}) == 1
        leaf.links.down("spine0", reason="bfd")
        for stream in streams:
            await until(lambda s=stream: len(s.links()) == 2, "the report")  # type: ignore[misc]
            (seen,) = stream.links()[1].links
            assert (seen.link.target, seen.state) == ("spine0", common_pb2.STATE_DOWN)


async def test_the_highest_epoch_alone_is_obeyed() -> None:
    """A controller whose epoch is below the highest is refused, and told the highest epoch."""
    async with two() as (one, other), running(one.address, other.address) as leaf:
        first, second = await one.stream(), await other.stream()
        await first.push(wire_push(ENTRY, epoch=3))
        await first.acked()
        assert leaf.leaves() == "spine0"
        await second.push(wire_push(OTHER, epoch=4))
        await second.acked()
        await first.push(wire_push(ENTRY, epoch=3, generation=9, nonce=2))
        stale = (await first.acked(2))[1]
        assert (stale.status, stale.highest_epoch) == (pb.PUSH_STATUS_STALE_EPOCH, 4)
        assert leaf.leaves() == "spine1"


async def test_every_controller_hears_how_the_overlay_stands() -> None:
    """Both controllers hear of each change that one of them orders."""
    async with two() as (one, other), running(one.address, other.address) as leaf:
        first, second = await one.stream(), await other.stream()
        for stream, order, says in (
            (first, pb.OverlayOrder(withdrawn=True, epoch=5), (True, "")),
            (second, pb.OverlayOrder(withdrawn=False, epoch=6), (False, "")),
        ):
            await stream.push(wire_push(ENTRY, epoch=order.epoch))
            await stream.context.write(pb.ControllerMessage(overlay=order))
            for each in (first, second):
                await until(lambda e=each, s=says: _overlay(e) == s, "a report")  # type: ignore[misc]
        assert not leaf.fib.withdrawn


def _overlay(stream: Any) -> tuple[bool, str] | None:
    """Return the stream's last report of the overlay, or None if there is none."""
    told = [one.overlay for one in stream.received if one.HasField("overlay")]
    return (told[-1].withdrawn, told[-1].message) if told else None


async def test_one_that_is_lost_costs_the_other_nothing() -> None:
    """The session with the other controller goes on, and entries stay while there is a session."""
    async with two() as (one, other), running(one.address, other.address) as leaf:
        for each in (one, other):
            each.accept.entry_ttl_seconds = 0.01
        await until(lambda: leaf.agent.sessions.connected == 2)
        first, second = await one.stream(), await other.stream()
        await first.push(wire_push(ENTRY))
        await first.acked()
        one.refusal = (grpc.StatusCode.UNAVAILABLE, "going away")
        first.closing.set()
        await until(lambda: one.attempts >= 4, "it is tried again")
        assert leaf.agent.held.entries == 1
        assert other.attempts == 1
        await second.push(wire_push(OTHER, epoch=2))
        await second.acked()
        assert leaf.leaves() == "spine1"


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Replace name lookups of this process by this table: name to addresses."""
    known: dict[str, list[str]] = {}

    def lookup(host: str, port: int, *_: object, **__: object) -> list[Any]:
        if host not in known:
            raise socket.gaierror(socket.EAI_NONAME, "not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (at, port)) for at in known[host]]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    return known


async def test_a_name_stands_for_all_of_its_addresses(names: dict[str, list[str]]) -> None:
    """The agent has a session with each address. It finds an address that is added later.

    A session stays when its address is no longer listed, but is not dialled again once it ends.
    """
    options = replace(QUICK, resolve=0.02)
    names["localhost"] = ["127.0.0.2"]
    one, other = Controller(), Controller()
    async with listening(one) as one, _at(other, "127.0.0.3", one.port):
        del names["localhost"]
        async with running(f"localhost:{one.port}", options=options) as leaf:
            names["localhost"] = ["127.0.0.1", "127.0.0.3"]
            await until(lambda: leaf.agent.sessions.connected == 2, "both")
            names["localhost"] = ["127.0.0.1"]
            other.streams[0].closing.set()
            await until(lambda: leaf.agent.sessions.connected == 1, "the one that is named")
            del names["localhost"]
            await asyncio.sleep(0)
            assert (one.attempts, one.live) == (1, 1)
            names["localhost"] = ["127.0.0.3", "127.0.0.1"]
            await until(lambda: leaf.agent.sessions.connected == 2, "both again")


@asynccontextmanager
async def _at(controller: Controller, host: str, port: int) -> AsyncIterator[None]:
    """Run a controller on another address of this machine, with the given port."""
    server = grpc.aio.server()
    agent_pb2_grpc.add_AgentServiceServicer_to_server(controller, server)
    server.add_insecure_port(f"{host}:{port}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


async def test_one_controller_by_two_addresses_has_one_session() -> None:
    """The session that was replaced waits, and dials again once the other has ended."""
    one = Controller()
    one.accept.controller_instance = "i1"
    async with listening(one):
        addresses = (one.address, f"127.0.0.3:{one.port}")
        async with running(*addresses, options=QUICK) as leaf:
            await until(lambda: leaf.agent.sessions.connected == 1)
            async with _at(one, "127.0.0.3", one.port):
                await until(lambda: leaf.agent.sessions.connected == 2)
                one.streams[0].closing.set()  # as a controller does on replacing it
                await until(lambda: leaf.agent.sessions.connected == 1)
                await asyncio.sleep(4 * QUICK.backoff.longest)  # long enough for another attempt
                assert one.attempts == 2
                one.streams[1].closing.set()
                await until(lambda: len(one.streams) >= 3, "another session")
