from __future__ import annotations

import asyncio
import json
import re
import signal
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from grpc import aio

from heddle.v1 import agent_pb2, fabric_pb2, placement_pb2
from heddle.v1.agent_pb2_grpc import AgentServiceStub
from heddle.v1.demand_pb2_grpc import DemandServiceStub
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle.v1.placement_pb2_grpc import PlacementServiceStub
from heddle_emulator.topology import clos
from tests.integration.certifying import Authority
from tests.support.depth import examples
from tests.support.operating import Controller, controlling, start
from tests.support.serving import wire
from tests.support.waiting import PATIENCE, until

AGENTS = 500
CHANNELS = 10
FABRIC = clos(leaves=AGENTS - 4, spines=4, nics_per_leaf=1, nics_per_host=1)
SWITCHES = [node for node in FABRIC.structure.nodes.ids if node[0] in "ls" and "-" not in node]


async def introduce(
    channel: aio.Channel, switch: str
) -> aio.StreamStreamCall[agent_pb2.AgentMessage, agent_pb2.ControllerMessage]:
    """Open a session, and return it once it is accepted."""
    call = AgentServiceStub(channel).Session()
    about = agent_pb2.SessionParameters(fabric="fabrics/f1", switch=switch, instance_id=switch)
    await call.write(agent_pb2.AgentMessage(session_parameters=about))
    message = await call.read()
    assert isinstance(message, agent_pb2.ControllerMessage)
    assert message.HasField("session_accepted")
    return call


async def end_of(
    call: aio.StreamStreamCall[agent_pb2.AgentMessage, agent_pb2.ControllerMessage],
) -> str:
    """Return the status with which a stream ends, whatever comes before."""
    try:
        while await call.read() is not aio.EOF:
            pass
    except aio.AioRpcError as error:
        return error.code().name
    return (await call.code()).name


@pytest.mark.deep
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT][: examples(1, 2)])
async def test_a_controller_with_500_agents_ends_cleanly(
    tmp_path: Path, how: signal.Signals
) -> None:
    """Every stream ends with UNAVAILABLE, the exit status is 0, and the log has no error."""
    assert len(SWITCHES) == AGENTS
    async with (
        controlling(tmp_path, "--drain-seconds", "300") as controller,
        AsyncExitStack() as stack,
    ):
        channels = [await stack.enter_async_context(controller.channel()) for _ in range(CHANNELS)]
        await FabricServiceStub(channels[0]).PutFabric(
            fabric_pb2.PutFabricRequest(fabric=wire(FABRIC))
        )
        watch = PlacementServiceStub(channels[0]).WatchJobs(
            placement_pb2.WatchJobsRequest(parent="fabrics/f1")
        )
        assert await watch.read() is not aio.EOF
        calls = await asyncio.gather(
            *(introduce(channels[i % CHANNELS], switch) for i, switch in enumerate(SWITCHES))
        )
        ends = asyncio.gather(*(end_of(call) for call in calls))
        assert await controller.ends(how, PATIENCE) == 0  # it ends before the drain's time is over
        assert set(await ends) == {"UNAVAILABLE"}
        log = controller.log.read_text()
        assert "Traceback" not in log
        assert "error" not in log.lower().replace('"level": "error"', "error")


def _running(controller: Controller, method: str) -> bool:
    """Return whether the controller's metrics show a call of a method under way."""
    with urlopen(f"http://127.0.0.1:{controller.metrics_port}/metrics") as answer:
        told = answer.read().decode()
    return bool(re.search(rf'heddle_rpcs_running{{method="{method}"[^}}]*}} [1-9]', told))


async def test_ending_twice_hurries(tmp_path: Path) -> None:
    """A second signal ends a controller at once, while a call still holds up its drain.

    Each line of the log is one object, because machines read it.
    """
    async with (
        controlling(tmp_path, "--drain-seconds", "300", "--log-level", "debug") as controller,
        controller.channel() as channel,
    ):
        call = DemandServiceStub(channel).PutDemands()  # an upload that never ends
        await until(lambda: _running(controller, "PutDemands"), "the call")
        await FabricServiceStub(channel).ListFabrics(fabric_pb2.ListFabricsRequest())
        controller.process.send_signal(signal.SIGINT)
        await until(lambda: "stopping" in controller.log.read_text(), "the end to begin")
        assert await controller.ends(signal.SIGTERM, PATIENCE) == 128 + signal.SIGTERM
        call.cancel()
        lines = controller.log.read_text().splitlines()
        assert all(line.startswith("{") and line.endswith("}") for line in lines)
        assert any("FabricService/ListFabrics" in line for line in lines)


@pytest.mark.usefixtures("hangups")
async def test_a_hangup_ends_it_in_order(tmp_path: Path) -> None:
    """SIGHUP ends a controller as SIGTERM does."""
    async with controlling(tmp_path) as controller:
        assert await controller.ends(signal.SIGHUP, PATIENCE) == 0
        assert '"event": "stopped"' in controller.log.read_text()


async def test_the_log_is_json_whatever_strangers_send(tmp_path: Path) -> None:
    """A handshake that fails inside gRPC leaves no line in the log that is not JSON."""
    authority = Authority(tmp_path / "pki")
    server = authority.server()
    tls = ("--tls-cert", server.cert, "--tls-key", server.key, "--tls-client-ca", server.ca)
    async with controlling(tmp_path, *map(str, tls)) as controller:
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", controller.port)
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            await writer.drain()
            with suppress(ConnectionResetError):
                await reader.read()
            writer.close()
        assert await controller.ends() == 0
        for line in controller.log.read_text().splitlines():
            assert json.loads(line)


async def _refused(controller: Controller, path: Path, *options: str) -> str:
    """Return the output of a second controller, which must exit with status 2."""
    process, log = await start(path, *options)
    async with asyncio.timeout(PATIENCE):
        assert await process.wait() == 2
    assert controller.process.returncode is None
    return log.read_text()


async def test_what_is_in_use_is_named_in_one_line(tmp_path: Path) -> None:
    """A port or store in use ends the controller with status 2 and one line that names it."""
    other = tmp_path / "other"
    other.mkdir()
    async with controlling(tmp_path) as controller:
        for options, texts in (
            (("--listen", controller.address), (controller.address, "--listen")),
            (
                ("--metrics-port", str(controller.metrics_port)),
                (f"127.0.0.1:{controller.metrics_port}", "--metrics-port"),
            ),
            (("--store", f"sqlite:///{tmp_path / 'heddle.sqlite3'}"), ("heddle.sqlite3",)),
        ):
            told = await _refused(controller, other, *options)
            (line,) = told.splitlines()
            assert line.startswith("error: ")
            assert all(text in line for text in texts), line
            (other / "controller.log").unlink()


async def test_a_redis_that_is_not_there_is_named_with_its_cure(tmp_path: Path) -> None:
    """A missing Redis ends the controller with status 2; the last line has the cure."""
    process, log = await start(tmp_path, "--store", "redis://127.0.0.1:1")
    async with asyncio.timeout(PATIENCE):
        assert await process.wait() == 2
    last = log.read_text().splitlines()[-1]
    assert last.startswith("error: store redis://127.0.0.1:1 is away: ")
    assert last.endswith("Start it, or name another with --store")
