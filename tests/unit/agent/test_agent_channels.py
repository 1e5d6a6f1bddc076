from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from heddle.v1 import agent_pb2_grpc
from heddle_agent.agent import Agent
from heddle_agent.fib import MemoryFib
from heddle_agent.session import Address, Backoff, Channels, Endpoint, SessionOptions, Tls
from heddle_agent.session.refusal import SessionEnd
from heddle_agent.watch import ManualLinks
from tests.support.agent_controllers import Controller, listening
from tests.support.agent_worlds import HOPS, SWITCH
from tests.support.needs import missing
from tests.support.ports import free_port
from tests.support.waiting import until


def test_back_off_doubles_up_to_its_cap_and_is_spread() -> None:
    """A delay is half to all of first · 2^n, and never more than the longest."""
    backoff = Backoff(first=1.0, longest=6.0)
    assert [backoff.delay(failures, 1.0) for failures in range(6)] == [1, 1, 2, 4, 6, 6]
    assert [backoff.delay(failures, 0.0) for failures in range(1, 5)] == [0.5, 1, 2, 3]
    assert backoff.delay(100_000, 1.0) == 6


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:7400", "127.0.0.1", 7400, True),
        ("localhost:1", "localhost", 1, True),
        ("[::1]:65535", "::1", 65535, True),
        (" 10.1.2.3:80 ", "10.1.2.3", 80, False),
        ("controller.example:7400", "controller.example", 7400, False),
        ("localhost.example:7400", "localhost.example", 7400, False),
    ],
)
def test_addresses_are_read(text: str, host: str, port: int, *, loopback: bool) -> None:
    """Names, IPv4 and bracketed IPv6 are read. Only addresses of this machine are loopback."""
    address = Address.parse(text)
    assert (address.host, address.port, address.loopback) == (host, port, loopback)
    assert Address.parse(str(address)) == address


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("127.0.0.1", "is not host:port"),
        (":7400", "is not host:port"),
        ("", "is not host:port"),
        ("http://c:7400", "in brackets"),
        ("//c:7400", "is not host:port"),
        ("::1:7400", "in brackets"),
        ("c:", "port '' is not a number"),
        ("c:x", "port 'x' is not a number"),
        ("c:0", "port '0' is not a number from 1 to 65535"),
        ("c:65536", "port '65536'"),
        ("c:٣", "port '٣'"),
        ("a b:7", "is not host:port"),
    ],
)
def test_malformed_addresses_are_refused(text: str, complaint: str) -> None:
    """The complaint contains the address and says what is wrong with it."""
    with pytest.raises(ValueError, match=complaint):
        Address.parse(text)


async def test_plain_text_stays_on_this_machine_unless_told() -> None:
    """Without TLS another host is refused, and the error names --insecure, which allows it."""
    far = Endpoint(Address("10.0.0.1", 7400), "10.0.0.1")
    with pytest.raises(ValueError, match=r"10\.0\.0\.1:7400 is not on this machine.*--insecure"):
        Channels().get(far)
    open_ = Channels(insecure=True)
    assert open_.get(far) is open_.get(far)
    await open_.close()


def test_a_session_needs_a_controller() -> None:
    """An empty list of controllers is an error of the caller."""
    links, fib = ManualLinks(SWITCH, HOPS), MemoryFib(SWITCH, HOPS)
    with pytest.raises(ValueError, match="at least one controller"):
        Agent(fabric="fabrics/f1", switch=SWITCH, controllers=[], fib=fib, links=links)


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """Make an authority and a certificate for localhost.

    Return authority, certificate and key files.
    """
    openssl = shutil.which("openssl")
    if openssl is None:
        missing("openssl is not installed, and nothing else here makes certificates")
    ca, ca_key = folder / "ca.pem", folder / "ca.key"
    cert, key, request = folder / "own.pem", folder / "own.key", folder / "own.csr"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    names = folder / "names.cnf"
    names.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n", encoding="utf-8")
    own_authority = ["req", "-x509", *curve, "-subj", "/CN=authority", "-days", "2"]
    own_request = ["req", *curve, "-subj", "/CN=localhost"]
    signed = ["x509", "-req", "-CAcreateserial", "-days", "2"]
    for command in (
        [*own_authority, "-keyout", ca_key, "-out", ca],
        [*own_request, "-keyout", key, "-out", request],
        [*signed, "-in", request, "-CA", ca, "-CAkey", ca_key, "-extfile", names, "-out", cert],
    ):
        subprocess.run([openssl, *map(str, command)], check=True, capture_output=True)
    return ca, cert, key


async def test_agents_and_controllers_know_each_other_by_certificate(tmp_path: Path) -> None:
    """A session over mutual TLS is established. An agent without a certificate gets no session."""
    ca, cert, key = certificates(tmp_path)
    controller = Controller()
    server = grpc.aio.server()
    agent_pb2_grpc.add_AgentServiceServicer_to_server(controller, server)
    credentials = grpc.ssl_server_credentials(
        [(key.read_bytes(), cert.read_bytes())], ca.read_bytes(), require_client_auth=True
    )
    controller.port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    try:
        async with dialling(controller, Tls(ca)) as stranger:
            await asyncio.sleep(0.3)
            assert controller.attempts == 0
            assert not stranger.connected
        async with dialling(controller, Tls(ca, cert, key)) as known:
            await until(lambda: known.connected, "its session")
    finally:
        await server.stop(None)


class CountedChannels(Channels):
    """Channels that count attempts to reach an endpoint and requests for a gRPC channel."""

    def __init__(self) -> None:
        super().__init__()
        self.looked = 0
        self.asked = 0

    async def reach(self, endpoint: Endpoint) -> None:
        """Count the call, then do what the parent does."""
        self.looked += 1
        await super().reach(endpoint)

    def get(self, endpoint: Endpoint) -> grpc.aio.Channel:
        """Count the call, then do what the parent does."""
        self.asked += 1
        return super().get(endpoint)


async def test_grpc_is_asked_for_nothing_before_a_controller_listens() -> None:
    """While nobody listens, only bare connections are tried. The session begins with the server."""
    controller, channels = Controller(), CountedChannels()
    controller.port = free_port()
    agent = Agent(
        fabric="fabrics/f1",
        switch=SWITCH,
        controllers=[controller.address],
        fib=MemoryFib(SWITCH, HOPS),
        links=ManualLinks(SWITCH, HOPS),
        channels=channels,
        options=SessionOptions(backoff=Backoff(0.02, 0.05)),
    )
    task = asyncio.create_task(agent.run())
    await until(lambda: channels.looked > 3, "attempts at a dead address")
    assert channels.asked == 0
    async with listening(controller, controller.port):
        await until(lambda: agent.connected, "its session")
    assert channels.asked > 0
    await agent.stop()
    await task
    await channels.close()


async def test_a_channel_that_nobody_uses_tries_nothing_by_itself() -> None:
    """A channel goes idle after a failed call. gRPC alone would try again every second."""
    channels = Channels()
    channel = channels.get(Endpoint(Address("127.0.0.1", free_port()), "127.0.0.1"))
    with pytest.raises(grpc.aio.AioRpcError):
        await agent_pb2_grpc.AgentServiceStub(channel).Session().read()
    await until(lambda: channel.get_state() is grpc.ChannelConnectivity.IDLE, "an idle channel")
    await channels.close()


@asynccontextmanager
async def dialling(controller: Controller, tls: Tls) -> AsyncIterator[Agent]:
    """Run an agent that looks for the controller with the given TLS files."""
    channels = Channels(tls)
    agent = Agent(
        fabric="fabrics/f1",
        switch=SWITCH,
        controllers=[controller.address],
        fib=MemoryFib(SWITCH, HOPS),
        links=ManualLinks(SWITCH, HOPS),
        channels=channels,
        options=SessionOptions(backoff=Backoff(0.02, 0.05)),
    )
    task = asyncio.create_task(agent.run())
    try:
        yield agent
    finally:
        await agent.stop()
        await task
        await channels.close()


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    """Files that are missing, are not PEM, or lack their key are named in the error."""
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("hello", encoding="utf-8")
    with pytest.raises(ValueError, match=r"none\.pem cannot be read: No such file"):
        Channels(Tls(tmp_path / "none.pem"))
    with pytest.raises(ValueError, match=r"garbage\.pem is not a PEM file"):
        Channels(Tls(garbage))
    with pytest.raises(ValueError, match="needs both its file and its key's"):
        Channels(Tls(garbage, cert=garbage))


def test_a_key_of_another_certificate_is_refused_at_the_start(tmp_path: Path) -> None:
    """Files that do not belong together are named at once, not at each handshake."""
    ca, cert, key = certificates(tmp_path)
    with pytest.raises(ValueError, match=r"ca\.pem with .*own\.key: .*belong together"):
        Channels(Tls(ca, ca, key))
    Channels(Tls(ca, cert, key))


@pytest.mark.parametrize("why", ["Socket closed", "recvmsg:Connection reset by peer (104)"])
def test_a_controller_that_hangs_up_may_want_tls(why: str) -> None:
    """If a controller hangs up, the cure names the options for TLS."""
    end = SessionEnd(grpc.StatusCode.UNAVAILABLE, f"ipv4:127.0.0.1:7400: {why}")
    assert "--tls-ca" in end.cure


def test_a_certificate_that_has_ended() -> None:
    """The cure for a controller whose certificate has expired is a new one, not an authority.

    It is told at once, although an earlier failure to reach the controller was told just before.
    """
    text = "OPENSSL_internal:CERTIFICATE_VERIFY_FAILED: certificate has expired: OK"
    ended = SessionEnd(grpc.StatusCode.UNAVAILABLE, text)
    assert "renew the controller's certificate" in ended.cure
    assert "--tls-ca" not in ended.cure
    refused, silent = (
        SessionEnd(grpc.StatusCode.UNAVAILABLE, why)
        for why in ("cannot connect: Connection refused", "nothing answers at this address")
    )
    assert ended.differs(refused)
    assert not silent.differs(refused)
