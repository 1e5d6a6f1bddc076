"""Floods from one client: of calls, and of bytes from callers without a role."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from heddle.v1 import fabric_pb2, placement_pb2
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle.v1.placement_pb2_grpc import PlacementServiceStub
from heddle_controller.serve.interceptors.auth import Allowance
from heddle_controller.serve.security.certificates import Tls
from tests.integration.certifying import Authority, Pair
from tests.support.depth import examples
from tests.support.operating import Controller, controlling
from tests.support.serving import LOOPBACK, OPTIONS, reason, refusal, serving, violations
from tests.support.waiting import PATIENCE

WATCHES = 1800
"""More calls than gRPC keeps waiting for the server by default."""
BIG = 48 << 20
WATCH = fabric_pb2.WatchFabricRequest(name="fabrics/f1")
LIST = fabric_pb2.ListFabricsRequest()


def dial(port: int, ca: Path, pair: Pair | None = None) -> aio.Channel:
    """Return a connection that no other channel shares."""
    plain = grpc.ssl_channel_credentials(ca.read_bytes())
    alone = [*OPTIONS, ("grpc.use_local_subchannel_pool", 1)]
    return aio.secure_channel(f"localhost:{port}", pair.credentials() if pair else plain, alone)


async def first(call: Any) -> str:
    """Return how a stream begins: with OK, or with the status and reason of an error."""
    try:
        await call.read()
    except aio.AioRpcError as error:
        return f"{error.code().name} {reason(error)}"
    return "OK"


async def test_what_is_too_much_is_refused_by_name(tmp_path: Path) -> None:
    """Of many streams at once each is served or told why not, and others' calls all succeed."""
    authority = Authority(tmp_path / "pki")
    server = authority.server()
    terms = replace(
        LOOPBACK,
        tls=Tls(server.cert, server.key, server.ca),
        allowance=Allowance(calls_per_second=0, streams=8),
    )
    async with serving(tmp_path, terms) as s:
        await s.put_fabric()
        greedy = dial(s.api.port, authority.ca, authority.role("reader/r"))
        modest = dial(s.api.port, authority.ca, authority.role("scheduler/s"))
        many, few = FabricServiceStub(greedy), FabricServiceStub(modest)
        await few.ListFabrics(LIST, timeout=PATIENCE)
        calls = [many.WatchFabric(WATCH) for _ in range(WATCHES)]
        flood = asyncio.gather(*map(first, calls))
        while not flood.done():
            await few.ListFabrics(LIST, timeout=PATIENCE)
        said = Counter(await flood)
        assert said == {"OK": 8, "RESOURCE_EXHAUSTED STREAM_LIMIT": WATCHES - 8}
        await greedy.close()
        await modest.close()


@pytest.mark.deep
async def test_calls_wait_for_a_controller_that_is_busy(tmp_path: Path) -> None:
    """Calls within their deadline are answered, however long they wait for a busy controller."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        with grpc.insecure_channel(f"localhost:{s.api.port}") as channel:
            fabrics = FabricServiceStub(channel)
            await asyncio.to_thread(fabrics.ListFabrics, LIST, timeout=PATIENCE)
            calls = [fabrics.ListFabrics.future(LIST, timeout=PATIENCE) for _ in range(20)]
            time.sleep(examples(1, 32))  # noqa: ASYNC251 - the loop is the controller's
            found = await asyncio.gather(*[asyncio.to_thread(call.result) for call in calls])
        assert all(one.fabrics for one in found)


async def test_strangers_are_refused_unread(tmp_path: Path) -> None:
    """A caller without a role is refused before the controller has taken in all that it sends."""
    authority = Authority(tmp_path / "pki")
    server = authority.server()
    (tmp_path / "tokens").touch(mode=0o600)
    options = ("--tls-cert", server.cert, "--tls-key", server.key, "--tokens", tmp_path / "tokens")
    async with controlling(tmp_path, *map(str, options)) as controller:
        request = placement_pb2.SubmitJobRequest(parent="fabrics/f1", job_id="x" * BIG)
        async with dial(controller.port, authority.ca) as channel:
            jobs = PlacementServiceStub(channel)
            before = peak_memory(controller)
            for _ in range(4):
                error = await refusal(jobs.SubmitJob(request, timeout=PATIENCE))
                assert reason(error) == "NO_ROLE"
        assert peak_memory(controller) - before < BIG


async def test_a_question_is_no_larger_than_it_has_to_be(tmp_path: Path) -> None:
    """A request that is too large is refused by its size, and later calls are served."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        request = placement_pb2.SubmitJobRequest(parent="fabrics/f1", job_id="x" * (2 << 20))
        error = await refusal(s.jobs.SubmitJob(request, timeout=PATIENCE))
        assert (error.code().name, reason(error)) == ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")
        assert (await s.fabrics.ListFabrics(LIST, timeout=PATIENCE)).fabrics


async def test_a_job_of_very_many_collectives_is_refused_for_that(tmp_path: Path) -> None:
    """A job of too many collectives is refused by their number or by the message's size."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        one = placement_pb2.Collective(bytes=1)
        request = placement_pb2.SubmitJobRequest(parent="fabrics/f1", job_id="j1")
        request.spec.CopyFrom(placement_pb2.JobSpec(hosts=["h0.0"], gpus_per_host=1))
        request.spec.collectives.extend([one] * 10_000)
        error = await refusal(s.jobs.SubmitJob(request, timeout=PATIENCE))
        assert violations(error) == {"spec.collectives": "there are 10000: give 4096 at most"}
        request.spec.collectives.extend([one] * 1_000_000)
        error = await refusal(s.jobs.SubmitJob(request, timeout=PATIENCE))
        assert reason(error) == "MESSAGE_TOO_LARGE"


def peak_memory(controller: Controller) -> int:
    """Return the most bytes of memory that a controller has held at once."""
    status = Path(f"/proc/{controller.process.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if "VmHWM" in line) << 10
