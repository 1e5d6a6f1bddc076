"""Many agents in one event loop, and how they end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from heddle_agent.agent import Agent
from heddle_agent.fib import MemoryFib
from heddle_agent.session import Backoff, Channels, SessionOptions
from heddle_agent.watch import ManualLinks
from tests.support.agent_controllers import Controller, listening, wire_push
from tests.support.agent_worlds import HOPS, SWITCH
from tests.support.waiting import PATIENCE, until

QUICK = SessionOptions(backoff=Backoff(first=0.02, longest=0.05))
ROUNDS = 8
ENTRY = ("nic0", "far0", 0, 0, 1)


@pytest.fixture
async def controller() -> AsyncIterator[Controller]:
    """Yield a controller that listens."""
    async with listening(Controller()) as one:
        yield one


def agents(number: int, channels: Channels, *controllers: str) -> list[Agent]:
    """Return agents of this many switches that share channels."""
    return [
        Agent(
            fabric="fabrics/f1",
            switch=f"leaf{row}",
            controllers=controllers,
            fib=MemoryFib(f"leaf{row}", HOPS),
            links=ManualLinks(f"leaf{row}", HOPS),
            channels=channels,
            options=QUICK,
        )
        for row in range(number)
    ]


async def test_a_hundred_agents_share_a_loop_and_stop_without_a_word(
    controller: Controller, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    """All are served and all stop at once while connected. No traceback and no task is left."""
    before = asyncio.all_tasks()
    channels = Channels()
    fleet = agents(120, channels, controller.address)
    tasks = [asyncio.create_task(agent.run()) for agent in fleet]
    await until(lambda: controller.live == len(fleet), "all sessions")
    message = wire_push(ENTRY)
    await asyncio.gather(*(stream.push(message) for stream in controller.streams))
    await until(lambda: all(agent.held.entries for agent in fleet), "all entries")
    await asyncio.gather(*(agent.stop() for agent in fleet))
    await asyncio.gather(*tasks)
    await channels.close()
    await until(lambda: controller.live == 0, "the controller to see them go")
    assert not caplog.records
    assert capfd.readouterr().err == ""
    # The server waits for its next call in a task of its own.
    await until(lambda: len(asyncio.all_tasks() - before) <= 1, "the end of every task")


async def test_the_controller_may_die_under_a_hundred_agents(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """All streams break at once. The agents keep their entries and find the next controller."""
    channels = Channels()
    async with listening(Controller()) as first, listening(Controller()) as second:
        second.refusal = (grpc.StatusCode.UNAVAILABLE, "not yet")
        fleet = agents(100, channels, first.address, second.address)
        tasks = [asyncio.create_task(agent.run()) for agent in fleet]
        await until(lambda: first.live == len(fleet), "all sessions")
        await asyncio.gather(*(stream.push(wire_push(ENTRY)) for stream in first.streams))
        await until(lambda: all(agent.held.entries for agent in fleet), "all entries")
        first.refusal = (grpc.StatusCode.UNAVAILABLE, "dead")
        for stream in first.streams:
            stream.closing.set()
        second.refusal = None
        await until(lambda: second.live == len(fleet), "all sessions with the other")
        assert all(agent.held.generation == 1 for agent in fleet)
        await asyncio.gather(*(agent.stop() for agent in fleet))
        await asyncio.gather(*tasks)
        await channels.close()
    assert not caplog.records


async def test_agents_that_are_refused_at_that_moment_stop_too(controller: Controller) -> None:
    """Agents stop even when a stop coincides with the end of an attempt to connect."""
    controller.refusal = (grpc.StatusCode.UNAVAILABLE, "not today")
    for _ in range(ROUNDS):
        channels = Channels()
        fleet = agents(100, channels, controller.address)
        tasks = [asyncio.create_task(agent.run()) for agent in fleet]
        wanted = controller.attempts + 2 * len(fleet)
        await until(lambda wanted=wanted: controller.attempts >= wanted, "attempts of all")  # type: ignore[misc] # mypy knows no such default
        for agent in fleet:
            agent.request_stop()
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(*tasks)
        await channels.close()


async def test_a_cancelled_agent_is_as_clean_as_a_stopped_one(controller: Controller) -> None:
    """Cancelling the task of ``run`` ends the task, its session and its channel."""
    fib = MemoryFib(SWITCH, HOPS)
    agent = Agent(
        fabric="fabrics/f1",
        switch=SWITCH,
        controllers=[controller.address],
        fib=fib,
        links=ManualLinks(SWITCH, HOPS),
    )
    task = asyncio.create_task(agent.run())
    await controller.stream()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: controller.live == 0, "the controller to see it go")
    await agent.stop()


async def test_stopping_before_running_ends_at_once() -> None:
    """An agent that is told to stop before it runs does not connect to anybody."""
    async with listening(Controller()) as controller:
        agent = Agent(
            fabric="fabrics/f1",
            switch=SWITCH,
            controllers=[controller.address],
            fib=MemoryFib(SWITCH, HOPS),
            links=ManualLinks(SWITCH, HOPS),
        )
        await agent.stop()
        await agent.run()
        assert controller.attempts == 0
