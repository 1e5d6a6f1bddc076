"""Traces from a call to the last FIB acknowledgement, as a real collector receives them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as pb
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from heddle.traces import KEPT, Happened, Root, Spans
from heddle.v1 import placement_pb2
from heddle.v1.placement_pb2_grpc import PlacementServiceStub
from heddle_agent import app
from heddle_agent.settings import load_settings
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_emulator.topology import clos
from tests.support.operating import controlling
from tests.support.ports import free_port
from tests.support.waiting import until

FABRIC = clos(leaves=2, spines=2, nics_per_leaf=1, name="pod")
JOB = """\
- job: red
  hosts: [l0-h0, l1-h0]
  gpus_per_host: 1
  parallelism: {dp: 2}
"""


class Collector(TraceServiceServicer):
    """A collector that keeps all spans."""

    def __init__(self) -> None:
        self.spans: list[tuple[str, Span]] = []
        """Spans, each with the name of the service that sent it."""

    def Export(  # noqa: N802 - OTLP's name
        self, request: pb.ExportTraceServiceRequest, context: grpc.ServicerContext
    ) -> pb.ExportTraceServiceResponse:
        """Keep the spans of a request."""
        del context
        for one in request.resource_spans:
            (service,) = (
                each.value.string_value
                for each in one.resource.attributes
                if each.key == "service.name"
            )
            self.spans += [(service, span) for each in one.scope_spans for span in each.spans]
        return pb.ExportTraceServiceResponse()

    def named(self, name: str, trace: str = "") -> list[Span]:
        """Return the spans of a name, of one trace or of all."""
        found = [span for _, span in self.spans if span.name == name]
        return [span for span in found if not trace or span.trace_id.hex() == trace]

    def has_all_of(self, trace: str) -> bool:
        """Return whether spans of a request, of its plan and of two pushes of entries are here."""
        names = ("plan", "program switches", "in force")
        if not all(self.named(name, trace) for name in names):
            return False
        (plan,) = {link.trace_id.hex() for link in self.named("in force", trace)[0].links}
        entered = [one for one in self.named("push", plan) if told(one)["heddle.operations"]]
        return len(entered) >= 2 and all(self.named(name, plan) for name in names[:2])


@contextmanager
def collecting() -> Any:
    """A running collector, and its address."""
    collector, server = Collector(), grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield collector, f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@asynccontextmanager
async def agents(controller: str, endpoint: str) -> AsyncIterator[None]:
    """Run an agent of each programmed switch, built as its program builds it."""
    async with AsyncExitStack() as stack:
        structure = FABRIC.structure
        for switch, row in structure.index.items():
            if row not in structure.programmed:
                continue
            first, out = structure.out
            ends = structure.head[out[first[row] : first[row + 1]]].tolist()
            settings = load_settings(
                fabric="fabrics/pod",
                switch=switch,
                controller=(controller,),
                link=tuple(structure.nodes.ids[end] for end in ends),
                traces_endpoint=endpoint,
            )
            pushed = stack.enter_context(app.push_traces(settings))
            agent = app.build(settings, channels := app.open_channels(settings), pushed)
            stack.push_async_callback(channels.close)
            running = asyncio.create_task(agent.run())
            stack.push_async_callback(asyncio.wait, [running])
            stack.callback(agent.request_stop)
        yield


def told(span: Span) -> dict[str, Any]:
    """Return the attributes of a span."""
    return {
        one.key: getattr(one.value, one.value.WhichOneof("value") or "") for one in span.attributes
    }


async def test_one_id_leads_from_the_call_to_the_last_acknowledgement(tmp_path: Path) -> None:
    """The call, its plan and its routes in force are one trace; pushes are in the plan's trace.

    The id of the trace follows from the request id, which the audit trail and the logs have as
    well.
    """
    save_fabric_file(FABRIC, tmp_path / "fabric.json")
    (tmp_path / "jobs.yaml").write_text(JOB)
    with collecting() as (collector, endpoint):
        options = ("--traces-endpoint", endpoint, "--log-level", "debug")
        async with controlling(tmp_path, *options) as c, agents(c.address, endpoint):
            for words in (
                ("fabric", "import", tmp_path / "fabric.json", "--fabric", "pod"),
                ("job", "submit", tmp_path / "jobs.yaml"),
                ("job", "watch", "red", "--until", "programmed"),
            ):
                done = await c.does(*words)
                assert done.code == 0, done.err
            trail = (await c.does("audit", "list", "--json")).out
            records = [json.loads(line) for line in trail.splitlines()]
            request = next(one["request"] for one in records if "jobs/red" in one["name"])
            trace = f"{Root.of_request(request).context.trace_id:032x}"
            await until(lambda: collector.has_all_of(trace), "all spans of the request")
        (call,) = collector.named("heddle.v1.PlacementService/SubmitJob")
        attributes = told(call)
        assert call.trace_id.hex() == trace
        assert attributes["heddle.request"] == request
        assert not call.parent_span_id
        for name in ("plan", "program switches", "in force"):
            (span,) = collector.named(name, trace)
            assert span.parent_span_id == call.span_id
            assert told(span)["heddle.name"] == "fabrics/pod/jobs/red"
            assert call.start_time_unix_nano <= span.end_time_unix_nano
        (force,) = collector.named("in force", trace)
        (plan_trace,) = {link.trace_id.hex() for link in force.links}
        assert collector.named("plan", plan_trace)
        pushes = collector.named("push", plan_trace)
        entered = [one for one in pushes if told(one)["heddle.operations"]]
        assert {told(one)["heddle.switch"] for one in entered} == {"l0", "l1"}
        assert {told(one)["heddle.failed_operations"] for one in pushes} == {0}
        (held,) = collector.named("program switches", plan_trace)
        assert max(one.end_time_unix_nano for one in entered) <= held.end_time_unix_nano
        assert {service for service, _ in collector.spans} == {"heddle-agent", "heddle-controller"}
        lines = [json.loads(line) for line in c.log.read_text().splitlines()]
        (line,) = [one for one in lines if str(one.get("rpc", "")).endswith("/SubmitJob")]
        assert line["request"] == attributes["heddle.call"]
        assert request in {line["request"], line.get("audit")}


async def test_a_collector_that_is_away_holds_nobody_up(tmp_path: Path) -> None:
    """Without a collector calls are answered, shutdown is quick, and the queue is bounded."""
    endpoint = f"http://127.0.0.1:{free_port()}"
    async with controlling(tmp_path, "--traces-endpoint", endpoint) as c:
        stub = PlacementServiceStub(c.channel())
        for _ in range(20):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await stub.GetJob(placement_pb2.GetJobRequest(name="fabrics/f/jobs/j"))
            assert raised.value.code() == grpc.StatusCode.NOT_FOUND
        assert await c.ends() == 0
    spans = Spans(endpoint, "test", "one")
    for number in range(3 * KEPT):
        spans.root(Root.of_request(str(number)), Happened("x", 0.0, 1.0, {}))
    assert len(spans._queue._batch_processor._queue) <= KEPT
    spans.close()


def test_without_the_setting_nothing_for_traces_is_imported(tmp_path: Path) -> None:
    """Without the setting, OpenTelemetry is not needed; with it, a missing extra is named.

    This holds for controller and agent. Other libraries may import OpenTelemetry where it is
    installed, but none needs it.
    """
    script = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import {0}\nsys.exit('heddle.traces' in sys.modules)"
    )
    for module in ("heddle_controller.app", "heddle_agent.app"):
        run = subprocess.run([sys.executable, "-c", script.format(module)], check=False)
        assert run.returncode == 0, module
    missing = "import sys; sys.modules['opentelemetry'] = None; from {0} import {1}; {1}()"
    store = f"sqlite:///{tmp_path / 's'}"
    for module, main, words, extra in (
        ("heddle_controller.app", "main", ("serve", "--store", store, "--listen", "127.0.0.1:0"),
         "heddle-controller[traces]"),
        ("heddle_agent.cli", "main", ("run", "--fabric=fabrics/f", "--switch=l", "--link=s",
         "--controller=127.0.0.1:1"), "heddle-agent[traces]"),
    ):  # fmt: skip
        given = (*words, "--traces-endpoint", "http://127.0.0.1:1", "--metrics-port", "0")
        done = subprocess.run(
            [sys.executable, "-c", missing.format(module, main), *given],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 2, done.stderr
        assert f"install {extra}" in done.stderr
