from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from heddle.v1 import common_pb2, demand_pb2, fabric_pb2, placement_pb2
from heddle.v1 import plan_pb2 as pb
from heddle_controller.model.demand import resolve
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.plan import Paths, Plan
from heddle_controller.serve.codec import job as codec
from heddle_controller.state.records import Programmed
from tests.support.serving import reason, refusal, serving, violations, wire
from tests.support.store_samples import clos, demands, job, plan_of, walk
from tests.support.waiting import PATIENCE

PLAN = "fabrics/f1/plan"
DOWN, DRAINED = common_pb2.STATE_DOWN, common_pb2.STATE_DRAINED


async def test_there_is_no_plan_before_the_first(tmp_path: Path) -> None:
    """A missing plan and a missing fabric are NOT_FOUND with different reasons."""
    async with serving(tmp_path) as s:
        error = await refusal(s.plans.GetPlan(pb.GetPlanRequest(name=PLAN)))
        assert reason(error) == "NOT_FOUND"
        await s.put_fabric()
        for call in (
            s.plans.GetPlan(pb.GetPlanRequest(name=PLAN)),
            s.plans.ListRoutes(pb.ListRoutesRequest(parent=PLAN)),
            s.plans.ExplainFlow(pb.ExplainFlowRequest(plan=PLAN, flow="x")),
        ):
            error = await refusal(call)
            assert (error.code().name, reason(error)) == ("NOT_FOUND", "NO_PLAN")


async def test_a_committed_plan_is_told_whole(tmp_path: Path) -> None:
    """A plan has its certificate and counts; it is programmed once the switch has acknowledged."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.commit_plan()
        plan = await s.plans.GetPlan(pb.GetPlanRequest(name=PLAN))
        assert (plan.generation, plan.epoch) == (1, s.epoch)
        assert (plan.routed_count, plan.unrouted_count, plan.changed_count) == (1, 1, 1)
        assert plan.certificate.proof == "cut"
        assert [t.tier for t in plan.certificate.tiers] == ["leaf-spine"]
        assert (plan.switch_count, plan.programmed_switch_count, plan.entry_count) == (1, 0, 1)
        assert not plan.HasField("programmed_time")
        held = Programmed(0, {"l0": 1}, 99.5)
        await s.store.record_programmed("f1", epoch=s.epoch, programmed=held)
        plan = await s.plans.GetPlan(pb.GetPlanRequest(name=PLAN))
        assert plan.programmed_switch_count == 1
        assert plan.programmed_time.seconds == 99


async def test_routes_are_listed_with_paths_backups_and_reasons(tmp_path: Path) -> None:
    """Routes have the nodes and keys of each path, or why there is none; job and link filter."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.commit_plan()
        answer = await s.plans.ListRoutes(pb.ListRoutesRequest(parent=PLAN))
        routed, unrouted = answer.routes
        assert answer.generation == 1
        assert list(routed.paths[0].nodes) == ["n0.0", "l0", "s0", "l1", "n1.0"]
        assert list(routed.paths[0].keys) == ["0"] * 4
        assert routed.paths[0].share == 1.0
        assert list(routed.backups[0].nodes) == ["n0.0", "l0", "s1", "l1", "n1.0"]
        assert (routed.phase, unrouted.phase) == ("j1/dp", "")
        assert routed.source_port == unrouted.source_port == 49152
        assert (list(unrouted.paths), unrouted.unrouted_reason) == ([], "every path is down")
        request = pb.ListRoutesRequest(
            parent=PLAN, link=common_pb2.LinkRef(source="s0", target="l1")
        )
        assert [r.flow for r in (await s.plans.ListRoutes(request)).routes] == ["j1/f0"]
        request.link.source = "s1"
        assert not (await s.plans.ListRoutes(request)).routes
        nobody = pb.ListRoutesRequest(parent=PLAN, job="nobody")
        assert not (await s.plans.ListRoutes(nobody)).routes


async def test_a_page_of_routes_dies_with_its_plan(tmp_path: Path) -> None:
    """A page token of routes gives ABORTED once there is a newer plan."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.commit_plan()
        request = pb.ListRoutesRequest(parent=PLAN, page_size=1)
        first = await s.plans.ListRoutes(request)
        request.page_token = first.next_page_token
        second = await s.plans.ListRoutes(request)
        assert [r.flow for r in (*first.routes, *second.routes)] == ["j1/f0", "j1/f1"]
        assert not second.next_page_token
        await s.commit_plan()
        error = await refusal(s.plans.ListRoutes(request))
        assert (error.code().name, reason(error)) == ("ABORTED", "PAGE_TOKEN_EXPIRED")


async def test_a_watcher_sees_plans_and_how_far_they_are_programmed(tmp_path: Path) -> None:
    """A watcher gets each plan, and its progress as acknowledgements are recorded."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        watch = s.plans.WatchPlan(pb.WatchPlanRequest(name=PLAN))
        plans = aiter(watch)
        await s.commit_plan()
        assert (await anext(plans)).generation == 1
        await s.store.record_programmed("f1", epoch=s.epoch, programmed=Programmed(1))
        assert (await anext(plans)).programmed_switch_count == 1
        await s.commit_plan()
        following = await anext(plans)
        assert (following.generation, following.programmed_switch_count) == (2, 0)
        watch.cancel()


async def test_a_rollback_is_told_until_it_ends_by_itself(tmp_path: Path) -> None:
    """Neither a watcher nor a reader sees it longer, although nothing is written when it ends."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.commit_plan()
        watch = s.plans.WatchPlan(pb.WatchPlanRequest(name=PLAN))
        plans = aiter(watch)
        assert not (await anext(plans)).HasField("rollback")
        await s.plans.RollBackPlan(pb.RollBackPlanRequest(plan=PLAN, generation=1, seconds=3))
        async with asyncio.timeout(PATIENCE):
            assert (await anext(plans)).rollback.generation == 1
            assert not (await anext(plans)).HasField("rollback")
        assert not (await s.plans.GetPlan(pb.GetPlanRequest(name=PLAN))).HasField("rollback")
        watch.cancel()


async def test_a_flow_is_explained(tmp_path: Path) -> None:
    """An explained flow has each link with its load, reasons, and the number of candidate paths."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.commit_plan()
        answer = await s.plans.ExplainFlow(pb.ExplainFlowRequest(plan=PLAN, flow="j1/f0"))
        assert answer.route.flow == "j1/f0"
        assert [(h.link.source, h.link.target) for h in answer.hops] == [
            ("n0.0", "l0"),
            ("l0", "s0"),
            ("s0", "l1"),
            ("l1", "n1.0"),
        ]
        assert {(h.load_gbps, h.capacity_gbps) for h in answer.hops} == {(400.0, 400.0)}
        assert answer.candidate_count == 2
        assert answer.reasons
        error = await refusal(s.plans.ExplainFlow(pb.ExplainFlowRequest(plan=PLAN, flow="x")))
        assert (error.code().name, reason(error)) == ("NOT_FOUND", "UNKNOWN_FLOW")


def supposed(**changes: object) -> pb.WhatIfRequest:
    """Return a what-if question about f1."""
    return pb.WhatIfRequest(fabric="fabrics/f1", **changes)  # type: ignore[arg-type]


def link(source: str, target: str, state: common_pb2.State.ValueType = DOWN) -> pb.LinkChange:
    """Return a supposed state of a link."""
    return pb.LinkChange(link=common_pb2.LinkRef(source=source, target=target), admin_state=state)


async def test_what_if_answers_and_changes_nothing(tmp_path: Path) -> None:
    """The answer has the flows that lose every path, with reasons; the store stays as it was."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.store.submit_job("f1", job())
        before = await s.store.versions("f1")
        one = await s.plans.WhatIf(supposed(links=[link("l0", "s0")]))
        assert one.before.unrouted_count == one.after.unrouted_count == 0
        assert one.after.certificate.max_utilization == 1.0
        both = await s.plans.WhatIf(
            supposed(
                links=[link("l0", "s0")],
                switches=[pb.SwitchChange(node="s1", admin_state=DOWN)],
            )
        )
        assert both.after.unrouted_count == len(both.unrouted) == 2
        assert all(route.unrouted_reason for route in both.unrouted)
        assert await s.store.versions("f1") == before


PAIRS = (("n0.0", "n1.0"), ("n0.1", "n1.1"))


def over_spines(fabric: Fabric, spines: Sequence[str]) -> Plan:
    """Return a plan with a flow for each of ``PAIRS``, each over a given spine."""
    zero, rows = np.zeros(2, dtype=np.int64), np.arange(2)
    arcs = [
        walk(fabric, source, "l0", spine, "l1", destination)
        for (source, destination), spine in zip(PAIRS, spines, strict=True)
    ]
    paths = Paths(rows, zero, zero, np.array([0, 4, 8]), np.concatenate(arcs))
    none = Paths(rows, zero, zero, np.zeros(3, dtype=np.int64), zero[:0])
    flows = resolve(demands(*PAIRS), fabric, origin="sample")
    return replace(plan_of(fabric), flows=flows, paths=paths, backups=none, unrouted={})


async def test_what_if_follows_the_newest_plan(tmp_path: Path) -> None:
    """A what-if question starts from the newest plan; before the first, it is still answered.

    Of two flows over different spines only the one whose link is drained is said to move, whichever
    spines the newest plan has them on.
    """
    fabric = clos(spines=3)
    async with serving(tmp_path) as s:
        await s.put_fabric(fabric)
        wanted = [
            demand_pb2.FlowDemand(flow=f"f{i}", source=a, destination=b, gbps=400)
            for i, (a, b) in enumerate(PAIRS)
        ]
        both = await s.plans.WhatIf(supposed(demands=wanted))
        assert both.after.routed_count == 2
        assert both.after.certificate.max_utilization == 1.0
        await s.store.put_demands("f1", "d", demands(*PAIRS))
        for generation, spines in enumerate((("s0", "s1"), ("s1", "s0"), ("s2", "s0")), 1):
            await s.commit_plan(over_spines(fabric, spines))
            moved = spines.index("s0")
            answer = await s.plans.WhatIf(supposed(links=[link("l0", "s0", DRAINED)]))
            assert answer.before.generation == generation
            assert list(answer.moved_flows) == [f"f{moved}"], spines
            assert answer.after.changed_count == 1


async def test_jobs_are_supposed_submitted_and_deleted(tmp_path: Path) -> None:
    """A supposed job may take hosts that a supposed deletion frees; else it is refused."""
    spec = codec.job_to_pb(job("j2"))
    two = placement_pb2.Job(name="fabrics/f1/jobs/j2", spec=spec)
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.store.submit_job("f1", job("j1"))
        error = await refusal(s.plans.WhatIf(supposed(jobs=[two])))
        assert error.code().name == "FAILED_PRECONDITION"
        answer = await s.plans.WhatIf(supposed(jobs=[two], deleted_jobs=["j1"]))
        assert answer.after.routed_count == 2
        assert [r.job.name for r in await s.store.list_jobs("f1")] == ["j1"]


async def test_supposed_jobs_may_take_hosts_from_each_other(tmp_path: Path) -> None:
    """All is supposed at once: jobs may swap their hosts, in whatever order they are named."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        await s.store.submit_job("f1", job("j1", ("h0.0", "h1.0")))
        await s.store.submit_job("f1", job("j2", ("h0.1", "h1.1")))
        one, two = (
            placement_pb2.Job(name=name, spec=codec.job_to_pb(job(name, hosts)))
            for name, hosts in (("j1", ("h0.1", "h1.1")), ("j2", ("h0.0", "h1.0")))
        )
        for jobs in ([one, two], [two, one]):
            assert (await s.plans.WhatIf(supposed(jobs=jobs))).after.routed_count == 4
        error = await refusal(s.plans.WhatIf(supposed(jobs=[two])))
        assert "is in use by job 'j1'" in str(error.details())


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (supposed(links=[link("l0", "l1")]), "links[0].link"),
        (supposed(links=[pb.LinkChange(link=link("l0", "s0").link)]), "links[0].admin_state"),
        (supposed(switches=[pb.SwitchChange(node="n0.0", admin_state=DOWN)]), "switches[0].node"),
        (supposed(switches=[pb.SwitchChange(node="s0")]), "switches[0].admin_state"),
        (supposed(deleted_jobs=["none"]), "deleted_jobs[0]"),
        (supposed(jobs=[placement_pb2.Job(name="fabrics/f1/jobs/")]), "jobs[0].name"),
        (supposed(jobs=[placement_pb2.Job(name="j")]), "jobs[0].spec.hosts"),
        (supposed(demands=[demand_pb2.FlowDemand()]), "demands[0].flow"),
        (
            supposed(
                demands=[demand_pb2.FlowDemand(flow="f", source="x", destination="n0.0", gbps=1)]
            ),
            "flow 'f'",
        ),
    ],
)
async def test_a_malformed_supposition_is_refused(
    tmp_path: Path, request_: pb.WhatIfRequest, field: str
) -> None:
    """A malformed question is refused by the name of the field."""
    async with serving(tmp_path) as s:
        await s.put_fabric()
        assert field in violations(await refusal(s.plans.WhatIf(request_)))


async def test_a_parallel_link_has_to_be_named_by_its_key(tmp_path: Path) -> None:
    """A parallel link without a key is refused with the keys there are.

    With a key, that link alone is meant. A key that no link has is refused too.
    """
    fabric = wire(clos())
    fabric.links.add(source="l0", target="s0", key="1", gbps=400)
    spine = pb.SwitchChange(node="s1", admin_state=DOWN)

    def lost(*keys: str) -> pb.WhatIfRequest:
        links = [link("l0", "s0") for _ in keys]
        for change, key in zip(links, keys, strict=True):
            change.link.key = key
        return supposed(links=links, switches=[spine])

    async with serving(tmp_path) as s:
        await s.fabrics.PutFabric(fabric_pb2.PutFabricRequest(fabric=fabric))
        await s.store.submit_job("f1", job())
        refused = violations(await refusal(s.plans.WhatIf(lost(""))))
        assert refused["links[0].link"].endswith("2 parallel links: give one of the keys 0, 1")
        assert "links[1].link" in violations(await refusal(s.plans.WhatIf(lost("0", "7"))))
        for keys, unrouted in ((("0",), 0), (("1",), 0), (("0", "1"), 2)):
            answer = await s.plans.WhatIf(lost(*keys))
            assert answer.after.unrouted_count == unrouted, keys
