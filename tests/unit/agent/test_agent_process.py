"""The agent as a process of its own, with a real controller."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from heddle.v1 import agent_pb2 as pb
from tests.support.agent_controllers import Controller, listening, wire_push
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE, until

AGENT = Path(sys.executable).with_name("heddle-agent")
LINKS = [f"--link=spine{number}" for number in range(4)]


class Process:
    """A running agent and the lines that it has logged."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[dict[str, object]] = []
        self.reading = asyncio.create_task(self._read())

    def logged(self, event: str) -> list[dict[str, object]]:
        """Return the log lines of one event."""
        return [line for line in self.lines if line["event"] == event]

    async def ended(self) -> int:
        """Wait for the process to end, and return its exit status."""
        await self.reading
        return await self.process.wait()

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(json.loads(line))


@asynccontextmanager
async def agent(*arguments: str) -> AsyncIterator[Process]:
    """Run the command, and kill it on the way out. Every line that it logs must be JSON."""
    process = await asyncio.create_subprocess_exec(
        *(str(AGENT), "run", "--fabric=fabrics/f1", "--switch=leaf0", *LINKS, *arguments),
        stderr=asyncio.subprocess.PIPE,
    )
    running = Process(process)
    try:
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await running.ended()


@pytest.mark.usefixtures("hangups")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_it_serves_until_it_is_told_to_stop(number: signal.Signals) -> None:
    """A push is programmed. SIGTERM, SIGHUP and Ctrl-C end it with status 0 and no traceback."""
    async with listening(Controller()) as controller:
        async with agent(f"--controller={controller.address}") as one:
            stream = await controller.stream()
            await stream.push(wire_push(("nic0", "far0", 0, 0, 1)))
            results = await stream.acked()
            assert {result.status for result in results} == {pb.PUSH_STATUS_APPLIED}
            one.process.send_signal(number)
            assert await one.ended() == 0
        assert one.logged("session accepted")
        assert one.lines[-1]["event"] == "agent stopped"
        assert {line["level"] for line in one.lines} == {"info"}


async def test_an_unreachable_controller_is_waited_for() -> None:
    """One log line explains what to do. A session begins once the controller is there."""
    port = free_port()
    async with agent(f"--controller=127.0.0.1:{port}", "--backoff-seconds=0.2") as one:
        await until(lambda: one.logged("no session"), "a line about it")
        (line,) = one.logged("no session")
        assert (line["level"], line["status"]) == ("warning", "UNAVAILABLE")
        assert line["address"] == f"127.0.0.1:{port}"
        assert "is a controller running there" in str(line["cure"])
        async with listening(Controller(), port) as controller:
            await controller.stream()


async def test_the_fence_outlives_the_process(tmp_path: Path) -> None:
    """Killed and started again with its state file, the agent refuses older pushes."""
    state = f"--state-file={tmp_path / 'agent.json'}"
    async with listening(Controller()) as controller:
        where = f"--controller={controller.address}"
        async with agent(where, state) as first:
            stream = await controller.stream()
            await stream.push(wire_push(("nic0", "far0", 0, 0, 1), epoch=7, generation=3))
            await stream.acked()
            first.process.kill()
        async with agent(where, state):
            again = await controller.stream(1)
            assert again.parameters.highest_epoch == 7
            assert again.parameters.instance_id != stream.parameters.instance_id
            assert (again.parameters.generation, again.parameters.table_digest) == (0, b"")
            await again.push(wire_push(("nic0", "far0", 0, 0, 1), epoch=6))
            (stale,) = await again.acked(1)
            assert (stale.status, stale.highest_epoch) == (pb.PUSH_STATUS_STALE_EPOCH, 7)


async def test_metrics_are_served_on_their_port() -> None:
    """Prometheus reads what the agent holds."""
    async with (
        listening(Controller()) as controller,
        agent(f"--controller={controller.address}", "--metrics-port=0") as one,
    ):
        stream = await controller.stream()
        await stream.push(wire_push(("nic0", "far0", 0, 0, 1), epoch=5, generation=9))
        await stream.acked()
        await until(lambda: one.logged("metrics served"), "the line with the port")
        (line,) = one.logged("metrics served")
        wanted = {
            'heddle_agent_entries{state="programmed",switch="leaf0"} 1.0',
            'heddle_agent_epoch{switch="leaf0"} 5.0',
            'heddle_agent_generation{switch="leaf0"} 9.0',
            'heddle_agent_connected{switch="leaf0"} 1.0',
            'heddle_agent_links{state="up",switch="leaf0"} 4.0',
            'heddle_agent_pushes_total{status="applied",switch="leaf0"} 1.0',
            'heddle_agent_sessions_total{switch="leaf0"} 1.0',
            'heddle_agent_groups_moved_total{switch="leaf0"} 0.0',
        }
        end = time.monotonic() + PATIENCE
        missing = wanted
        while missing:  # counters follow acknowledgements
            text = await asyncio.to_thread(read, f"http://127.0.0.1:{line['port']}/metrics")
            missing = {one for one in wanted if one not in text}
            assert time.monotonic() < end, f"{missing} not in:\n{text}"


async def test_a_metrics_port_in_use_is_an_error_at_the_start() -> None:
    """The command exits with status 2 and names the port. It does not run without metrics."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            *(str(AGENT), "run", "--fabric=fabrics/f1", "--switch=leaf0", *LINKS),
            *("--controller=127.0.0.1:1", f"--metrics-port={port}"),
            stderr=asyncio.subprocess.PIPE,
        )
        _, said = await process.communicate()
    assert process.returncode == 2
    assert f"--metrics-port {port} on 127.0.0.1: Address already in use" in said.decode()


async def test_the_log_is_quiet_about_a_refusal_that_lasts() -> None:
    """If the controller does not know the switch, one warning says what to check."""
    async with listening(Controller()) as controller:
        controller.refusal = (grpc.StatusCode.NOT_FOUND, "no switch leaf0 in fabrics/f1")
        async with agent(f"--controller={controller.address}", "--backoff-seconds=0.2") as one:
            await until(lambda: controller.attempts >= 3, "more attempts")
    (line,) = one.logged("no session")
    assert line["why"] == "no switch leaf0 in fabrics/f1"
    assert "check --fabric and --switch" in str(line["cure"])


def read(url: str) -> str:
    """Return the body at a URL."""
    with urllib.request.urlopen(url, timeout=PATIENCE) as answer:
        return str(answer.read().decode())
