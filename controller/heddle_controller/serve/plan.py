"""PlanService: the plans of a fabric, explanations, what-if questions, and ports of NICs.

Most methods only read. ``RollBackPlan`` and ``EndRollback`` write to the store, and
``ReportPortPaths`` changes this controller's observations.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar

import numpy as np
from grpc import aio
from typing_extensions import override

from heddle.v1 import common_pb2
from heddle.v1 import plan_pb2 as pb
from heddle.v1.plan_pb2_grpc import PlanServiceServicer
from heddle_controller.model.errors import refuse
from heddle_controller.plan.explain import explain
from heddle_controller.plan.limits import loads_of
from heddle_controller.planner.port import Advisor
from heddle_controller.reconcile.observations import Observations
from heddle_controller.serve.codec import common, names
from heddle_controller.serve.codec import plan as codec
from heddle_controller.serve.errors import denied, not_found
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
from heddle_controller.serve.summaries import (
    Summaries,
    compared_to_pb,
    kept_plan,
    no_plan,
    plan_summary_to_pb,
    rollback_to_pb,
)
from heddle_controller.serve.watch import Changes
from heddle_controller.serve.what_if import DrainWatch, suppose, what_if_to_pb
from heddle_controller.state.errors import NotFound
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
