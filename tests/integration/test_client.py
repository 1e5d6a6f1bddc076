"""``heddle.client`` with real controllers that are killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509

import heddle.client.calls
from heddle.client import (
    PROGRAMMED,
    AlreadyExists,
    AsyncClient,
    Client,
    Conflict,
    Credentials,
    InvalidRequest,
    NotAllowed,
    NotFound,
    PreconditionFailed,
    TimedOut,
    Unreachable,
)
from heddle.v1 import fabric_pb2, placement_pb2
from heddle.v1.placement_pb2 import Job, JobEvent, JobSpec
from heddle_controller.serve.door import door
from heddle_controller.serve.interceptors.auth import Admission
from heddle_controller.serve.security.caller import Role
from heddle_controller.serve.security.certificates import Tls
from heddle_emulator.fleet import Fleet
from tests.integration.certifying import Authority
from tests.integration.test_cli_controller import FABRIC
from tests.integration.test_security_doors import file_with_token
from tests.support.operating import controlling, unlogged
from tests.support.ports import free_port
from tests.support.replicating import replicated
from tests.support.serving import LOOPBACK, serving, wire
from tests.support.waiting import LIMITS, PATIENCE

README = Path(__file__).parents[2] / "proto" / "README.md"
NAME = "fabrics/pod"
EXAMPLE = re.compile(r"```python\n(.*?)```", re.DOTALL)


def spec(*hosts: str) -> JobSpec:
    """Return a job over these hosts."""
    reduce = placement_pb2.Collective(
        operation=placement_pb2.COLLECTIVE_OPERATION_ALL_REDUCE,
        group=placement_pb2.GROUP_KIND_DP,
        bytes=1 << 30,
    )
    return JobSpec(hosts=hosts, gpus_per_host=8, collectives=[reduce])


def put(address: str) -> None:
    """Put the fabric."""
    with Client(address) as client:
        client.fabrics.PutFabric(fabric_pb2.PutFabricRequest(fabric=wire(FABRIC, "pod")))


async def test_the_examples_of_the_page_run(tmp_path: Path, capsys: Any) -> None:
    """The examples in the client's README run as written, with a controller and its agents.

    Only the address is replaced. The first example's job is programmed and deleted. The training
    loop runs although no turns are given.
    """
    example, loop = EXAMPLE.findall(await asyncio.to_thread(README.read_text))
    assert len(example.strip().splitlines()) <= 12
    batches: list[int] = []
    async with controlling(tmp_path) as controller:
        await asyncio.to_thread(put, controller.address)
        async with Fleet(FABRIC, [controller.address], name=NAME) as fleet:
            await fleet.connected(PATIENCE)
            text = example.replace("127.0.0.1:7400", controller.address)
            await asyncio.to_thread(exec, text, {})
            text = loop.replace("127.0.0.1:7400", controller.address)
            await asyncio.to_thread(exec, text, {"data": range(3), "train": batches.append})
            assert batches == [0, 1, 2]
            assert capsys.readouterr().out == ""
            async with AsyncClient(controller.address) as client:
                assert await client.list_jobs() == []


async def test_both_faces_say_the_same(tmp_path: Path) -> None:
    """The blocking and the async client give the same answers and errors, with the same details."""
    async with serving(tmp_path) as s:
        await s.put_fabric(FABRIC, "pod")
        address = f"127.0.0.1:{s.api.port}"

        def blocking() -> list[Any]:
            with Client(address) as client:
                job = client.submit_job("j", spec("l0-h0", "l1-h0"))
                assert client.get_job("j") == job == client.list_jobs()[0]
                with pytest.raises(AlreadyExists):
                    client.submit_job("j", spec("l2-h0"))
                assert client.submit_job("j", spec("l2-h0"), replace=True).etag != job.etag
                with pytest.raises(NotFound) as missing:
                    client.delete_job("k")
                with pytest.raises(InvalidRequest) as wrong:
                    client.submit_job("w", JobSpec(hosts=["nowhere"], gpus_per_host=8))
                return [missing.value, wrong.value]

        told = await asyncio.to_thread(blocking)
        async with AsyncClient(address) as client:
            with pytest.raises(NotFound) as missing:
                await client.delete_job("k")
            with pytest.raises(InvalidRequest) as wrong:
                await client.submit_job("w", JobSpec(hosts=["nowhere"], gpus_per_host=8))
        for one, other in zip(told, [missing.value, wrong.value], strict=True):
            assert (str(one), one.reason, one.violations) == (
                str(other),
                other.reason,
                other.violations,
            )
        assert told[1].violations
        assert "nowhere" in told[1].violations[0].description
        assert told[0].address == address
        assert told[0].request_id


class Cut:
    """Makes the client lose the answers to its first calls, after they were carried out."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
        self.left, self.ids = count, list[str]()
        real = heddle.client.wire.BlockingWire.unary
        cut = self

        async def unary(wire: Any, method: Any, request: Any, *rest: Any) -> Any:
            answer = await real(wire, method, request, *rest)
            cut.ids.append(getattr(request, "request_id", ""))
            if cut.left:
                cut.left -= 1
                raise LostAnswerError
            return answer

        monkeypatch.setattr("heddle.client.wire.BlockingWire.unary", unary)


class LostAnswerError(grpc.RpcError):
    """What gRPC raises if the connection breaks before the answer comes."""

    def code(self) -> grpc.StatusCode:
        """Return the code that gRPC gives."""
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        """Return the text that gRPC gives."""
        return "Socket closed"

    def trailing_metadata(self) -> tuple[Any, ...]:
        """Return no metadata, since none came."""
        return ()


async def test_a_call_whose_answer_is_lost_is_not_done_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All attempts of a call have the same request id, so later ones get the first one's answer."""
    async with serving(tmp_path) as s:
        await s.put_fabric(FABRIC, "pod")
        with Client(f"127.0.0.1:{s.api.port}", fabric="pod") as client:
            cut = Cut(monkeypatch, 2)
            job = await asyncio.to_thread(client.submit_job, "j", spec("l0-h0", "l1-h0"))
        assert job.name == "fabrics/pod/jobs/j"
        assert len(cut.ids) == 3
        assert len(set(cut.ids)) == 1
        assert cut.ids[0]


async def test_a_watch_goes_on_where_it_was(tmp_path: Path) -> None:
    """A watch survives a killed controller, and what changed meanwhile is told exactly once."""
    port = free_port()
    words = ("--listen", f"127.0.0.1:{port}")
    heard: asyncio.Queue[JobEvent] = asyncio.Queue()

    async def listen(client: AsyncClient) -> None:
        async for event in client.watch_jobs():
            await heard.put(event)

    async def hear(name: str, *, gone: bool = False) -> list[JobEvent]:
        found: list[JobEvent] = []
        async with asyncio.timeout(PATIENCE):
            while True:
                found.append(await heard.get())
                last = found[-1].deleted if gone else found[-1].job.name
                if last.endswith(f"/{name}"):
                    return found

    async with AsyncClient(f"127.0.0.1:{port}", fabric="pod", timeout=PATIENCE) as client:
        async with controlling(tmp_path, *words) as controller:
            await asyncio.to_thread(put, controller.address)
            await client.submit_job("a", spec("l0-h0"))
            await client.submit_job("b", spec("l1-h0"))
            listening = asyncio.create_task(listen(client))
            async with asyncio.timeout(PATIENCE):
                while not (await heard.get()).HasField("synced"):
                    pass
            controller.process.kill()
            await controller.process.wait()
        # The call waits for the controller; the watch may reconnect earlier or later.
        deleting = asyncio.create_task(client.delete_job("a"))
        async with controlling(tmp_path, *words):
            await deleting
            await client.submit_job("c", spec("l2-h0"))
            events = await hear("a", gone=True)
            if not any(event.job.name.endswith("/c") for event in events):
                events += await hear("c")
            assert sum(event.deleted.endswith("/a") for event in events) == 1
            assert not any(event.HasField("synced") for event in events)
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


@contextlib.contextmanager
def mute() -> Iterator[str]:
    """Give the address of a server that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"127.0.0.1:{listening.getsockname()[1]}"


async def test_the_next_address_is_asked(tmp_path: Path) -> None:
    """A client skips closed and silent addresses, and stays with the one that answered."""
    async with serving(tmp_path) as s:
        await s.put_fabric(FABRIC, "pod")
        real = f"127.0.0.1:{s.api.port}"
        with mute() as silent, Client(f"127.0.0.1:{free_port()},{silent},{real}") as client:
            assert await asyncio.to_thread(client.list_jobs) == []
            assert client.operations.calls.addresses[client.operations.calls.current] == real


async def test_calls_at_the_same_time_each_try_every_address(tmp_path: Path) -> None:
    """Without patience every one of many calls reaches the only controller that runs."""
    async with serving(tmp_path) as s:
        await s.put_fabric(FABRIC, "pod")
        addresses = [f"127.0.0.1:{free_port()}", f"127.0.0.1:{s.api.port}"]
        async with AsyncClient(addresses, fabric="pod", patience=0.0) as client:
            assert await asyncio.gather(*(client.list_jobs() for _ in range(9))) == [[]] * 9


async def test_a_limit_may_be_any_number(tmp_path: Path) -> None:
    """A limit of years, or none at all, is no error."""
    async with serving(tmp_path) as s:
        await s.put_fabric(FABRIC, "pod")
        for limit in (math.inf, 1e300, 1e10):
            async with AsyncClient(f"127.0.0.1:{s.api.port}", timeout=limit) as client:
                assert await client.list_jobs() == []


async def test_a_request_id_of_full_length_serves_a_replacement(tmp_path: Path) -> None:
    """A job that exists is replaced under a request id of 64 bytes, and only once.

    A repetition neither brings the job back after its deletion nor undoes later changes.
    """
    async with serving(tmp_path) as s:
        await s.put_fabric(FABRIC, "pod")
        async with AsyncClient(f"127.0.0.1:{s.api.port}") as client:

            async def once() -> Job:
                return await client.submit_job(
                    "j", spec("l1-h0"), replace=True, request_id="r" * 64
                )

            await client.submit_job("j", spec("l0-h0"))
            first = await once()
            assert [*first.spec.hosts] == ["l1-h0"]
            other = await client.submit_job("j", spec("l2-h0"), replace=True)
            assert (await once()).etag == first.etag
            assert await client.list_jobs() == [other]
            await client.delete_job("j")
            assert (await once()).etag == first.etag
            assert await client.list_jobs() == []


async def test_a_job_that_is_deleted_while_it_is_replaced_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever replaces a job never hears that there is none."""
    async with serving(tmp_path) as s:
        await s.put_fabric(FABRIC, "pod")
        update, updates = s.store.update_job, []

        async def late(*given: Any, **more: Any) -> Any:
            updates.append(given)
            await s.store.delete_job("pod", "j")
            return await update(*given, **more)

        monkeypatch.setattr(s.store, "update_job", late)
        async with AsyncClient(f"127.0.0.1:{s.api.port}") as client:
            await client.submit_job("j", spec("l0-h0"))
            replaced = await client.submit_job("j", spec("l1-h0"), replace=True)
            assert len(updates) == 1
            assert [*replaced.spec.hosts] == ["l1-h0"]
            assert await client.list_jobs() == [replaced]


async def test_a_fabric_is_deleted(tmp_path: Path) -> None:
    """Both clients delete a fabric by its name; one with jobs is refused, and these are named."""
    async with serving(tmp_path) as s:
        for name in ("pod", "wrong", "worse"):
            await s.put_fabric(FABRIC, name)
        address = f"127.0.0.1:{s.api.port}"
        with Client(address) as client:
            await asyncio.to_thread(client.delete_fabric, "wrong")
        async with AsyncClient(address) as other:
            with pytest.raises(Conflict):
                await other.delete_fabric("worse", etag="x")
            await other.delete_fabric("fabrics/worse")
            assert await other.fabric() == NAME
            await other.submit_job("j", spec("l0-h0"))
            with pytest.raises(PreconditionFailed, match="jobs: it still has 'j'; delete them"):
                await other.delete_fabric("pod")
            with pytest.raises(NotFound, match="fabrics/wrong does not exist"):
                await other.delete_fabric("wrong")


def test_patience_and_limits() -> None:
    """Without patience each address is tried once; with a time limit the call ends in time."""
    here = f"127.0.0.1:{free_port()}"
    with Client(here, patience=0.0) as client, pytest.raises(Unreachable, match="cannot reach"):
        client.list_jobs()
    with Client(here, timeout=0.5) as client, pytest.raises((Unreachable, TimedOut)):
        client.list_jobs()
    with mute() as silent, Client(silent, timeout=0.3, fabric="f1") as client:
        with pytest.raises(TimedOut, match=r"in time$"):
            client.list_jobs()
        with pytest.raises(TimedOut, match=r"in time, but it may have made the change$"):
            client.delete_job("j")
    with mute() as silent, Client(silent, timeout=0.3) as client:
        # The call for the fabric's name ends in time; a watch without a limit does not just end.
        for told in (
            lambda: next(client.watch_jobs()),
            lambda: client.wait_until(PROGRAMMED, ["j"]),
            lambda: client.wait_until_gone(1),
        ):
            with pytest.raises(TimedOut, match=r"in time$"):
                told()
    with mute() as silent, Client(silent, timeout=math.inf) as client:
        assert [*client.watch_jobs(timeout=0.3)] == []
        with pytest.raises(TimedOut, match="j has not been heard of yet"):
            client.wait_until(PROGRAMMED, ["j"], timeout=0.3)
    with pytest.raises(ValueError, match="host:port"):
        Client("nonsense")


async def refusal(path: Path, server: Tls | None, given: Credentials) -> str:
    """Return the text of the error if TLS of a server and of a client do not match."""
    with unlogged():
        async with (
            serving(path, replace(LOOPBACK, tls=server)) as s,
            AsyncClient(f"localhost:{s.api.port}", credentials=given, patience=0.0) as client,
        ):
            with pytest.raises(Unreachable, match="cannot reach the controller at") as caught:
                await client.list_jobs()
    assert str(caught.value).endswith(f"): {caught.value.cure}")
    return caught.value.cure


async def test_tls_that_does_not_match_is_told_with_the_cure(tmp_path: Path) -> None:
    """The error says what to change, with the names of ``Credentials``."""
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    ann, bob = ours.role("operator/ann"), theirs.role("operator/bob")
    server, name = ours.server(), x509.DNSName("elsewhere")
    tls = Tls(server.cert, server.key, server.ca)
    known = Credentials(ann.ca, ann.cert, ann.key)
    old, moved = ours.issue("old", x509.DNSName("localhost"), days=-1), ours.issue("moved", name)
    for kind, given, cure in (
        (tls, Credentials(), "if it wants TLS, give ca, cert and key"),
        (tls, Credentials(ann.ca), "it may want a certificate: give cert and key"),
        (tls, Credentials(ann.ca, bob.cert, bob.key), "it may not take the certificate"),
        (tls, Credentials(bob.ca, ann.cert, ann.key), "authority of its certificate as ca"),
        (Tls(moved.cert, moved.key), known, "an address with a name that it has"),
        (Tls(old.cert, old.key), known, "renew the controller's certificate"),
        (None, known, "it speaks no TLS there: leave ca and cert out"),
    ):
        assert cure in await refusal(tmp_path, kind, given)


async def test_a_renewed_token_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client whose old token is no longer valid reads the new one, and its watch goes on.

    A file without a token is no renewal: the error is that of the old token. However often the
    token is renewed, the client has few connections.
    """
    monkeypatch.setattr(door, "CONNECTIONS_OF_ONE", 8)
    authority = Authority(tmp_path / "pki")
    server = authority.server()
    tokens, token = file_with_token(tmp_path, Role.OPERATOR)
    own = tmp_path / "token"
    own.write_text(token)
    terms = replace(
        LOOPBACK,
        tls=Tls(server.cert, server.key, server.ca),
        admission=Admission(tokens=tokens),
        token_address=("127.0.0.1", 0),
    )
    async with serving(tmp_path, terms) as s:
        address, given = f"localhost:{s.api.token_port}", Credentials(authority.ca, token=own)
        async with AsyncClient(address, fabric="pod", credentials=given, patience=0.0) as client:
            await client.fabrics.PutFabric(fabric_pb2.PutFabricRequest(fabric=wire(FABRIC, "pod")))
            await client.submit_job("one", spec("l0-h0", "l1-h0"))
            async with contextlib.aclosing(client.watch_jobs()) as events:
                assert (await anext(events)).job.name.endswith("/one")
                _, token = file_with_token(tmp_path, Role.OPERATOR)
                own.write_text("")
                with pytest.raises(NotAllowed):
                    await client.list_jobs()
                own.write_text(token)
                listed = await asyncio.gather(*(client.list_jobs() for _ in range(8)))
                assert [len(jobs) for jobs in listed] == [1] * 8
                await client.submit_job("two", spec("l2-h0", "l3-h0"))
                async for event in events:
                    if event.job.name.endswith("/two"):
                        break
                for _ in range(12):
                    _, token = file_with_token(tmp_path, Role.OPERATOR)
                    own.write_text(token)
                    assert len(await client.list_jobs()) == 2


async def test_a_renewed_certificate_is_used(tmp_path: Path) -> None:
    """A client whose old certificate is refused connects with the one that is in its files now."""
    ours, theirs = Authority(tmp_path / "ours"), Authority(tmp_path / "theirs")
    old, new, server = ours.role("operator/ann"), theirs.role("operator/ann"), ours.server()
    given = Credentials(ours.ca, tmp_path / "cert", tmp_path / "key")
    port = free_port()
    async with AsyncClient(f"localhost:{port}", credentials=given, patience=0.0) as client:
        for pair, authority in ((old, ours), (new, theirs)):
            (tmp_path / "cert").write_bytes(pair.cert.read_bytes())
            (tmp_path / "key").write_bytes(pair.key.read_bytes())
            terms = replace(LOOPBACK, port=port, tls=Tls(server.cert, server.key, authority.ca))
            with unlogged():
                async with serving(tmp_path, terms):
                    assert await client.list_fabrics() == []


async def test_a_hang_up_after_an_answer_is_no_fault_of_tls(tmp_path: Path) -> None:
    """Once a controller has answered, its hang-up has no cure; a new client is told one."""

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    port = free_port()
    address = f"127.0.0.1:{port}"
    async with contextlib.AsyncExitStack() as stack:
        async with serving(tmp_path, replace(LOOPBACK, port=port)):
            old = await stack.enter_async_context(AsyncClient(address, patience=0.0))
            new = await stack.enter_async_context(AsyncClient(address, patience=0.0))
            assert await old.list_fabrics() == []
        await stack.enter_async_context(await asyncio.start_server(hang_up, "127.0.0.1", port))
        for client, cured in ((old, False), (new, True)):
            with pytest.raises(Unreachable) as caught:
                await client.list_fabrics()
            assert bool(caught.value.cure) is cured, caught.value


async def test_replicas_one_of_which_is_killed(tmp_path: Path) -> None:
    """Jobs are submitted and programmed although the leader that the client speaks to dies."""
    async with replicated(tmp_path) as house:
        leader = house.leader()
        addresses = [leader.address] + [
            each.address for each in house.replicas if each is not leader
        ]
        async with AsyncClient(addresses, fabric="replicated", timeout=PATIENCE) as client:
            await client.submit_job("one", spec("z0-l0-h0", "z1-l0-h0"))
            waiting = asyncio.create_task(client.wait_until(PROGRAMMED, ["one"], PATIENCE))
            await leader.kill()
            two = await client.submit_job("two", spec("z0-l1-h0", "z1-l1-h0"))
            (one,) = await waiting
            assert one.state == PROGRAMMED
            (found,) = await client.wait_until(PROGRAMMED, [two], PATIENCE)
            assert (found.etag, found.state) == (two.etag, PROGRAMMED)
            assert client.calls.addresses[client.calls.current] != leader.address


async def in_vain(client: Client, job: Job) -> str:
    """Wait for a job that is never programmed; return the text of the error."""
    for seconds in LIMITS:
        with pytest.raises(TimedOut) as caught:
            await asyncio.to_thread(client.wait_until, PROGRAMMED, [job], seconds)
        if "j has not been heard of" not in str(caught.value):
            return str(caught.value)
    raise AssertionError(f"nothing was heard of the job in {LIMITS[-1]:g} s")


async def test_waiting_for_what_does_not_come(tmp_path: Path) -> None:
    """Waiting ends with an error that names the job: not programmed, changed, or gone."""
    async with controlling(tmp_path) as controller:
        await asyncio.to_thread(put, controller.address)
        with Client(controller.address) as client:
            job = await asyncio.to_thread(client.submit_job, "j", spec("l0-h0", "l1-h0"))
            assert "jobs are not there yet: j is" in await in_vain(client, job)
            with pytest.raises(NotFound, match="nobody"):
                await asyncio.to_thread(client.wait_until, PROGRAMMED, ["nobody"], PATIENCE)
            await asyncio.to_thread(client.resize_job, "j", add=["l2-h0"])
            assert "j has another specification now" in await in_vain(client, job)
            await asyncio.to_thread(client.delete_job, "j")
            with pytest.raises(NotFound, match="jobs/j does not exist"):
                await asyncio.to_thread(client.wait_until, PROGRAMMED, [job], PATIENCE)
