from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
from cryptography import x509
from google.protobuf import empty_pb2
from google.rpc import error_details_pb2
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from heddle.v1 import agent_pb2, common_pb2, fabric_pb2, placement_pb2
from heddle.v1.agent_pb2_grpc import AgentServiceStub
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle.v1.placement_pb2_grpc import PlacementServiceStub
from heddle_controller.serve.interceptors.around import LINES_AT_ONCE, LINES_PER_SECOND
from heddle_controller.serve.interceptors.auth import Admission, Allowance
from heddle_controller.serve.security.caller import PERMISSIONS, Caller, Role
from heddle_controller.serve.security.certificates import FollowedTls, Tls, server_context
from heddle_controller.serve.security.files import TokenFile, new_token
from tests.integration.certifying import Authority, Pair
from tests.support.operating import controlling, heddle, unlogged
from tests.support.serving import LOOPBACK, OPTIONS, detail, reason, refusal, serving
from tests.support.waiting import PATIENCE

LIST = fabric_pb2.ListFabricsRequest()
DELETE = placement_pb2.DeleteJobRequest(name="fabrics/f1/jobs/none")


def dial(port: int, pair: Pair | None, ca: Path) -> aio.Channel:
    """Return a client's channel; without a pair it shows no certificate."""
    plain = grpc.ssl_channel_credentials(ca.read_bytes())
    return aio.secure_channel(f"localhost:{port}", pair.credentials() if pair else plain, OPTIONS)


def introduction(switch: str, fabric: str = "f1") -> agent_pb2.AgentMessage:
    """Return the first message of an agent."""
    about = agent_pb2.SessionParameters(
        fabric=f"fabrics/{fabric}", switch=switch, instance_id="i1", software_version="0"
    )
    return agent_pb2.AgentMessage(session_parameters=about)


async def test_roles(tmp_path: Path) -> None:
    """Each certificate may do what its role allows; anything else is refused as ``ROLE_DENIED``."""
    authority = Authority(tmp_path / "pki")
    server = authority.server()
    terms = replace(LOOPBACK, tls=Tls(server.cert, server.key, server.ca))
    async with serving(tmp_path, terms) as s:
        await s.put_fabric()
        for role, reads, works, operates in (
            ("reader/r", True, False, False),
            ("scheduler/s", True, True, False),
            ("operator/o", True, True, True),
            ("agent/f1/l0", False, False, False),
        ):
            async with dial(s.api.port, authority.role(role), authority.ca) as channel:
                fabrics, jobs = FabricServiceStub(channel), PlacementServiceStub(channel)
                drain = fabric_pb2.SetSwitchStateRequest(
                    fabric="fabrics/f1", node="s0", admin_state=common_pb2.STATE_DRAINED
                )
                for call, allowed in (
                    (fabrics.ListFabrics(LIST), reads),
                    (jobs.DeleteJob(DELETE), works),
                    (fabrics.SetSwitchState(drain), operates),
                ):
                    code, why = await outcome(call)
                    assert (code != "PERMISSION_DENIED") == allowed, (role, code)
                    assert (why == "ROLE_DENIED") != allowed
        entry = (await s.store.audit()).records[-1].entry
        assert (entry.actor, entry.action) == (
            "operator spiffe://heddle/operator/o",
            "set_switch_state",
        )


async def outcome(call: Awaitable[Any]) -> tuple[str, str]:
    """Return the status and the reason of a call."""
    try:
        await call
    except aio.AioRpcError as error:
        return error.code().name, reason(error)
    return "OK", ""


async def test_agents_are_held_to_their_switch(tmp_path: Path) -> None:
    """An agent's certificate admits its own switch of its own fabric; an operator's admits none."""
    authority = Authority(tmp_path / "pki")
    server = authority.server()
    terms = replace(LOOPBACK, tls=Tls(server.cert, server.key, server.ca))
    async with serving(tmp_path, terms) as s:
        await s.put_fabric()
        await s.put_fabric(name="f2")

        async def session(role: str, switch: str, fabric: str = "f1") -> str:
            async with dial(s.api.port, authority.role(role), authority.ca) as channel:
                stream = AgentServiceStub(channel).Session()
                try:
                    await stream.write(introduction(switch, fabric))
                    message: Any = await stream.read()
                except aio.AioRpcError as error:
                    return reason(error)
                return str(message.WhichOneof("message"))

        assert await session("agent/f1/l0", "l0") == "session_accepted"
        assert await session("agent/f1/l0", "l1") == "NOT_YOUR_SWITCH"
        assert await session("agent/f1/l0", "l0", "f2") == "NOT_YOUR_SWITCH"
        assert await session("operator/o", "l0") == "ROLE_DENIED"


async def test_denied_calls_are_logged_but_do_not_flood_the_log(tmp_path: Path) -> None:
    """A denied call is logged with who, what and why; many by one client make few lines."""
    authority = Authority(tmp_path / "pki")
    server = authority.server()
    terms = replace(LOOPBACK, tls=Tls(server.cert, server.key, server.ca))
    calls = 300
    with capture_logs(processors=[merge_contextvars]) as logged:
        async with serving(tmp_path, terms) as s:
            for pair in (authority.role("reader/r"), authority.role("nobody/n")):
                async with dial(s.api.port, pair, authority.ca) as channel:
                    await refusal(PlacementServiceStub(channel).DeleteJob(DELETE))
            began = time.monotonic()
            async with dial(s.api.port, authority.role("reader/r"), authority.ca) as channel:
                for _ in range(calls):
                    await refusal(PlacementServiceStub(channel).DeleteJob(DELETE))
            seconds = time.monotonic() - began
    denied = [one for one in logged if one["event"] == "call denied"]
    first, second = denied[:2]
    assert first["client"] == "reader spiffe://heddle/reader/r"
    assert first["rpc"] == "heddle.v1.PlacementService/DeleteJob"
    assert (first["code"], first["log_level"]) == ("PERMISSION_DENIED", "warning")
    assert "may not call" in first["why"]
    assert (second["code"], bool(second["peer"])) == ("UNAUTHENTICATED", True)
    assert len(denied) <= LINES_AT_ONCE + LINES_PER_SECOND * seconds + 3
    ends = {one["code"] for one in logged if one["event"] == "rpc"}
    assert ends == {"PERMISSION_DENIED", "UNAUTHENTICATED"}


async def test_nothing_shown_nothing_done(tmp_path: Path) -> None:
    """Every method of every service refuses a caller without a role, except health checks."""
    authority = Authority(tmp_path / "pki")
    server = authority.server()
    terms = replace(
        LOOPBACK,
        tls=Tls(server.cert, server.key),
        admission=Admission(tokens=file_with_token(tmp_path)[0]),
    )
    async with serving(tmp_path, terms) as s, dial(s.api.port, None, authority.ca) as channel:
        for path in PERMISSIONS:
            call = channel.unary_unary(
                f"/{path}", empty_pb2.Empty.SerializeToString, empty_pb2.Empty.FromString
            )
            if path.startswith("grpc.health"):
                continue
            error = await refusal(call(empty_pb2.Empty()))
            assert (error.code().name, reason(error)) == ("UNAUTHENTICATED", "NO_ROLE"), path
        health: Any = health_pb2_grpc.HealthStub(channel)
        assert (await health.Check(health_pb2.HealthCheckRequest())).status
        counted = s.telemetry.registry.get_sample_value(
            "heddle_rpcs_total",
            {
                "service": "heddle.v1.FabricService",
                "method": "PutFabric",
                "code": "UNAUTHENTICATED",
            },
        )
        assert counted == 1


def file_with_token(folder: Path, role: Role = Role.SCHEDULER) -> tuple[TokenFile, str]:
    """Write a file with one grant; return the file and the grant's token."""
    folder.mkdir(exist_ok=True)
    path = folder / "tokens"
    token, grant = new_token(Caller(role, ""), "slurm", time.time() + 1000)
    path.write_text(f"{grant.line()}\n")
    return TokenFile(path), token


async def test_a_token_beside_certificates(tmp_path: Path) -> None:
    """A token is accepted on the token port; the other port still requires a certificate."""
    authority = Authority(tmp_path / "pki")
    server = authority.server()
    tokens, token = file_with_token(tmp_path)
    terms = replace(
        LOOPBACK,
        tls=Tls(server.cert, server.key, server.ca),
        admission=Admission(tokens=tokens),
        token_address=("127.0.0.1", 0),
    )
    async with serving(tmp_path, terms) as s:
        bearer = (("authorization", f"Bearer {token}"),)
        async with dial(s.api.token_port, None, authority.ca) as channel:
            stub = FabricServiceStub(channel)
            await stub.ListFabrics(LIST, metadata=bearer)
            error = await refusal(stub.ListFabrics(LIST))
            assert reason(error) == "NO_ROLE"
            error = await refusal(stub.ListFabrics(LIST, metadata=((bearer[0][0], "Bearer x"),)))
            assert reason(error) == "BAD_TOKEN"
        async with dial(s.api.port, None, authority.ca) as channel:
            error = await refusal(FabricServiceStub(channel).ListFabrics(LIST, metadata=bearer))
            assert error.code().name == "UNAVAILABLE"
        file = tmp_path / "token"
        file.write_text(f"{token}\n")
        words = ("--server", f"localhost:{s.api.token_port}", "--tls-ca", authority.ca)
        with unlogged():
            done = await asyncio.to_thread(heddle, *words, "--token-file", file, "fabric", "list")
        assert done.code == 0, done.err


async def test_certificates_are_read_again(tmp_path: Path) -> None:
    """A new key pair and authority are used from the next connection on, without a restart."""
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    live, fresh = old.server(), new.server()
    terms = replace(LOOPBACK, tls=Tls(live.cert, live.key, live.ca))
    async with serving(tmp_path, terms) as s:

        async def listed(authority: Authority) -> str:
            pair = authority.role("reader/r")
            async with dial(s.api.port, pair, authority.ca) as channel:
                return (await outcome_of(FabricServiceStub(channel).ListFabrics(LIST)))[0]

        standing = dial(s.api.port, old.role("reader/stays"), old.ca)
        await FabricServiceStub(standing).ListFabrics(LIST)
        assert [await listed(old), await listed(new)] == ["OK", "UNAVAILABLE"]
        live.key.write_bytes(fresh.key.read_bytes())  # a key alone changes nothing
        assert await listed(old) == "OK"
        live.cert.write_bytes(fresh.cert.read_bytes())
        live.ca.write_bytes(fresh.ca.read_bytes())
        pair, root = new.role("reader/r"), new.ca
        async with dial(s.api.port, pair, root) as channel:
            assert (await outcome_of(FabricServiceStub(channel).ListFabrics(LIST)))[0] == "OK"
        await FabricServiceStub(standing).ListFabrics(LIST)  # an open connection goes on
        await standing.close()


def test_a_certificate_that_has_ended_is_logged(tmp_path: Path) -> None:
    """The log names the file if the controller starts with it, and if it comes in place later."""
    authority = Authority(tmp_path)
    good = authority.server()
    ended = authority.issue("ended", x509.DNSName("localhost"), days=-0.01)
    with capture_logs() as logs:
        followed = FollowedTls(Tls(good.cert, good.key, good.ca), server_context)
        assert logs == []
        good.key.write_bytes(ended.key.read_bytes())
        good.cert.write_bytes(ended.cert.read_bytes())
        assert followed.newer() is not None
        FollowedTls(Tls(ended.cert, ended.key, ended.ca), server_context)
    told = [one["file"] for one in logs if one["event"] == "certificate has ended"]
    assert told == [str(good.cert), str(ended.cert)]


async def outcome_of(call: Awaitable[Any]) -> tuple[str, str]:
    """Return the status of a call, which may not have reached a server at all."""
    try:
        await call
    except aio.AioRpcError as error:
        return error.code().name, ""
    return "OK", ""


async def test_a_client_that_asks_too_much(tmp_path: Path) -> None:
    """A client over its rate is told when to retry; others, and its later calls, are served."""
    authority = Authority(tmp_path / "pki")
    server = authority.server()
    terms = replace(
        LOOPBACK,
        tls=Tls(server.cert, server.key, server.ca),
        allowance=Allowance(calls_per_second=1.0, burst=10.0, streams=2),
    )
    async with serving(tmp_path, terms) as s:
        await s.put_fabric()
        greedy = dial(s.api.port, authority.role("reader/greedy"), authority.ca)
        modest = dial(s.api.port, authority.role("reader/modest"), authority.ca)
        stub = FabricServiceStub(greedy)
        errors = await _refused(lambda: stub.ListFabrics(LIST), 60)
        assert 1 <= len(errors) <= 50
        assert {(e.code().name, reason(e)) for e in errors} == {
            ("RESOURCE_EXHAUSTED", "RATE_LIMIT")
        }
        wait = detail(errors[0], error_details_pb2.RetryInfo).retry_delay.ToMilliseconds() / 1000
        assert 0 < wait <= 1
        await FabricServiceStub(modest).ListFabrics(LIST)
        await asyncio.sleep(1.1)  # nobody has to wait longer for one call
        await stub.ListFabrics(LIST)
        await _streams(FabricServiceStub(modest))
        await greedy.close()
        await modest.close()


async def _refused(call: Callable[[], Awaitable[Any]], count: int) -> list[aio.AioRpcError]:
    answers = await asyncio.gather(*(call() for _ in range(count)), return_exceptions=True)
    return [answer for answer in answers if isinstance(answer, aio.AioRpcError)]


async def _streams(stub: Any) -> None:
    """Assert that two streams may be open at a time, and a third once one has ended."""
    watch = fabric_pb2.WatchFabricRequest(name="fabrics/f1")
    first, second = stub.WatchFabric(watch), stub.WatchFabric(watch)
    await first.read()
    await second.read()
    error = await refusal(stub.WatchFabric(watch).read())
    assert reason(error) == "STREAM_LIMIT"
    first.cancel()
    async with asyncio.timeout(PATIENCE):
        while await _limited(third := stub.WatchFabric(watch)):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.5)
    second.cancel()
    third.cancel()


async def _limited(stream: Any) -> bool:
    """Return whether a stream is refused by the limit of streams instead of answered."""
    try:
        return not await stream.read()
    except aio.AioRpcError as error:
        return reason(error) == "STREAM_LIMIT"


async def test_secrets_stay_out_of_logs(tmp_path: Path) -> None:
    """A controller at debug level that is shown good and bad tokens logs nothing secret."""
    authority = Authority(tmp_path / "pki")
    server = authority.server()
    _, token = file_with_token(tmp_path)
    (tmp_path / "token").write_text(token)
    (tmp_path / "bad").write_text(token[:-4] + "AAAA")
    options = ("--tls-cert", str(server.cert), "--tls-key", str(server.key))
    more = ("--tokens", str(tmp_path / "tokens"), "--log-level", "debug", "--log-format", "json")
    async with controlling(tmp_path, *options, *more) as controller:
        for file, code in (("token", 0), ("bad", 2)):
            words = ("--server", f"localhost:{controller.port}", "--tls-ca", authority.ca)
            done = await asyncio.to_thread(
                heddle, *words, "--token-file", tmp_path / file, "fabric", "list"
            )
            assert done.code == code, done.err
            assert token[:-4] not in done.out + done.err
        await controller.ends()
    log = (tmp_path / "controller.log").read_text()
    assert '"rpc"' in log  # it was at debug level
    secret = (tmp_path / "heddle.sqlite3.peer-keys").read_bytes()
    hidden = [
        token.rpartition(".")[2][:-4],
        (tmp_path / "tokens").read_text().split()[3],
        secret.decode(errors="replace").strip(),
        secret.hex(),
        *server.key.read_text().splitlines()[1:-1],
    ]
    assert not [text for text in hidden if text and text in log]


def test_token_command(tmp_path: Path) -> None:
    """A new token is admitted by its file; the list has no hashes; faulty options are refused."""
    file = tmp_path / "tokens"
    made = heddle("token", "new", "slurm", "--role", "scheduler", "--file", file)
    assert made.code == 0, made.err
    token = made.out.strip()
    assert re.fullmatch(r"heddle\.slurm\.[\w-]{43}", token)
    assert file.stat().st_mode & 0o777 == 0o600
    agent = heddle(
        "token", "new", "l0", "--role", "agent", "--fabric", "f1", "--switch", "l0", "--file", file
    )
    assert agent.code == 0, agent.err
    tokens = TokenFile(file)
    assert str(tokens.caller(token)) == "scheduler token slurm"
    assert tokens.caller(agent.out.strip()) == Caller(Role.AGENT, "token l0", "f1", "l0")
    listed = heddle("token", "list", "--file", file, "--json")
    names = [json.loads(line)["name"] for line in listed.out.splitlines()]
    assert names == ["slurm", "l0"]
    assert not re.search(r"[0-9a-f]{64}", listed.out)
    for words in (
        ("slurm", "--role", "reader"),
        ("x y", "--role", "reader"),
        ("a", "--role", "agent"),
        ("a", "--role", "reader", "--fabric", "f1"),
        ("a", "--role", "reader", "--days", "0"),
    ):
        refused = heddle("token", "new", *words, "--file", file)
        assert refused.code == 2, words
        assert refused.err.startswith("error: ")
    assert len(file.read_text().splitlines()) == 2
