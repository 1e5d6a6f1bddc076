"""PlanService: the plans of a fabric, explanations, what-if questions, and ports of NICs.

Most methods only read. ``RollBackPlan`` and ``EndRollback`` write to the store, and
``ReportPortPaths`` changes this controller's observations.

Counting which of thousands of switches hold a plan takes milliseconds, and during a rollout many
clients ask again and again. So ``Summaries`` counts once for each change in the store or in what
agents report, for all clients together.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from grpc import aio
from typing_extensions import override

from heddle.v1 import common_pb2
from heddle.v1 import plan_pb2 as pb
from heddle.v1.plan_pb2_grpc import PlanServiceServicer
from heddle_controller.model.errors import refuse
from heddle_controller.plan.diff import Cause, CauseKind, causes_between, changed_flows
from heddle_controller.plan.explain import explain
from heddle_controller.plan.limits import fares_of, loads_of
from heddle_controller.planner.port import Advisor
from heddle_controller.reconcile.observations import Observations, with_down
from heddle_controller.serve.codec import common, names, times
from heddle_controller.serve.codec import plan as codec
from heddle_controller.serve.errors import Refusal, denied, not_found
from heddle_controller.serve.flow_index import FlowIndex, FlowIndexes
from heddle_controller.serve.nic_ports import (
    MOST_FLOWS,
    ToldPorts,
    check_reporter,
    check_room,
    port_report,
    ports_to_pb,
    rows_leaving,
)
from heddle_controller.serve.request import Page, page, request_of
from heddle_controller.serve.security.caller import current_caller
from heddle_controller.serve.watch import Changes
from heddle_controller.serve.what_if import MAX_TOLD, DrainWatch, outcomes, suppose, what_if_to_pb
from heddle_controller.state.errors import NotFound
from heddle_controller.state.plans import KEPT
from heddle_controller.state.records import Committed, PlanSummary, Rollback
from heddle_controller.store.store import Store

LONGEST_ROLLBACK = 604_800.0
"""Most seconds that a rollback may last."""

_Context = aio.ServicerContext[Any, Any]
_Told = TypeVar("_Told")
_Tell = Callable[[FlowIndex, slice], tuple[_Told, int]]
"""Returns a slice of a list, and the length of the whole list."""


class PlanService(PlanServiceServicer):
    """Reads plans from the store, and answers what-if questions; see plan.proto."""

    def __init__(
        self,
        store: Store,
        changes: Changes,
        indexes: FlowIndexes,
        advisor: Advisor,
        *,
        observations: Observations,
        withdrawn: Callable[[str], bool],
    ) -> None:
        """``advisor`` computes the plans of what-if questions.

        ``withdrawn`` returns whether agents of a fabric report that they ignore their entries.
        """
        self._withdrawn = withdrawn
        self._observations = observations
        self._store = store
        self._changes = changes
        self._indexes = indexes
        self._advisor = advisor
        self._summaries = Summaries(store, observations)

    @override
    async def GetPlan(self, request: pb.GetPlanRequest, context: _Context) -> pb.Plan:
        fabric = names.plan_name.fabric(request.name, "name")
        plan = await self._summaries.of(fabric)
        if plan is None or request.generation not in {0, plan.generation}:
            kept = await kept_plan(self._store, fabric, request.generation)
            return await asyncio.to_thread(codec.committed_to_pb, fabric, kept)
        return plan

    @override
    async def ListPlans(
        self, request: pb.ListPlansRequest, context: _Context
    ) -> pb.ListPlansResponse:
        """List plans, newest first; plans committed after the first page are not listed."""
        fabric = names.plan_name.fabric(request.parent, "parent")
        collection = f"plans/{fabric}"
        part = page(collection, request, default=100, ceiling=1000)
        found = await self._store.plan_summaries(fabric, below=part.row(""), limit=part.size + 1)
        told = found[: part.size]
        return pb.ListPlansResponse(
            plans=[plan_summary_to_pb(one) for one in told],
            next_page_token=part.token(told[-1].generation) if len(found) > len(told) else "",
        )

    @override
    async def ComparePlans(
        self, request: pb.ComparePlansRequest, context: _Context
    ) -> pb.ComparePlansResponse:
        """Compare any two plans that are kept, in either order."""
        fabric = names.plan_name.fabric(request.plan, "plan")
        if not request.before:
            raise refuse("request", "before", "it is 0: give a generation of heddle history")
        before = await kept_plan(self._store, fabric, request.before)
        after = await kept_plan(self._store, fabric, request.after)
        return await asyncio.to_thread(compared_to_pb, fabric, before, after)

    async def _index(self, fabric: str) -> FlowIndex:
        index = await self._indexes.of(fabric)
        if index is None:
            raise no_plan(fabric)
        return index

    @override
    async def RollBackPlan(self, request: pb.RollBackPlanRequest, context: _Context) -> pb.Rollback:
        """Store the wish to go back to a generation; the reconcile loop does it."""
        fabric = names.plan_name.fabric(request.plan, "plan")
        if not request.generation:
            raise refuse("request", "generation", "it is 0: give one of heddle history")
        if not 1 <= request.seconds <= LONGEST_ROLLBACK:
            reason = f"it is {request.seconds:g}: give 1 to {LONGEST_ROLLBACK:g} seconds"
            raise refuse("request", "seconds", reason)
        asked = fabric, request.generation, request.seconds
        try:
            wanted = await self._store.roll_back(*asked, request=request_of(request.request_id))
        except NotFound:
            await kept_plan(self._store, fabric, request.generation)  # its error says more
            raise
        return rollback_to_pb(wanted)

    @override
    async def EndRollback(
        self, request: pb.EndRollbackRequest, context: _Context
    ) -> pb.EndRollbackResponse:
        """End a rollback in the store; the reconcile loop plans freely from then on."""
        fabric = names.plan_name.fabric(request.plan, "plan")
        await self._store.end_rollback(fabric, request=request_of(request.request_id))
        return pb.EndRollbackResponse()

    async def _listed(self, fabric: str, part: Page, tell: _Tell[_Told]) -> tuple[_Told, str, int]:
        """Return a page of a list of the newest plan, the next page's token, and the generation.

        A token expires when there is a newer plan.
        """
        index = await self._index(fabric)
        stamp = str(index.generation)
        first = part.row(stamp)
        last = first + part.size
        told, count = await asyncio.to_thread(tell, index, slice(first, last))
        return told, part.token(last, stamp) if last < count else "", index.generation

    @override
    async def ListRoutes(
        self, request: pb.ListRoutesRequest, context: _Context
    ) -> pb.ListRoutesResponse:
        """List routes in the order of the plan's flows."""
        fabric = names.plan_name.fabric(request.parent, "parent")
        link = request.link if request.HasField("link") else None
        named = f"{link.source}/{link.target}/{link.key}" if link else ""
        collection = f"routes/{fabric}/{request.job}/{named}"
        part = page(collection, request, default=1000, ceiling=10000)
        tell = partial(_routes, request.job, link)
        routes, token, generation = await self._listed(fabric, part, tell)
        return pb.ListRoutesResponse(routes=routes, next_page_token=token, generation=generation)

    @override
    async def ListJobFares(
        self, request: pb.ListJobFaresRequest, context: _Context
    ) -> pb.ListJobFaresResponse:
        """List by job name what jobs get of their demand."""
        fabric = names.plan_name.fabric(request.parent, "parent")
        part = page(f"fares/{fabric}/{request.job}", request, default=1000, ceiling=10000)
        fares, token, generation = await self._listed(fabric, part, partial(_fares, request.job))
        return pb.ListJobFaresResponse(fares=fares, next_page_token=token, generation=generation)

    @override
    async def ListLinkLoads(
        self, request: pb.ListLinkLoadsRequest, context: _Context
    ) -> pb.ListLinkLoadsResponse:
        """List links with their loads, the fullest first."""
        fabric = names.plan_name.fabric(request.parent, "parent")
        part = page(f"links/{fabric}", request, default=20, ceiling=1000)
        links, token, generation = await self._listed(fabric, part, _link_loads)
        return pb.ListLinkLoadsResponse(links=links, next_page_token=token, generation=generation)

    @override
    async def WatchPlan(
        self, request: pb.WatchPlanRequest, context: _Context
    ) -> AsyncIterator[pb.Plan]:
        """Yield each plan when it is committed, and again as more switches hold it."""
        fabric = names.plan_name.fabric(request.name, "name")
        told: pb.Plan | None = None
        async with aclosing(self._changes.watch(fabric)) as changes:
            async for _ in changes:
                plan = await self._summaries.of(fabric)
                if plan is not None and plan != told:
                    yield plan
                    told = plan
                if plan is not None and plan.HasField("rollback"):
                    self._changes.notice_at(fabric, times.time_from_pb(plan.rollback.end_time))

    @override
    async def ExplainFlow(
        self, request: pb.ExplainFlowRequest, context: _Context
    ) -> pb.ExplainFlowResponse:
        """Explain a flow of the newest plan."""
        fabric = names.plan_name.fabric(request.plan, "plan")
        index = await self._index(fabric)
        if index.explains_at_once(request.flow):
            return _explained(index, request.flow)
        return await asyncio.to_thread(_explained, index, request.flow)

    @override
    async def WhatIf(self, request: pb.WhatIfRequest, context: _Context) -> pb.WhatIfResponse:
        """Compute the plan after supposed changes, for comparison; nothing is committed."""
        fabric = names.fabric_name.fabric(request.fabric, "fabric")
        seen = self._observations.of(fabric)
        intent = seen.with_unannounced(await self._store.intent(fabric))
        committed = await self._store.committed(fabric)
        down = seen.seen(intent.fabric).down
        supposed = await asyncio.to_thread(suppose, intent, down, request)
        standing = committed.plan if committed is not None else None
        found = await self._advisor.what_if(intent, supposed, standing)
        return await asyncio.to_thread(what_if_to_pb, fabric, committed, found, request)

    @override
    async def WatchDrain(
        self, request: pb.WatchDrainRequest, context: _Context
    ) -> AsyncIterator[pb.DrainProgress]:
        """Yield the progress of a drain whenever it has changed."""
        fabric = names.fabric_name.fabric(request.fabric, "fabric")
        watch, told = DrainWatch(request), None
        async with aclosing(self._changes.watch(fabric)) as changes:
            async for _ in changes:
                record = await self._store.get_fabric(fabric)
                intent = (await self._store.versions(fabric)).intent
                committed = await self._store.committed(fabric)
                withdrawn = record.overlay.withdrawn or self._withdrawn(fabric)
                look = partial(watch.look, record.fabric, intent, committed, withdrawn=withdrawn)
                progress = await asyncio.to_thread(look)
                if progress != told:
                    yield progress
                    told = progress

    @override
    async def GetJobPorts(
        self, request: pb.GetJobPortsRequest, context: _Context
    ) -> pb.GetJobPortsResponse:
        """Get the ports of a job's flows in the order of the plan's flows."""
        fabric = names.plan_name.fabric(request.plan, "plan")
        _check_host(fabric, request)
        wanted = f"{list(request.hosts)}{list(request.nics)}"
        collection = f"ports/{fabric}/{request.job}/{wanted}"
        part = page(collection, request, default=1000, ceiling=MOST_FLOWS)
        ports, token, _ = await self._listed(fabric, part, partial(_ports, request))
        return pb.GetJobPortsResponse(ports=ports, next_page_token=token)

    @override
    async def WatchJobPorts(
        self, request: pb.WatchJobPortsRequest, context: _Context
    ) -> AsyncIterator[pb.JobPortsEvent]:
        """Yield the ports of every job, ``synced``, then those of jobs that change or are gone."""
        fabric = names.plan_name.fabric(request.plan, "plan")
        _check_host(fabric, request)
        told = ToldPorts(request)
        async with aclosing(self._changes.watch(fabric)) as changes:
            async for _ in changes:
                index = await self._indexes.of(fabric)
                if index is None:  # nothing to tell before the first plan
                    await self._store.versions(fabric)  # raises NotFound for an unknown fabric
                    continue
                for event in await asyncio.to_thread(told.events, index):
                    yield event

    @override
    async def ReportPortPaths(
        self, request: pb.ReportPortPathsRequest, context: _Context
    ) -> pb.ReportPortPathsResponse:
        """Take a host's report into the observations of this controller; nothing is stored."""
        fabric = names.fabric_name.fabric(request.fabric, "fabric")
        check_reporter(current_caller(), fabric, request.host)
        record = await self._store.get_fabric(fabric)
        told = await asyncio.to_thread(port_report, request, record.fabric)
        check_room(self._observations.of(fabric), request.host, told)
        self._observations.report_ports(fabric, request.host, told)
        return pb.ReportPortPathsResponse()


def _fares(job: str, index: FlowIndex, span: slice) -> tuple[list[pb.JobFare], int]:
    """Return what some jobs get of their demand, and how many jobs there are."""
    fares, flows = index.fares, index.plan.flows
    slowest, unrouted = fares.slowest_of_jobs(), fares.unrouted_of_jobs()
    worst = fares.worst_of_jobs()
    chosen = sorted(name for name in slowest if not job or name == job)
    weight = np.zeros(len(flows.job_names))
    np.maximum.at(weight, flows.job, flows.weight)
    weights = dict(zip(flows.job_names, weight.tolist(), strict=True))
    told = []
    for name in chosen[span]:
        fare = pb.JobFare(
            job=name,
            slowest=codec.slowest_to_pb(fares, slowest[name], unrouted[name]),
            weight=weights[name],
        )
        if name in worst:
            fare.worst_link.CopyFrom(codec.directed(index.plan, worst[name]))
            fare.worst_utilization = float(fares.utilization[worst[name]])
        told.append(fare)
    return told, len(chosen)


def _link_loads(index: FlowIndex, span: slice) -> tuple[list[pb.LinkLoad], int]:
    """Return some of the fullest arcs with their loads, and how many arcs have load."""
    found = loads_of(index.plan, index.hottest[span])
    return [codec.link_load_to_pb(index.plan, one) for one in found], len(index.hottest)


def _check_host(fabric: str, request: pb.GetJobPortsRequest | pb.WatchJobPortsRequest) -> None:
    """Raise ``Refusal`` if a host asks for ports of another host."""
    caller = current_caller()
    if caller.may_read_ports(fabric, request.hosts, request.nics):
        return
    message = f"{caller} may read the ports of its own host alone: ask for hosts [its name]"
    raise denied("OTHER_HOST", message)


def _ports(
    request: pb.GetJobPortsRequest, index: FlowIndex, span: slice
) -> tuple[pb.JobPorts, int]:
    """Return the ports of some of a job's flows, and how many flows it has there."""
    flows = index.plan.flows
    if request.job not in flows.job_names:
        message = f"job {request.job[:200]!r} has no flow in plan {index.generation}"
        raise not_found("UNKNOWN_JOB", f"{message}: see heddle job show", job=request.job)
    rows = rows_leaving(index, request.hosts, request.nics)
    rows = rows[flows.job[rows] == flows.job_names.index(request.job)]
    ports = ports_to_pb(index.plan, index.ports, rows[span], request.job)
    ports.generation = index.generation
    return ports, len(rows)


def _explained(index: FlowIndex, flow: str) -> pb.ExplainFlowResponse:
    row = index.rows.get(flow)
    if row is None:
        cure = "see heddle show routes"
        message = f"flow {flow[:200]!r} is not in plan {index.generation}: {cure}"
        raise not_found("UNKNOWN_FLOW", message, flow=flow)
    explanation = explain(index.plan, row, index.explain_index)
    return codec.explanation_to_pb(index.plan, index.ports, explanation)


def _routes(
    job: str, link: common_pb2.LinkRef | None, index: FlowIndex, span: slice
) -> tuple[list[pb.Route], int]:
    """Return some of the routes of a job, or over a link, and how many there are."""
    row = common.find_link(index.plan.fabric, link, "link") if link else None
    flows, codes = codec.select(index.plan, job, row), codec.Routes(index.plan, index.ports)
    return [codes.route(flow) for flow in flows[span].tolist()], len(flows)


KINDS = {
    CauseKind.FABRIC_PUT: pb.PlanCause.FABRIC_PUT,
    CauseKind.LINK_LOST: pb.PlanCause.LINK_LOST,
    CauseKind.LINK_BACK: pb.PlanCause.LINK_BACK,
    CauseKind.LINK_DRAINED: pb.PlanCause.LINK_DRAINED,
    CauseKind.LINK_UNDRAINED: pb.PlanCause.LINK_UNDRAINED,
    CauseKind.SWITCH_LOST: pb.PlanCause.SWITCH_LOST,
    CauseKind.SWITCH_BACK: pb.PlanCause.SWITCH_BACK,
    CauseKind.SWITCH_DRAINED: pb.PlanCause.SWITCH_DRAINED,
    CauseKind.SWITCH_UNDRAINED: pb.PlanCause.SWITCH_UNDRAINED,
    CauseKind.JOB_CAME: pb.PlanCause.JOB_CAME,
    CauseKind.JOB_GONE: pb.PlanCause.JOB_GONE,
    CauseKind.JOB_SUSPENDED: pb.PlanCause.JOB_SUSPENDED,
    CauseKind.JOB_RESUMED: pb.PlanCause.JOB_RESUMED,
    CauseKind.FLOWS_CHANGED: pb.PlanCause.FLOWS_CHANGED,
    CauseKind.TRAFFIC_FOUND: pb.PlanCause.TRAFFIC_FOUND,
    CauseKind.TRAFFIC_GONE: pb.PlanCause.TRAFFIC_GONE,
    CauseKind.ROLLED_BACK: pb.PlanCause.ROLLED_BACK,
    CauseKind.BETTER_PLAN: pb.PlanCause.BETTER_PLAN,
}


def no_plan(fabric: str) -> Refusal:
    """Return a refusal: the fabric has no plan yet."""
    message = f"{names.fabric_name(fabric)} has no plan yet: watch it, or submit a job"
    return not_found("NO_PLAN", message, name=names.plan_name(fabric))


async def kept_plan(store: Store, fabric: str, generation: int) -> Committed:
    """Return the plan of a generation; 0 means the newest.

    Raises:
        Refusal: NOT_FOUND if there is no such plan yet, or it is no longer kept.
        NotFound: there is no such fabric.
    """
    found = await store.committed(fabric, generation)
    if found is not None:
        return found
    newest = (await store.versions(fabric)).generation  # raises NotFound for an unknown fabric
    name = names.plan_name(fabric)
    if not (generation and newest):
        raise no_plan(fabric)
    if generation > newest:
        message = f"{name} has no generation {generation} yet: the newest is {newest}"
    else:
        kept = f"the newest {KEPT} are, from {max(1, newest - KEPT + 1)} on"
        message = f"generation {generation} of {name} is not kept any more: {kept}"
    raise not_found("NO_SUCH_GENERATION", message, name=name)


def plan_summary_to_pb(summary: PlanSummary) -> pb.PlanSummary:
    """Return the summary of a plan as a message."""
    facts = summary.facts
    return pb.PlanSummary(
        generation=summary.generation,
        epoch=summary.epoch,
        intent_version=summary.intent_version,
        commit_time=times.time_to_pb(facts.commit_time),
        flow_count=summary.flow_count,
        unrouted_count=summary.unrouted_count,
        changed_count=facts.changed_count,
        solve_seconds=facts.solve_seconds,
        max_utilization=summary.max_utilization,
        lower_bound=summary.lower_bound,
        causes=_causes(facts.causes),
    )


def rollback_to_pb(rollback: Rollback) -> pb.Rollback:
    """Return a rollback as a message."""
    return pb.Rollback(
        generation=rollback.generation,
        end_time=times.time_to_pb(rollback.end_time),
        intent_version=rollback.version,
    )


def _causes(causes: Iterable[Cause]) -> list[pb.PlanCause]:
    return [
        pb.PlanCause(kind=KINDS[cause.kind], names=cause.names, count=cause.count)
        for cause in causes
    ]


def _differences(one: Committed, other: Committed) -> list[Cause]:
    """Return what changed between any two plans; a later one need not be the better one."""
    worse = other.plan.certificate.max_utilization > one.plan.certificate.max_utilization
    better = other.generation > one.generation and not worse
    found = causes_between(one.plan, other.plan)
    return [cause for cause in found if better or cause.kind != CauseKind.BETTER_PLAN]


def compared_to_pb(fabric: str, one: Committed, other: Committed) -> pb.ComparePlansResponse:
    """Return what differs between two plans: moved flows, causes, and jobs faster or slower."""
    before, after = one.plan, other.plan
    moved = changed_flows(before, after)
    was = {flow: row for row, flow in enumerate(before.flows.ids)} if len(moved) else {}
    old, new = (codec.Routes(plan, np.zeros(len(plan.flows), np.int64)) for plan in (before, after))
    told = [(after.flows.ids[row], row) for row in moved[:MAX_TOLD].tolist()]
    return pb.ComparePlansResponse(
        before=codec.committed_to_pb(fabric, one),
        after=codec.committed_to_pb(fabric, other),
        causes=_causes(_differences(one, other)),
        moved=[
            pb.MovedFlow(flow=flow, before=old.route(was[flow]).paths, after=new.route(row).paths)
            for flow, row in told
        ],
        moved_count=len(moved),
        jobs=outcomes(fares_of(before), fares_of(after))[:MAX_TOLD],
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Known:
    """The last summary of a fabric."""

    committed: Committed
    about: tuple[int, int, Rollback | None]
    """Versions of the intent and of observed link states for which it was made; and the rollback,
    which ends by itself."""
    plan: pb.Plan


class Summaries:
    """Keeps the newest summary of each fabric; callers must not change the messages they get."""

    def __init__(self, store: Store, observations: Observations) -> None:
        self._store, self._observations = store, observations
        self._known: dict[str, _Known] = {}

    async def of(self, fabric: str) -> pb.Plan | None:
        """Return the summary of the newest plan; None if there is no plan yet.

        Raises:
            NotFound: there is no such fabric.
        """
        committed = await self._store.committed(fabric)
        if committed is None:
            self._known.pop(fabric, None)
            await self._store.versions(fabric)  # raises NotFound for an unknown fabric
            return None
        seen = self._observations.of(fabric)
        wanted = await self._store.rollback(fabric)
        about = (await self._store.versions(fabric)).intent, seen.version, wanted
        before = self._known.get(fabric)
        if before is not None and _same(before.committed, committed):
            if before.about == about:
                return before.plan
            plan = pb.Plan()
            plan.CopyFrom(before.plan)
        else:
            plan = codec.committed_to_pb(fabric, committed)
        plan.ClearField("rollback")
        if wanted is not None:
            plan.rollback.CopyFrom(rollback_to_pb(wanted))
        links = with_down((await self._store.get_fabric(fabric)).fabric, seen.down)
        plan.links_current = np.array_equal(links.effective, committed.plan.fabric.effective)
        self._known[fabric] = _Known(committed, about, plan)
        return plan


def _same(one: Committed, other: Committed) -> bool:
    return (
        one.plan is other.plan
        and one.program is other.program
        and one.facts == other.facts
        and one.programmed == other.programmed
        and one.kept_for == other.kept_for
    )
