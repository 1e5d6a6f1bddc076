"""An agent with a real gRPC server on a free port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import NoReturn

import grpc
import numpy as np
import pytest
from structlog.testing import capture_logs

from heddle.v1 import agent_pb2 as pb
from heddle.v1 import common_pb2
from heddle_agent.agent import Agent
from heddle_agent.fib import Link, MemoryFib, Packet, Packets
from heddle_agent.session import Backoff, SessionOptions
from heddle_agent.table import Fence
from heddle_agent.watch import ManualLinks
from tests.support.agent_controllers import Controller, listening, numbers, wire_push
from tests.support.agent_worlds import HOPS, SWITCH, FixedUnderlay
from tests.support.waiting import PATIENCE, until

QUICK = SessionOptions(backoff=Backoff(first=0.02, longest=0.05), answer_timeout=PATIENCE)
FLOW = Packet("nic0", "far0", 9)
ENTRY = ("nic0", "far0", 0, 0, 1)


@dataclass
class Running:
    """A running agent with its backend and its links."""

    agent: Agent
    fib: MemoryFib
    links: ManualLinks

    def leaves(self) -> str | None:
        """Return the neighbour to which the flow leaves, or None if it is dropped."""
        hop = self.fib.lookup(FLOW)
        return None if hop is None else hop.node


@asynccontextmanager
async def running(
    *controllers: str,
    switch: str = SWITCH,
    fence: Fence | None = None,
    table_size: int = 0,
    options: SessionOptions = QUICK,
) -> AsyncIterator[Running]:
    """Run an agent, and stop it afterwards."""
    links = ManualLinks(switch, HOPS)
    fib = MemoryFib(switch, HOPS, FixedUnderlay(HOPS[2:4]), seed=1, table_size=table_size)
    agent = Agent(
        fabric="fabrics/f1",
        switch=switch,
        controllers=controllers,
        fib=fib,
        links=links,
        options=options,
        fence=fence or Fence(),
    )
    task = asyncio.create_task(agent.run())
    try:
        yield Running(agent, fib, links)
    finally:
        await agent.stop()
        await task


@pytest.fixture
async def controller() -> AsyncIterator[Controller]:
    """Yield a controller that listens."""
    async with listening(Controller()) as one:
        yield one


async def test_parameters_come_first_then_all_links(controller: Controller) -> None:
    """The agent says who it is, what it can do and what it holds, then which links are up."""
    async with running(controller.address, fence=Fence(4, 2), table_size=100) as one:
        stream = await controller.stream()
        await until(lambda: one.agent.connected, "the agent to know")
    said = stream.parameters
    assert (said.fabric, said.switch) == ("fabrics/f1", SWITCH)
    assert (said.highest_epoch, said.generation, said.table_digest) == (4, 0, b"")
    assert said.table_size == 100
    assert set(said.capabilities) == {1, 2, 3, 4, 5, 6}
    assert said.instance_id
    assert said.software_version == "0.1.0"
    (report,) = stream.links()
    assert report.full
    assert len(report.links) == len(HOPS)
    assert {seen.state for seen in report.links} == {common_pb2.STATE_UP}


async def test_a_push_is_answered_for_table_and_backend(controller: Controller) -> None:
    """Table and backend take the push at one moment, so one FIB answer covers both.

    The answer has the push's nonce, and packets then follow the push.
    """
    async with running(controller.address) as one:
        assert one.leaves() in {"spine2", "spine3"}
        stream = await controller.stream()
        await stream.push(wire_push(ENTRY, epoch=3, generation=8, nonce=77, full=True))
        (result,) = await stream.acked()
        assert result.stage == pb.PUSH_STAGE_FIB
        assert (result.nonce, result.epoch, result.generation) == (77, 3, 8)
        assert result.status == pb.PUSH_STATUS_APPLIED
        assert result.highest_epoch == 3
        assert not result.failures
        assert one.leaves() == "spine0"
        assert (one.agent.held.generation, one.agent.held.entries) == (8, 1)


async def test_entries_are_told_where_that_is_asked(controller: Controller) -> None:
    """A question may ask for the digest alone, or for every entry with the same digest."""
    async with running(controller.address) as one:
        stream = await controller.stream()
        await stream.push(wire_push(ENTRY, epoch=3, generation=8, full=True))
        for entries in (False, True):
            question = pb.Push(epoch=4, generation=8, mode=pb.PUSH_MODE_INCREMENTAL)
            question.tell_table, question.tell_entries = True, entries
            await stream.push(question)
        *_, brief, whole = [result.table for result in await stream.acked(3)]
        assert brief == pb.TableState(generation=8, digest=one.agent.forwarding.digest())
        assert (whole.generation, whole.digest) == (brief.generation, brief.digest)
        named = set(whole.entries.names)
        assert {"nic0", "far0", "spine0", "spine1"} == named - {"0"}
        assert len(whole.entries.ways) == 4  # a column of one number


async def test_failures_are_in_band(controller: Controller) -> None:
    """An operation that finds no room in the table is named in the answer and in the log."""
    async with running(controller.address, table_size=1) as one:
        stream = await controller.stream()
        with capture_logs() as logs:
            await stream.push(wire_push(ENTRY, ("nic0", "far1", 0, 0, None)))
            (result,) = await stream.acked()
        (told,) = [line for line in logs if line["event"] == "entries refused"]
        assert (told["failures"], told["reasons"]) == (1, {"TABLE_FULL": 1})
        assert told["entry"] == "nic0 far1 0 0"
        assert result.status == pb.PUSH_STATUS_APPLIED
        assert [(f.operation, f.reason) for f in result.failures] == [
            (1, pb.FAILURE_REASON_TABLE_FULL)
        ]
        assert one.agent.held.entries == 1


async def test_an_older_epoch_is_answered_once_and_refused(controller: Controller) -> None:
    """The one answer is STALE_EPOCH with the highest epoch, so that the old leader learns of it."""
    async with running(controller.address, fence=Fence(9, 9)) as one:
        stream = await controller.stream()
        await stream.push(wire_push(ENTRY, epoch=8))
        await stream.push(wire_push(ENTRY, epoch=9, generation=9, nonce=2))
        stale, taken = await stream.acked(2)
        assert (stale.status, stale.highest_epoch) == (pb.PUSH_STATUS_STALE_EPOCH, 9)
        assert "older" in stale.message
        assert taken.nonce == 2
        assert one.leaves() == "spine0"


async def test_a_malformed_push_is_refused_and_the_session_goes_on(controller: Controller) -> None:
    """The answer is INVALID and names the wrong operation. The next push is applied."""
    bad = wire_push(ENTRY)
    bad.operations.sources = numbers(99)
    async with running(controller.address) as one:
        stream = await controller.stream()
        await stream.push(bad)
        await stream.push(wire_push(ENTRY, nonce=2))
        invalid, fib = await stream.acked(2)
        assert invalid.status == pb.PUSH_STATUS_INVALID
        assert "operation 0: sources has 99" in invalid.message
        assert fib.stage == pb.PUSH_STAGE_FIB
        assert one.agent.held.entries == 1


async def test_a_lost_link_is_repaired_then_reported(controller: Controller) -> None:
    """Packets move before anybody is told. The report names link, reason and sequence number."""
    async with running(controller.address) as one:
        stream = await controller.stream()
        await stream.push(wire_push(ENTRY))
        await stream.acked()
        one.links.down("spine0", reason="bfd")
        await one.links.settled()
        assert one.leaves() == "spine1"
        await until(lambda: len(stream.links()) == 2, "the report")
        report = stream.links()[1]
        assert not report.full
        (seen,) = report.links
        assert (seen.link.source, seen.link.target, seen.link.key) == ("leaf0", "spine0", "0")
        assert (seen.state, seen.reason, seen.sequence) == (common_pb2.STATE_DOWN, "bfd", 1)
        one.links.up("spine0")
        await one.links.settled()
        assert one.leaves() == "spine0"


async def test_repair_needs_no_controller() -> None:
    """Without a controller, entries stay and failures are repaired. They are reported later."""
    async with listening(Controller()) as first, running(first.address) as one:
        stream = await first.stream()
        await stream.push(wire_push(ENTRY, risk=("spine0", "leaf9")))
        await stream.acked()
        stream.closing.set()
        first.refusal = (grpc.StatusCode.UNAVAILABLE, "going away")
        await until(lambda: not one.agent.connected)
        one.agent.link_notice(Link.between("spine0", "leaf9"), up=False)
        assert one.leaves() == "spine1"
        one.agent.link_notice(Link.between("spine0", "leaf9"), up=True)
        assert one.leaves() == "spine0"
        one.links.down("spine0")
        await one.links.settled()
        assert one.leaves() == "spine1"
        first.refusal = None
        again = await first.stream(1)
        assert again.parameters.instance_id == stream.parameters.instance_id
        assert again.parameters.generation == 1
        assert again.parameters.highest_epoch == 1
        assert len(again.parameters.table_digest) == 32
        states = {seen.link.target: seen.state for seen in again.links()[0].links}
        assert states["spine0"] == common_pb2.STATE_DOWN


async def test_entries_withdraw_after_their_time_without_a_controller() -> None:
    """Entries are withdrawn only if the controller asked for it.

    The agent then says that it holds none.
    """
    controller = Controller()
    controller.accept.entry_ttl_seconds = 0.05
    async with running("127.0.0.1:1") as lonely:
        assert lonely.agent.held.entries == 0
    async with listening(controller), running(controller.address) as one:
        stream = await controller.stream()
        await stream.push(wire_push(ENTRY))
        await stream.acked()
        controller.refusal = (grpc.StatusCode.UNAVAILABLE, "going away")
        stream.closing.set()
        await until(lambda: one.agent.held.entries == 0, "the withdrawal")
        assert one.leaves() in {"spine2", "spine3"}
        controller.refusal = None
        await until(lambda: one.agent.connected, "the next session")
        again = controller.streams[-1].parameters
        assert (again.generation, again.table_digest) == (0, b"")


async def test_entries_withdrawn_while_a_controller_answers(controller: Controller) -> None:
    """What the agent has said of its table is no longer true, so it introduces itself again.

    The log blames nobody for that.
    """
    controller.accept.entry_ttl_seconds = 0.3
    with capture_logs() as logs:
        await _withdrawn_meanwhile(controller)
    (told,) = [entry for entry in logs if "withdrawn meanwhile" in entry.get("why", "")]
    assert (told["event"], told["cure"]) == ("no session", "")


async def _withdrawn_meanwhile(controller: Controller) -> None:
    async with running(controller.address) as one:
        stream = await controller.stream()
        await stream.push(wire_push(ENTRY))
        await stream.acked()
        controller.speaks.clear()
        stream.closing.set()
        await until(lambda: controller.attempts >= 2, "an introduction")
        await until(lambda: one.agent.held.entries == 0, "the withdrawal")
        controller.speaks.set()
        await until(lambda: one.agent.connected, "the next session")
        again = controller.streams[-1].parameters
        assert (again.generation, again.table_digest) == (0, b"")


async def test_a_controller_that_is_back_in_time_keeps_the_entries(controller: Controller) -> None:
    """The next accepted session stops the clock of the time-to-live."""
    controller.accept.entry_ttl_seconds = 3600.0
    async with running(controller.address) as one:
        stream = await controller.stream()
        await stream.push(wire_push(ENTRY))
        await stream.acked()
        controller.accept.entry_ttl_seconds = 0
        controller.speaks.clear()
        stream.closing.set()
        await until(_clocks, "the clock")
        controller.speaks.set()
        await controller.stream(1)
        await until(lambda: not _clocks(), "its end")
        assert one.leaves() == "spine0"


def _clocks() -> int:
    """Return how many times-to-live are running in this process."""
    return sum("_withdraw" in str(task.get_coro()) for task in asyncio.all_tasks())


async def test_counters_go_up_as_often_as_the_controller_wants(controller: Controller) -> None:
    """Counts are sums since the entry was programmed, of every entry that has carried packets."""
    controller.accept.counter_interval_seconds = 0.05
    async with running(controller.address) as one:
        stream = await controller.stream()
        await stream.push(wire_push(ENTRY, ("nic0", "far1", 0, 0, None)))
        await stream.acked()
        names = one.fib.names
        ports = (np.array([FLOW.source_port]), np.array([FLOW.destination_port]))
        batch = Packets(names.ids([FLOW.source]), names.ids([FLOW.destination]), *ports)
        one.fib.count(batch, 1000)
        await until(lambda: any(r.packets for r in stream.counters()), "a count")
        first = next(r for r in stream.counters() if r.packets)
        assert (list(first.packets), list(first.bytes)) == ([1], [1000])
        ends = [end.nic for end in first.endpoints]
        assert (ends[first.sources[0]], ends[first.destinations[0]]) == ("nic0", "far0")
        one.fib.count(batch, 500)
        await until(lambda: list(stream.counters()[-1].packets) == [2], "the next")
        last = stream.counters()[-1]
        assert list(last.bytes) == [1500]
        assert last.time.ToNanoseconds() > first.time.ToNanoseconds()


async def test_links_are_reported_though_counters_cannot_be_read(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While others change the device there are no counters; then they come on the same stream."""
    controller.accept.counter_interval_seconds = 0.05
    asked = asyncio.Event()

    def refuse() -> NoReturn:
        asked.set()
        raise FileNotFoundError

    async with running(controller.address) as one:
        stream = await controller.stream()
        monkeypatch.setattr(one.fib, "counters", refuse)
        await asked.wait()
        one.links.down("spine0")
        await until(lambda: len(stream.links()) == 2, "a report of the link")
        monkeypatch.undo()
        before = len(stream.counters())
        await until(lambda: len(stream.counters()) > before, "counters")


@pytest.mark.parametrize(
    ("code", "cure"),
    [
        (grpc.StatusCode.NOT_FOUND, "check --fabric and --switch"),
        (grpc.StatusCode.UNAUTHENTICATED, "--tls-cert"),
        (grpc.StatusCode.FAILED_PRECONDITION, "will come again"),
    ],
)
async def test_a_refusal_is_logged_once_with_its_cure_and_tried_again(
    controller: Controller, code: grpc.StatusCode, cure: str
) -> None:
    """The first refusal is a warning and its repetitions are not. A session comes in the end."""
    controller.refusal = (code, "for a reason")
    with capture_logs() as logs:
        async with running(controller.address) as one:
            await until(lambda: controller.attempts >= 4, "more attempts")
            assert not one.agent.connected
            controller.refusal = None
            await controller.stream()
    warnings = [entry for entry in logs if entry["log_level"] == "warning"]
    assert len(warnings) == 1
    assert (warnings[0]["status"], warnings[0]["why"]) == (code.name, "for a reason")
    assert cure in warnings[0]["cure"]
    assert warnings[0]["switch"] == SWITCH


async def test_unreachable_controllers_are_passed_over(controller: Controller) -> None:
    """With two of three addresses dead, the agent finds the one that is alive."""
    async with running("127.0.0.1:1", controller.address, "127.0.0.1:2") as one:
        await controller.stream()
        await until(lambda: one.agent.connected, "the agent to know")


async def test_a_controller_that_says_nothing_is_given_up(controller: Controller) -> None:
    """Without an answer to its parameters the agent has no session and tries again."""
    controller.speaks.clear()
    with capture_logs() as logs:
        async with running(controller.address, options=replace(QUICK, answer_timeout=0.3)):
            await until(lambda: controller.attempts >= 2, "another attempt")
            controller.speaks.set()
            await controller.stream()
    assert {entry["status"] for entry in logs if "status" in entry} == {"DEADLINE_EXCEEDED"}


async def test_a_stranger_is_not_taken_for_a_controller(controller: Controller) -> None:
    """If the first message is not SessionAccepted, the attempt ends and the log says why."""
    controller.first = pb.ControllerMessage(push=wire_push(ENTRY))
    with capture_logs() as logs:
        async with running(controller.address) as one:
            await until(lambda: controller.attempts >= 2, "another attempt")
            assert one.agent.held.entries == 0
    assert "its first message is not SessionAccepted" in {entry.get("why") for entry in logs}
