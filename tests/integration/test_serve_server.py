from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc import aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from heddle.client import AsyncClient, TimedOut
from heddle.v1 import doctor_pb2, fabric_pb2, placement_pb2
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle_controller.cli.failure import failure_of
from heddle_controller.model.errors import InputError
from heddle_controller.serve.interceptors.auth import Admission, is_loopback, peer_host
from heddle_controller.serve.security.caller import Caller, Role
from heddle_controller.serve.security.certificates import Mapper, Rule, Tls
from heddle_controller.serve.server import ServerTerms
from heddle_controller.state.errors import Unavailable
from tests.support.serving import LOOPBACK, OPTIONS, Serving, reason, refusal, serving
from tests.support.store_samples import demands
from tests.support.waiting import PATIENCE, until

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICES = [
    f"heddle.v1.{name}Service" for name in ("Fabric", "Placement", "Demand", "Plan", "Agent")
]


def _check(s: Serving, service: str) -> Awaitable[health_pb2.HealthCheckResponse]:
    """Ask once for the health of a service."""
    method = s.channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    return method(health_pb2.HealthCheckRequest(service=service))


def _watch(s: Serving) -> Any:
    """Watch the health of the server."""
    method = s.channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        health_pb2.HealthCheckRequest.SerializeToString,
        health_pb2.HealthCheckResponse.FromString,
    )
    return method(health_pb2.HealthCheckRequest())


async def test_health_is_told_for_the_server_and_each_service(tmp_path: Path) -> None:
    """The server and all services have one health; a service that does not exist is NOT_FOUND."""
    async with serving(tmp_path) as s:
        for name in ("", *SERVICES):
            answer = await _check(s, name)
            assert answer.status == SERVING
        s.api.set_serving(serving=False)
        answer = await _check(s, SERVICES[0])
        assert answer.status == NOT_SERVING
        error = await refusal(_check(s, "x"))
        assert error.code().name == "NOT_FOUND"


async def test_health_is_watched_until_the_end(tmp_path: Path) -> None:
    """Watchers get each change, even after another one has left; at shutdown each is told why.

    The last status is NOT_SERVING, and then the stream ends with SHUTTING_DOWN.
    """
    async with serving(tmp_path) as s:
        gone, *watches = [_watch(s) for _ in range(3)]
        for watch in (gone, *watches):
            assert (await watch.read()).status == SERVING
        gone.cancel()
        for serves, status in ((False, NOT_SERVING), (True, SERVING)):
            s.api.set_serving(serving=serves)
            assert [(await watch.read()).status for watch in watches] == [status] * 2
        # A read that begins after the end of its stream is told of the end alone.
        reading = [asyncio.create_task(watch.read()) for watch in watches]
        stopping = asyncio.create_task(s.api.stop(2.0))
        assert [last.status for last in await asyncio.gather(*reading)] == [NOT_SERVING] * 2
        for watch in watches:
            assert reason(await refusal(watch.read())) == "SHUTTING_DOWN"
        await stopping


async def test_reflection_lists_every_service(tmp_path: Path) -> None:
    """Reflection lists every service, so that grpcurl works without proto files."""
    async with serving(tmp_path) as s:
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        method = s.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            reflection_pb2.ServerReflectionRequest.SerializeToString,
            reflection_pb2.ServerReflectionResponse.FromString,
        )
        answer: Any = await method(iter([request])).read()
        names = {service.name for service in answer.list_services_response.service}
        assert names >= {*SERVICES, "grpc.health.v1.Health"}


async def test_a_call_under_way_is_finished_at_shutdown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call under way at shutdown is finished within the grace; meanwhile new calls are refused.

    They are UNAVAILABLE, on a new connection and on one that was there before.
    """
    async with serving(tmp_path) as s:
        begun, may_end, read = asyncio.Event(), asyncio.Event(), s.store.list_fabrics

        async def slowly(**given: Any) -> Any:
            begun.set()
            await may_end.wait()
            return await read(**given)

        monkeypatch.setattr(s.store, "list_fabrics", slowly)
        running = asyncio.ensure_future(s.fabrics.ListFabrics(fabric_pb2.ListFabricsRequest()))
        await begun.wait()
        stopping = asyncio.create_task(s.api.stop(PATIENCE))
        unknown = fabric_pb2.GetFabricRequest(name="fabrics/none")
        code = ""
        async with asyncio.timeout(PATIENCE):
            while code != "UNAVAILABLE":
                await asyncio.sleep(0.01)
                code = (await refusal(s.fabrics.GetFabric(unknown))).code().name
        async with aio.insecure_channel(f"127.0.0.1:{s.api.port}", OPTIONS) as channel:
            for late in (s.fabrics, FabricServiceStub(channel)):
                assert (await refusal(late.GetFabric(unknown))).code().name == "UNAVAILABLE"
        assert not running.done()
        assert not stopping.done()
        may_end.set()
        assert (await running) == fabric_pb2.ListFabricsResponse()
        await stopping


async def test_a_fault_of_ours_is_told_by_its_incident_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client gets INTERNAL and an incident id; only the log has the traceback, by that id."""
    async with serving(tmp_path) as s:
        monkeypatch.setattr(s.store, "list_fabrics", {}.__getitem__)  # a bug of the server
        error = await refusal(s.fabrics.ListFabrics(fabric_pb2.ListFabricsRequest()))
        assert error.code().name == "INTERNAL"
        text = str(error.details())
        incident = text.rpartition(" ")[2]
        assert "Traceback" not in text
        assert "TypeError" not in text
        log = capsys.readouterr().out
        assert incident in log
        assert "TypeError" in log


async def test_the_doctor_finds_a_store_that_takes_no_writes(tmp_path: Path) -> None:
    """After a write that found the disk full, the doctor names the store and the reason.

    As no controller plans here, it also says that there is no plan.
    """
    async with serving(tmp_path) as s:
        await s.put_fabric()
        asked = doctor_pb2.ExamineInstallationRequest(fabric="fabrics/f1")
        before = await s.doctor.ExamineInstallation(asked)
        assert not [one for one in before.findings if one.about == "store"]
        (unplanned,) = [one.text for one in before.findings if one.about == "plan"]
        assert "have no plan yet" in unplanned
        database: Any = s.store.applier
        connection = database._database._connection
        pages = connection.execute("PRAGMA page_count").fetchone()[0]
        connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(Unavailable):
            await s.store.put_demands("f1", "big", demands(*[("n0.0", "n1.0")] * 10_000))
        after = await s.doctor.ExamineInstallation(asked)
        (told,) = [one.text for one in after.findings if one.about == "store"]
        assert "disk is full" in told


async def test_a_call_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server sets a deadline if the client sets none, and the error contains the cure.

    A client tells the server's error unchanged, and the command does not advise a longer --timeout.
    """
    async with serving(tmp_path, replace(LOOPBACK, unary_limit=0.05)) as s:
        monkeypatch.setattr(s.store, "list_fabrics", lambda **_: asyncio.Event().wait())
        error = await refusal(s.fabrics.ListFabrics(fabric_pb2.ListFabricsRequest()))
        assert (error.code().name, reason(error)) == ("DEADLINE_EXCEEDED", "SERVER_DEADLINE")
        assert "request_id" in str(error.details())
        monkeypatch.setattr(s.store, "delete_job", lambda *_, **__: asyncio.Event().wait())
        async with AsyncClient(f"127.0.0.1:{s.api.port}", fabric="f1") as client:
            with pytest.raises(TimedOut, match=r"it is made once$") as told:
                await client.delete_job("j")
        assert told.value.reason == "SERVER_DEADLINE"
        assert "--timeout" not in failure_of(told.value, "").message


async def test_connections_are_closed_when_they_are_old(tmp_path: Path) -> None:
    """A stream ends after the connection's age and grace; later calls on its channel succeed."""
    terms = replace(LOOPBACK, connection_age=1.0, connection_age_grace=1.0)
    async with serving(tmp_path, terms) as s:
        await s.put_fabric()
        watch = s.fabrics.WatchFabric(fabric_pb2.WatchFabricRequest(name="fabrics/f1"))

        async def read_all() -> None:
            async for _ in watch:
                pass

        async with asyncio.timeout(PATIENCE):
            error = await refusal(read_all())
        assert error.code().name == "UNAVAILABLE"
        # A call on a busy machine may take longer than its connection is left open.
        code = "UNAVAILABLE"
        async with asyncio.timeout(PATIENCE):
            while code == "UNAVAILABLE":
                call = s.fabrics.ListFabrics(fabric_pb2.ListFabricsRequest(), wait_for_ready=True)
                code = (await call.code()).name
        assert code == "OK"


async def test_a_message_that_is_too_large_is_refused(tmp_path: Path) -> None:
    """A message that is too large gives RESOURCE_EXHAUSTED, and the connection stays usable."""
    async with serving(tmp_path) as s:
        huge = fabric_pb2.PutFabricRequest(
            fabric=fabric_pb2.Fabric(name="fabrics/f1", title="x" * (64 << 20))
        )
        error = await refusal(s.fabrics.PutFabric(huge))
        assert error.code().name == "RESOURCE_EXHAUSTED"
        assert not (await s.fabrics.ListFabrics(fabric_pb2.ListFabricsRequest())).fabrics


async def test_a_request_id_is_taken_from_the_client_or_made(tmp_path: Path) -> None:
    """A request id comes back in the trailers; one that is not valid is replaced."""
    async with serving(tmp_path) as s:

        async def sent(request_id: str) -> str:
            metadata = [("x-request-id", request_id)] if request_id else []
            call = s.fabrics.ListFabrics(fabric_pb2.ListFabricsRequest(), metadata=metadata)
            await call
            return str(dict(await call.trailing_metadata())["x-request-id"])

        assert await sent("abc-1") == "abc-1"
        assert len(await sent("")) == 32
        assert len(await sent("a b(c)")) == 32
        call = s.jobs.GetJob(
            placement_pb2.GetJobRequest(name="x"), metadata=[("x-request-id", "abc-2")]
        )
        error = await refusal(call)
        assert b"abc-2" in dict(error.trailing_metadata())["grpc-status-details-bin"]


async def test_calls_are_counted_by_method_and_status(tmp_path: Path) -> None:
    """Calls are counted by method and status, refused ones too, and none is left running."""
    async with serving(tmp_path) as s:
        await s.fabrics.ListFabrics(fabric_pb2.ListFabricsRequest())
        await refusal(s.fabrics.GetFabric(fabric_pb2.GetFabricRequest(name="x")))
        watch = s.fabrics.WatchFabric(fabric_pb2.WatchFabricRequest(name="fabrics/none"))
        await refusal(watch.read())

        def total(method: str, code: str) -> float | None:
            labels = {"service": SERVICES[0], "method": method, "code": code}
            return s.telemetry.registry.get_sample_value("heddle_rpcs_total", labels)

        # The server counts a call only after the client has been told.
        await until(lambda: total("WatchFabric", "NOT_FOUND") == 1, "the count of the watch")
        assert total("ListFabrics", "OK") == 1
        assert total("GetFabric", "INVALID_ARGUMENT") == 1
        running = {"service": SERVICES[0], "method": "WatchFabric"}
        assert s.telemetry.registry.get_sample_value("heddle_rpcs_running", running) == 0


async def test_a_port_in_use_is_named_with_the_cure(tmp_path: Path) -> None:
    """The error names the port in use and the option, even if a gRPC server has the port.

    gRPC servers could otherwise share a port unnoticed.
    """
    async with serving(tmp_path / "a") as s:
        told = rf"127\.0\.0\.1:{s.api.port}.*in use.*--listen.*below 1024 needs root"
        with pytest.raises(InputError, match=told):
            async with serving(tmp_path / "b", ServerTerms("127.0.0.1", s.api.port)):
                pass
    with pytest.raises(InputError, match=r"cannot listen on no\.such\.host\.invalid"):
        async with serving(tmp_path / "c", ServerTerms("no.such.host.invalid", 0, insecure=True)):
            pass


async def test_plain_text_stays_on_this_host_unless_told_otherwise(tmp_path: Path) -> None:
    """An address that others can reach needs TLS or ``insecure``."""
    open_terms = ServerTerms("0.0.0.0", 0)
    with pytest.raises(InputError, match=r"--tls-cert.*--insecure"):
        async with serving(tmp_path / "a", open_terms):
            pass
    async with serving(tmp_path / "b", replace(open_terms, insecure=True)) as s:
        await s.fabrics.ListFabrics(fabric_pb2.ListFabricsRequest())


@pytest.mark.parametrize(
    ("peer", "host", "own"),
    [
        ("ipv4:127.0.0.1:4711", "127.0.0.1", True),
        ("ipv6:%5B::1%5D:4711", "::1", True),
        ("ipv4:10.0.0.7:1", "10.0.0.7", False),
        ("ipv6:%5Bfe80::1%25eth0%5D:1", "fe80::1%eth0", False),
    ],
)
def test_peers_are_told_apart(peer: str, host: str, own: bool) -> None:  # noqa: FBT001 - a table
    """The host is read from gRPC's form of addresses, for IPv4 and IPv6."""
    assert peer_host(peer) == host
    assert is_loopback(host) is own


@pytest.fixture
def authority() -> trustme.CA:
    """A certificate authority for the test."""
    return trustme.CA()


@pytest.fixture
def tls(tmp_path: Path, authority: trustme.CA) -> Tls:
    """PEM files of a server that asks for client certificates."""
    issued = authority.issue_cert("127.0.0.1", "localhost")
    cert, key, ca = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    issued.cert_chain_pems[0].write_to_path(str(cert))
    issued.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(ca))
    return Tls(cert, key, ca)


async def _list(port: int, credentials: grpc.ChannelCredentials) -> fabric_pb2.ListFabricsResponse:
    async with aio.secure_channel(f"localhost:{port}", credentials, OPTIONS) as channel:
        stub = FabricServiceStub(channel)
        return await stub.ListFabrics(fabric_pb2.ListFabricsRequest(), timeout=PATIENCE)


async def test_only_certificates_of_the_authority_get_in(
    tmp_path: Path, tls: Tls, authority: trustme.CA
) -> None:
    """With mutual TLS, another authority's certificate, none, and plain text are turned away."""
    root = authority.cert_pem.bytes()

    def of(ca: trustme.CA) -> grpc.ChannelCredentials:
        client = ca.issue_cert("client@example.org")
        chain = client.cert_chain_pems[0].bytes()
        return grpc.ssl_channel_credentials(root, client.private_key_pem.bytes(), chain)

    mapper = Mapper(rules=(Rule("email", "*@example.org", Caller(Role.READER, "")),))
    terms = replace(LOOPBACK, tls=tls, admission=Admission(mapper=mapper))
    async with serving(tmp_path, terms) as s:
        await _list(s.api.port, of(authority))
        for stranger in (of(trustme.CA()), grpc.ssl_channel_credentials(root)):
            error = await refusal(_list(s.api.port, stranger))
            assert error.code().name == "UNAVAILABLE"
        error = await refusal(s.fabrics.ListFabrics(fabric_pb2.ListFabricsRequest()))
        assert error.code().name == "UNAVAILABLE"


async def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path, tls: Tls) -> None:
    """Missing files, a key of another certificate, and garbage are refused before listening."""
    other = tmp_path / "other.pem"
    trustme.CA().issue_cert("x").private_key_pem.write_to_path(str(other))
    garbage = tmp_path / "garbage.pem"
    garbage.write_bytes(b"-----BEGIN CERTIFICATE-----\nnothing\n")
    for wrong in (
        replace(tls, key=tmp_path / "none.pem"),
        replace(tls, key=other),
        replace(tls, cert=garbage),
        replace(tls, client_ca=garbage),
    ):
        with pytest.raises(InputError, match="PEM files that belong together"):
            async with serving(tmp_path / "x", replace(LOOPBACK, tls=wrong)):
                pass


def test_two_sockets_cannot_share_the_port() -> None:
    """The system refuses a bound port without SO_REUSEPORT, which the server's check relies on."""
    with socket.socket() as one, socket.socket() as two:
        one.bind(("127.0.0.1", 0))
        one.listen()
        with pytest.raises(OSError, match="in use"):
            two.bind(one.getsockname())
