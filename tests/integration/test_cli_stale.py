"""What an operator sees while the controller's Redis is away."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from heddle.v1 import demand_pb2, fabric_pb2, placement_pb2, plan_pb2
from heddle.v1.demand_pb2_grpc import DemandServiceStub
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle.v1.placement_pb2_grpc import PlacementServiceStub
from heddle.v1.plan_pb2_grpc import PlanServiceStub
from heddle_controller.model.files.fabric_file import save_fabric_file
from heddle_emulator.topology import clos
from tests.support.operating import Controller, controlling
from tests.support.redis_server import ALWAYS, RedisServer
from tests.support.serving import refusal
from tests.support.waiting import PATIENCE

PATIENT = ("--store-timeout-seconds", "60")
"""A Redis that is slow to answer is not taken to be away: only one that is killed is."""


async def test_answers_of_the_past_are_marked(tmp_path: Path) -> None:
    """Reads are answered, with a note of their age on standard error; writes are refused.

    The refusal says when to try again. Once Redis is back there is no note.
    """
    fabric = tmp_path / "pod.json"
    save_fabric_file(clos(leaves=2, spines=2, nics_per_leaf=2, name="pod"), fabric)
    with RedisServer(tmp_path / "redis", *ALWAYS) as redis:
        async with controlling(tmp_path, "--store", redis.url, *PATIENT) as controller:
            done = await controller.does("fabric", "import", fabric)
            assert (done.code, done.err) == (0, "")
            redis.kill()
            before = await controller.does("fabric", "list", "--json")
            async with asyncio.timeout(PATIENCE):
                while "this is of" not in before.err:
                    before = await controller.does("fabric", "list", "--json")
            assert before.code == 0
            assert before.err.startswith("note: the controller's store is away: this is of ")
            assert [one["name"] for one in before.json] == ["fabrics/pod"]
            examined = await controller.does("doctor")
            assert examined.code == 1
            assert "The store cannot be reached for " in examined.out
            refused = await controller.does("fabric", "link", "l0,s0", "drained")
            assert refused.code == 2
            assert "(try again in 1 s)" in refused.err
            redis.start()
            async with asyncio.timeout(PATIENCE):
                while (await controller.does("fabric", "list")).err:
                    pass
            done = await controller.does("fabric", "link", "l0,s0", "drained")
            assert (done.code, done.err) == (0, "")


async def until_stale(controller: Controller) -> None:
    """Wait until reads are answered from what the controller last knew."""
    async with asyncio.timeout(PATIENCE):
        while "this is of" not in (await controller.does("fabric", "list")).err:
            pass


async def test_refusals_of_the_past_are_marked(tmp_path: Path) -> None:
    """A refused read says how old its data is: what it does not find may exist by now.

    A write is refused without looking at that data, so its refusal has no mark.
    """
    fabric = tmp_path / "pod.json"
    save_fabric_file(clos(leaves=2, spines=2, nics_per_leaf=2, name="pod"), fabric)
    with RedisServer(tmp_path / "redis", *ALWAYS) as redis:
        async with controlling(tmp_path, "--store", redis.url, *PATIENT) as controller:
            assert (await controller.does("fabric", "import", fabric)).code == 0
            redis.kill()
            await until_stale(controller)
            async with controller.channel() as channel:
                fabrics, jobs = FabricServiceStub(channel), PlacementServiceStub(channel)
                demands, plans = DemandServiceStub(channel), PlanServiceStub(channel)
                gone, name = "fabrics/pod/jobs/gone", "fabrics/gone"
                asked: dict[str, Awaitable[Any]] = {
                    "fabric": fabrics.GetFabric(fabric_pb2.GetFabricRequest(name=name)),
                    "job": jobs.GetJob(placement_pb2.GetJobRequest(name=gone)),
                    "jobs": jobs.ListJobs(placement_pb2.ListJobsRequest(parent=name)),
                    "watched": anext(
                        aiter(jobs.WatchJobs(placement_pb2.WatchJobsRequest(parent=name)))
                    ),
                    "demands": demands.ListDemands(
                        demand_pb2.ListDemandsRequest(name="fabrics/pod/demands/gone")
                    ),
                    "plan": plans.GetPlan(plan_pb2.GetPlanRequest(name="fabrics/pod/plan")),
                    "route": plans.ExplainFlow(
                        plan_pb2.ExplainFlowRequest(plan="fabrics/pod/plan", flow="gone")
                    ),
                }
                errors = {what: await refusal(call) for what, call in asked.items()}
                marks = {what: marks_of(error) for what, error in errors.items()}
                assert {what: mark.get("heddle-stale") for what, mark in marks.items()} == (
                    dict.fromkeys(asked, "true")
                ), {what: error.code() for what, error in errors.items()}
                assert all(float(mark["heddle-stale-seconds"]) >= 0 for mark in marks.values())
                delete = placement_pb2.DeleteJobRequest(name=gone, request_id="d1")
                error = await refusal(jobs.DeleteJob(delete))
                assert error.code() is grpc.StatusCode.UNAVAILABLE
                assert "heddle-stale" not in marks_of(error)
            shown = await controller.does("job", "show", "gone")
            assert shown.code == 2
            note, told = shown.err.splitlines()
            assert note.startswith("note: the controller's store is away: this is of ")
            assert "jobs/gone does not exist" in told


def marks_of(error: aio.AioRpcError) -> dict[str, str]:
    """Return the trailing metadata of a refusal."""
    return {key: str(value) for key, value in error.trailing_metadata() or ()}
