"""Malformed input to every RPC gives the right status and details, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.message import Message
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from heddle.v1 import demand_pb2, doctor_pb2, fabric_pb2, placement_pb2, plan_pb2
from tests.support.serving import Serving, refusal, serving
from tests.support.store_samples import job
from tests.support.waiting import PATIENCE

Made = tuple[str, type[Message], str, str, str]

BAD_NAMES = ("", "f1", "fabrics/", "fabrics/a b", "fabrics/f1/x", "fabrics/" + "n" * 64)
LONG = "x" * 65
FLOW = "flow: 'f' source: 'n0.0' destination: 'n1.0' gbps: 1"
SPEC = "hosts: 'h0.1' hosts: 'h1.1' gpus_per_host: 1"

NAMED: list[Made] = [
    (method, kind, f"{field}: '{{}}' {more}", "INVALID_ARGUMENT", field)
    for method, kind, field, more in [
        ("fabrics.DeleteFabric", fabric_pb2.DeleteFabricRequest, "name", ""),
        ("fabrics.GetFabric", fabric_pb2.GetFabricRequest, "name", ""),
        ("fabrics.ListLinks", fabric_pb2.ListLinksRequest, "parent", ""),
        ("fabrics.SetLinkState", fabric_pb2.SetLinkStateRequest, "fabric", "admin_state: 1"),
        ("fabrics.SetSwitchState", fabric_pb2.SetSwitchStateRequest, "fabric", "admin_state: 1"),
        ("fabrics.WatchFabric", fabric_pb2.WatchFabricRequest, "name", ""),
        ("jobs.SubmitJob", placement_pb2.SubmitJobRequest, "parent", "job_id: 'j'"),
        ("jobs.GetJob", placement_pb2.GetJobRequest, "name", ""),
        ("jobs.ListJobs", placement_pb2.ListJobsRequest, "parent", ""),
        ("jobs.UpdateJob", placement_pb2.UpdateJobRequest, "name", ""),
        ("jobs.DeleteJob", placement_pb2.DeleteJobRequest, "name", ""),
        ("jobs.WatchJobs", placement_pb2.WatchJobsRequest, "parent", ""),
        ("jobs.OrderRanks", placement_pb2.OrderRanksRequest, "parent", f"spec {{{{ {SPEC} }}}}"),
        ("jobs.RecommendPlacement", placement_pb2.RecommendPlacementRequest, "parent", ""),
        ("jobs.ReservePlacement", placement_pb2.ReservePlacementRequest, "parent", ""),
        ("jobs.ListReservations", placement_pb2.ListReservationsRequest, "parent", ""),
        ("jobs.ReleasePlacement", placement_pb2.ReleasePlacementRequest, "name", ""),
        ("demands.PutDemands", demand_pb2.PutDemandsRequest, "name", ""),
        ("demands.ListDemandSets", demand_pb2.ListDemandSetsRequest, "parent", ""),
        ("demands.ListDemands", demand_pb2.ListDemandsRequest, "name", ""),
        ("demands.DeleteDemands", demand_pb2.DeleteDemandsRequest, "name", ""),
        ("demands.ReportRates", demand_pb2.ReportRatesRequest, "fabric", ""),
        ("demands.WatchRates", demand_pb2.WatchRatesRequest, "fabric", ""),
        ("plans.GetPlan", plan_pb2.GetPlanRequest, "name", ""),
        ("plans.ListPlans", plan_pb2.ListPlansRequest, "parent", ""),
        ("plans.ComparePlans", plan_pb2.ComparePlansRequest, "plan", ""),
        ("plans.RollBackPlan", plan_pb2.RollBackPlanRequest, "plan", ""),
        ("plans.EndRollback", plan_pb2.EndRollbackRequest, "plan", ""),
        ("plans.ListRoutes", plan_pb2.ListRoutesRequest, "parent", ""),
        ("plans.ListJobFares", plan_pb2.ListJobFaresRequest, "parent", ""),
        ("plans.ListLinkLoads", plan_pb2.ListLinkLoadsRequest, "parent", ""),
        ("plans.WatchPlan", plan_pb2.WatchPlanRequest, "name", ""),
        ("plans.ExplainFlow", plan_pb2.ExplainFlowRequest, "plan", ""),
        ("plans.GetJobPorts", plan_pb2.GetJobPortsRequest, "plan", "job: 'j1'"),
        ("plans.WatchJobPorts", plan_pb2.WatchJobPortsRequest, "plan", ""),
        ("plans.ReportPortPaths", plan_pb2.ReportPortPathsRequest, "fabric", "host: 'h0.0'"),
        ("plans.WhatIf", plan_pb2.WhatIfRequest, "fabric", ""),
        ("plans.WatchDrain", plan_pb2.WatchDrainRequest, "fabric", ""),
        ("doctor.ExamineInstallation", doctor_pb2.ExamineInstallationRequest, "fabric", ""),
        ("doctor.ExamineJob", doctor_pb2.ExamineJobRequest, "name", ""),
    ]
]

OTHER: list[Made] = [
    ("fabrics.PutFabric", fabric_pb2.PutFabricRequest, text, code, field)
    for text, code, field in [
        ("", "INVALID_ARGUMENT", "fabric.name"),
        ("fabric { name: 'fabrics/f2' }", "INVALID_ARGUMENT", "nodes"),
        ("fabric { name: 'fabrics/f2' nodes { id: 'a' kind: 1 } }", "INVALID_ARGUMENT", "edges"),
        (f"fabric {{ name: 'fabrics/f2' }} request_id: '{LONG}'", "INVALID_ARGUMENT", "request_id"),
    ]
]
OTHER += [
    ("fabrics.SetLinkState", fabric_pb2.SetLinkStateRequest, text, code, field)
    for text, code, field in [
        (
            "fabric: 'fabrics/f1' link { source: 'l0' target: 's0' }",
            "INVALID_ARGUMENT",
            "admin_state",
        ),
        (
            "fabric: 'fabrics/f1' link { source: 'l0' target: 's0' } admin_state: 9",
            "INVALID_ARGUMENT",
            "admin_state",
        ),
        ("fabric: 'fabrics/f1' admin_state: 2", "INVALID_ARGUMENT", "link"),
        ("fabric: 'fabrics/f1' link { source: 'l0' } admin_state: 2", "INVALID_ARGUMENT", "link"),
        ("fabric: 'fabrics/f1' link { source: 'l0' target: 'l1' } admin_state: 2", "NOT_FOUND", ""),
        (
            "fabric: 'fabrics/f1' link { source: 'l0' target: 's0' key: '1' } admin_state: 2",
            "NOT_FOUND",
            "",
        ),
        ("fabric: 'fabrics/no' link { source: 'a' target: 'b' } admin_state: 2", "NOT_FOUND", ""),
    ]
]
OTHER += [
    ("fabrics.SetSwitchState", fabric_pb2.SetSwitchStateRequest, text, code, field)
    for text, code, field in [
        ("fabric: 'fabrics/f1' node: 's0'", "INVALID_ARGUMENT", "admin_state"),
        ("fabric: 'fabrics/f1' admin_state: 2", "INVALID_ARGUMENT", "node"),
        ("fabric: 'fabrics/f1' node: 'n0.0' admin_state: 2", "NOT_FOUND", ""),
        ("fabric: 'fabrics/f1' node: 'x' admin_state: 2", "NOT_FOUND", ""),
    ]
]
OTHER += [
    (
        "jobs.RecommendPlacement",
        placement_pb2.RecommendPlacementRequest,
        f"parent: 'fabrics/f1' {text}",
        code,
        "",
    )
    for text, code in [
        (f"spec {{ {SPEC} }}", "INVALID_ARGUMENT"),
        ("host_count: 1", "INVALID_ARGUMENT"),
        ("host_count: 1 spec { hosts: 'nowhere' gpus_per_host: 1 }", "INVALID_ARGUMENT"),
        ("host_count: 4000000000 spec { gpus_per_host: 1 }", "INVALID_ARGUMENT"),
    ]
]
OTHER += [
    (
        "jobs.ReservePlacement",
        placement_pb2.ReservePlacementRequest,
        f"parent: 'fabrics/f1' {text}",
        code,
        "",
    )
    for text, code in [
        ("hosts: 'h0.1' seconds: 60", "INVALID_ARGUMENT"),
        ("reservation_id: 'a/b' hosts: 'h0.1' seconds: 60", "INVALID_ARGUMENT"),
        ("reservation_id: 'r' seconds: 60", "INVALID_ARGUMENT"),
        ("reservation_id: 'r' hosts: 'h0.1'", "INVALID_ARGUMENT"),
        ("reservation_id: 'r' hosts: 'h0.1' seconds: 86401", "INVALID_ARGUMENT"),
        ("reservation_id: 'r' hosts: 'nowhere' seconds: 60", "INVALID_ARGUMENT"),
    ]
]
OTHER += [
    ("jobs.SubmitJob", placement_pb2.SubmitJobRequest, f"parent: 'fabrics/f1' {text}", code, field)
    for text, code, field in [
        (f"spec {{ {SPEC} }}", "INVALID_ARGUMENT", "job_id"),
        (f"job_id: 'a/b' spec {{ {SPEC} }}", "INVALID_ARGUMENT", "job_id"),
        ("job_id: 'j2'", "INVALID_ARGUMENT", "spec.hosts"),
        ("job_id: 'j2' spec { hosts: 'h0.1' }", "INVALID_ARGUMENT", "spec.gpus_per_host"),
        (
            "job_id: 'j2' spec { hosts: 'h0.1' gpus_per_host: 1 flops_per_iteration: nan }",
            "INVALID_ARGUMENT",
            "spec.flops_per_iteration",
        ),
        *(
            (
                f"job_id: 'j2' spec {{ hosts: 'h0.1' gpus_per_host: 1 {told} }}",
                "INVALID_ARGUMENT",
                field,
            )
            for told, field in [
                ("compute_seconds: -1", "spec.compute_seconds"),
                ("compute_seconds: 1 network_seconds: inf", "spec.network_seconds"),
                ("network_seconds: 1", "network_seconds"),
                ("compute_seconds: 1", "network_seconds"),
            ]
        ),
        (
            "job_id: 'j2' spec { hosts: 'h0.1' gpus: { gpus: 0 } gpus: { gpus: 1 } }",
            "INVALID_ARGUMENT",
            "spec.gpus",
        ),
        (f"job_id: 'j2' request_id: '{LONG}' spec {{ {SPEC} }}", "INVALID_ARGUMENT", "request_id"),
        ("job_id: 'j2' spec { hosts: 'x' gpus_per_host: 1 }", "INVALID_ARGUMENT", "hosts[0]"),
        (
            "job_id: 'j2' spec { hosts: 'h0.1' hosts: 'h0.1' gpus_per_host: 1 }",
            "INVALID_ARGUMENT",
            "hosts[1]",
        ),
        (
            f"job_id: 'j2' spec {{ {SPEC} parallelism {{ tp: 3 }} }}",
            "INVALID_ARGUMENT",
            "parallelism",
        ),
        (
            f"job_id: 'j2' spec {{ {SPEC} parallelism {{ tp: 4000000000 pp: 4000000000 }} }}",
            "INVALID_ARGUMENT",
            "parallelism",
        ),
        (
            "job_id: 'j2' spec { hosts: 'h0.1' hosts: 'h1.1' gpus_per_host: 4000000000 }",
            "INVALID_ARGUMENT",
            "gpus_per_host",
        ),
        (f"job_id: 'j2' spec {{ {SPEC} qps: 4000000000 }}", "INVALID_ARGUMENT", "qps"),
        (f"job_id: 'j2' spec {{ {SPEC} priority: inf }}", "INVALID_ARGUMENT", "spec.priority"),
        ("job_id: 'j2' spec { hosts: 'h0.0' gpus_per_host: 1 }", "FAILED_PRECONDITION", ""),
        (f"job_id: 'j1' spec {{ {SPEC} }}", "ALREADY_EXISTS", ""),
    ]
]
OTHER += [
    (
        "jobs.SubmitJob",
        placement_pb2.SubmitJobRequest,
        f"parent: 'fabrics/no' job_id: 'j' spec {{ {SPEC} }}",
        "NOT_FOUND",
        "",
    ),
    ("jobs.GetJob", placement_pb2.GetJobRequest, "name: 'fabrics/f1/jobs/no'", "NOT_FOUND", ""),
    ("jobs.ListJobs", placement_pb2.ListJobsRequest, "parent: 'fabrics/no'", "NOT_FOUND", ""),
    (
        "jobs.ListJobs",
        placement_pb2.ListJobsRequest,
        "parent: 'fabrics/f1' page_size: -1",
        "INVALID_ARGUMENT",
        "page_size",
    ),
    (
        "jobs.ListJobs",
        placement_pb2.ListJobsRequest,
        "parent: 'fabrics/f1' page_token: 'x'",
        "INVALID_ARGUMENT",
        "page_token",
    ),
    (
        "jobs.UpdateJob",
        placement_pb2.UpdateJobRequest,
        f"name: 'fabrics/f1/jobs/no' spec {{ {SPEC} }}",
        "NOT_FOUND",
        "",
    ),
    (
        "jobs.UpdateJob",
        placement_pb2.UpdateJobRequest,
        "name: 'fabrics/f1/jobs/j1'",
        "INVALID_ARGUMENT",
        "spec.hosts",
    ),
    (
        "jobs.UpdateJob",
        placement_pb2.UpdateJobRequest,
        f"name: 'fabrics/f1/jobs/j1' etag: 'x' spec {{ {SPEC} }}",
        "ABORTED",
        "",
    ),
    (
        "jobs.DeleteJob",
        placement_pb2.DeleteJobRequest,
        "name: 'fabrics/f1/jobs/j1' etag: 'x'",
        "ABORTED",
        "",
    ),
    ("jobs.WatchJobs", placement_pb2.WatchJobsRequest, "parent: 'fabrics/no'", "NOT_FOUND", ""),
    (
        "fabrics.DeleteFabric",
        fabric_pb2.DeleteFabricRequest,
        "name: 'fabrics/no'",
        "NOT_FOUND",
        "",
    ),
    (
        "fabrics.DeleteFabric",
        fabric_pb2.DeleteFabricRequest,
        "name: 'fabrics/f1' etag: 'x'",
        "ABORTED",
        "",
    ),
    (
        "fabrics.DeleteFabric",
        fabric_pb2.DeleteFabricRequest,
        "name: 'fabrics/f1'",
        "FAILED_PRECONDITION",
        "",
    ),
    (
        "fabrics.ListFabrics",
        fabric_pb2.ListFabricsRequest,
        "page_size: -1",
        "INVALID_ARGUMENT",
        "page_size",
    ),
    (
        "fabrics.ListFabrics",
        fabric_pb2.ListFabricsRequest,
        "page_token: 'é'",
        "INVALID_ARGUMENT",
        "page_token",
    ),
    (
        "fabrics.ListLinks",
        fabric_pb2.ListLinksRequest,
        "parent: 'fabrics/f1' page_token: '!'",
        "INVALID_ARGUMENT",
        "page_token",
    ),
    ("fabrics.WatchFabric", fabric_pb2.WatchFabricRequest, "name: 'fabrics/no'", "NOT_FOUND", ""),
    (
        "demands.PutDemands",
        demand_pb2.PutDemandsRequest,
        "name: 'fabrics/no/demands/d'",
        "NOT_FOUND",
        "",
    ),
    (
        "demands.PutDemands",
        demand_pb2.PutDemandsRequest,
        f"name: 'fabrics/f1/demands/d' demands {{ {FLOW} qps: 4000000000 }}",
        "INVALID_ARGUMENT",
        "flow 'f'",
    ),
    (
        "demands.DeleteDemands",
        demand_pb2.DeleteDemandsRequest,
        "name: 'fabrics/f1/demands/no'",
        "NOT_FOUND",
        "",
    ),
    (
        "demands.ListDemands",
        demand_pb2.ListDemandsRequest,
        "name: 'fabrics/f1/demands/no'",
        "NOT_FOUND",
        "",
    ),
    ("demands.WatchRates", demand_pb2.WatchRatesRequest, "fabric: 'fabrics/no'", "NOT_FOUND", ""),
    ("plans.WatchPlan", plan_pb2.WatchPlanRequest, "name: 'fabrics/no/plan'", "NOT_FOUND", ""),
    ("plans.WhatIf", plan_pb2.WhatIfRequest, "fabric: 'fabrics/no'", "NOT_FOUND", ""),
    (
        "plans.WatchJobPorts",
        plan_pb2.WatchJobPortsRequest,
        "plan: 'fabrics/no/plan'",
        "NOT_FOUND",
        "",
    ),
    (
        "plans.GetJobPorts",
        plan_pb2.GetJobPortsRequest,
        "plan: 'fabrics/f1/plan' job: 'no'",
        "NOT_FOUND",
        "",
    ),
    (
        "plans.GetJobPorts",
        plan_pb2.GetJobPortsRequest,
        "plan: 'fabrics/f1/plan' job: 'j1' page_size: -1",
        "INVALID_ARGUMENT",
        "page_size",
    ),
    (
        "jobs.OrderRanks",
        placement_pb2.OrderRanksRequest,
        "parent: 'fabrics/f1' spec { hosts: 'nowhere' gpus_per_host: 1 }",
        "INVALID_ARGUMENT",
        "",
    ),
    (
        "doctor.ExamineJob",
        doctor_pb2.ExamineJobRequest,
        "name: 'fabrics/f1/jobs/no'",
        "NOT_FOUND",
        "",
    ),
    (
        "doctor.ExamineInstallation",
        doctor_pb2.ExamineInstallationRequest,
        "fabric: 'fabrics/no'",
        "NOT_FOUND",
        "",
    ),
    (
        "plans.ReportPortPaths",
        plan_pb2.ReportPortPathsRequest,
        "fabric: 'fabrics/no' host: 'h0.0'",
        "NOT_FOUND",
        "",
    ),
    (
        "plans.ReportPortPaths",
        plan_pb2.ReportPortPathsRequest,
        "fabric: 'fabrics/f1' host: 'h0.0'",
        "FAILED_PRECONDITION",
        "",
    ),
    (
        "plans.WatchDrain",
        plan_pb2.WatchDrainRequest,
        "fabric: 'fabrics/f1' switches: 'no'",
        "INVALID_ARGUMENT",
        "",
    ),
    (
        "plans.ListRoutes",
        plan_pb2.ListRoutesRequest,
        "parent: 'fabrics/f1/plan' link { source: 'x' }",
        "INVALID_ARGUMENT",
        "link",
    ),
    (
        "plans.ListRoutes",
        plan_pb2.ListRoutesRequest,
        "parent: 'fabrics/f1/plan' page_token: 'x'",
        "INVALID_ARGUMENT",
        "page_token",
    ),
    (
        "plans.ListJobFares",
        plan_pb2.ListJobFaresRequest,
        "parent: 'fabrics/f1/plan' page_size: -1",
        "INVALID_ARGUMENT",
        "page_size",
    ),
    (
        "plans.ListLinkLoads",
        plan_pb2.ListLinkLoadsRequest,
        "parent: 'fabrics/f1/plan' page_token: 'x'",
        "INVALID_ARGUMENT",
        "page_token",
    ),
]

CASES = [
    *OTHER,
    *(
        (m, k, text.format(name), code, field)
        for m, k, text, code, field in NAMED
        for name in BAD_NAMES
    ),
]


def _call(s: Serving, method: str, request: Message) -> Any:
    """Call an RPC with one request; return an awaitable of its answer or first message."""
    stub, _, name = method.partition(".")
    rpc: Callable[..., Any] = getattr(getattr(s, stub), name)
    if name in ("PutDemands", "ReportRates"):
        return rpc(iter([request]), timeout=PATIENCE)
    call = rpc(request, timeout=PATIENCE)
    return call.read() if name.startswith("Watch") else call


async def _state(s: Serving) -> object:
    """Return everything that a refused call must leave as it was."""
    fabrics = await s.store.list_fabrics()
    jobs = [(r.job, r.etag) for r in await s.store.list_jobs("f1")]
    return fabrics, jobs, await s.store.versions("f1")


async def test_malformed_requests_are_refused_and_change_nothing(tmp_path: Path) -> None:
    """Each malformed request gets its status and field, and the store stays as it was."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.store.submit_job("f1", job("j1"))
        await s.commit_plan()
        before = await _state(s)
        faults = [fault for case in CASES for fault in await _faults(s, case)]
        assert not faults, "\n".join(faults)
        assert await _state(s) == before


async def _faults(s: Serving, case: Made) -> list[str]:
    """Return what is wrong with how a case is refused."""
    method, kind, text, code, field = case
    error = await refusal(_call(s, method, text_format.Parse(text, kind())))
    status = rpc_status.from_call(error)  # type: ignore[arg-type] # an AioRpcError will do
    told = f"{method} {text}: {error.code().name} {error.details()}"
    if error.code().name != code:
        return [f"{told}; not {code}"]
    if status is None or not status.details or "Traceback" in status.message:
        return [f"{told}; without details"]
    bad = error_details_pb2.BadRequest()
    for detail in status.details:
        detail.Unpack(bad)
    fields = [violation.field for violation in bad.field_violations]
    return [f"{told}; not {field} but {fields}"] if field and field not in fields else []


def test_every_rpc_has_a_case() -> None:
    """Every RPC has a case here; sessions of agents have tests of their own."""
    modules = (fabric_pb2, placement_pb2, demand_pb2, plan_pb2, doctor_pb2)
    stubs = ("fabrics", "jobs", "demands", "plans", "doctor")
    wanted = {
        f"{stub}.{method.name}"
        for stub, module in zip(stubs, modules, strict=True)
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert {case[0] for case in CASES} == wanted


@pytest.mark.parametrize("size", [0, 1, 100])
async def test_a_body_that_is_no_message_is_refused(tmp_path: Path, size: int) -> None:
    """Bytes that do not parse end the call, and the server goes on."""
    async with serving(tmp_path) as s:
        for service, method in (("FabricService", "GetFabric"), ("PlanService", "WatchPlan")):
            raw: Any = s.channel.unary_stream(f"/heddle.v1.{service}/{method}")
            error = await refusal(raw(b"\xff" * size, timeout=PATIENCE).read())
            assert error.code().name == "INVALID_ARGUMENT"
        session: Any = s.channel.stream_stream("/heddle.v1.AgentService/Session")
        error = await refusal(session(iter([b"\xff" * size]), timeout=PATIENCE).read())
        assert error.code().name == "INVALID_ARGUMENT"
        await s.put_fabric()
        answer = await s.fabrics.GetFabric(fabric_pb2.GetFabricRequest(name="fabrics/f1"))
        assert answer.nodes
