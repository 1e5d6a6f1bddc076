"""What a client does beyond single calls, written once for both of its public classes."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeVar, cast

import grpc

from heddle.client import merge, revise
from heddle.client.calls import PAUSE, Calls, Search, may_pass, timed_out
from heddle.client.errors import (
    Conflict,
    Degraded,
    HeddleError,
    NotFound,
    Unavailable,
    Unreachable,
)
from heddle.client.withdrawal import Withdrawal
from heddle.names import value_name
from heddle.v1 import (
    common_pb2,
    demand_pb2,
    fabric_pb2,
    placement_pb2,
    plan_pb2,
)
from heddle.v1.audit_pb2_grpc import AuditServiceStub
from heddle.v1.demand_pb2_grpc import DemandServiceStub
from heddle.v1.doctor_pb2_grpc import DoctorServiceStub
from heddle.v1.fabric_pb2_grpc import FabricServiceStub
from heddle.v1.overlay_pb2_grpc import OverlayServiceStub
from heddle.v1.placement_pb2_grpc import PlacementServiceStub
from heddle.v1.plan_pb2_grpc import PlanServiceStub

_Event = TypeVar("_Event")
Item = TypeVar("Item")
PLANNED = placement_pb2.JOB_STATE_PLANNED
PROGRAMMED = placement_pb2.JOB_STATE_PROGRAMMED
SUSPENDED = placement_pb2.JOB_STATE_SUSPENDED
REVISIONS = 8
"""Attempts to change a job. Nobody else changes the same job this often in a row by chance."""
PAGE = 1000
LARGE_PAGE = 10_000


class Operations:
    """The operations of a client. Time limits are in seconds; None means no limit of their own."""

    def __init__(self, calls: Calls, fabric: str) -> None:
        self.calls = calls
        self._fabric = fabric and f"fabrics/{fabric.removeprefix('fabrics/')}"
        channel = cast("grpc.aio.Channel", calls)
        self._fabrics = FabricServiceStub(channel)
        self._jobs = PlacementServiceStub(channel)
        self._demands = DemandServiceStub(channel)
        self._plans = PlanServiceStub(channel)
        self._overlays = OverlayServiceStub(channel)
        self._doctor = DoctorServiceStub(channel)
        self._audit = AuditServiceStub(channel)

    async def fabric(self, timeout: float | None = None) -> str:  # noqa: ASYNC109 - of the calls
        """Return the full name of the fabric to use: the one given, or the only one there is.

        Raises:
            NotFound: There is no fabric.
            Conflict: There are several, and none was given.
        """
        if self._fabric:
            return self._fabric
        found = [fabric.name for fabric in await self.list_fabrics(timeout)]
        if not found:
            cure = "import one with 'heddle fabric import FILE'"
            raise NotFound(f"the controller has no fabric: {cure}", code=grpc.StatusCode.NOT_FOUND)
        if len(found) > 1:
            told = ", ".join(name.rpartition("/")[2] for name in found)
            cure = "name one by --fabric, or as the client's 'fabric'"
            raise Conflict(f"there are several fabrics ({told}): {cure}")
        self._fabric = found[0]
        return self._fabric

    async def submit_job(
        self,
        job: str,
        spec: placement_pb2.JobSpec,
        *,
        replace: bool = False,
        reservation: str = "",
        request_id: str = "",
    ) -> placement_pb2.Job:
        """Submit a job. The answer says that it is stored durably, and no more.

        Args:
            job: The job's short name.
            spec: What the job asks for.
            replace: If a job of that name exists, give it this specification instead of raising.
            reservation: Name of a reservation that the job uses up.
            request_id: Makes a repeated call return the first call's answer, even after a restart
                of this
                program. Without one, only the attempts within this call share an id.
        """
        parent = await self.fabric()
        if replace:
            return await self._jobs.UpdateJob(
                placement_pb2.UpdateJobRequest(
                    name=f"{parent}/jobs/{job}",
                    spec=spec,
                    request_id=request_id,
                    reservation=reservation,
                    allow_missing=True,
                )
            )
        return await self._jobs.SubmitJob(
            placement_pb2.SubmitJobRequest(
                parent=parent,
                job_id=job,
                spec=spec,
                request_id=request_id,
                reservation=reservation,
            )
        )

    async def replace_hosts(
        self, job: str, hosts: Mapping[str, str], *, reservation: str = ""
    ) -> placement_pb2.Job:
        """Replace some hosts of a job in one step; everything else of it stays.

        Args:
            job: The job's short name.
            hosts: For each host that leaves, the host that takes its place and gives the same GPUs.
            reservation: Name of a reservation that the job uses up.

        Raises:
            InvalidRequest: A host that leaves is not of the job, or a new one already is.
            PreconditionFailed: A host is in use or reserved; the message says by whom.
        """
        return await self._revise(job, lambda spec: revise.replaced(spec, hosts), reservation)

    async def resize_job(
        self,
        job: str,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        gpus: Sequence[placement_pb2.HostGpus] = (),
        dp: int = 0,
        reservation: str = "",
    ) -> placement_pb2.Job:
        """Grow or shrink a job in one step. New hosts are added after its present ones.

        Args:
            job: The job's short name.
            add: Hosts to add.
            remove: Hosts to remove.
            gpus: The GPUs of each added host, or one item for all; empty: as its present hosts
                give.
            dp: Number of replicas; 0 means as many as the ranks then allow.
            reservation: Name of a reservation that the job uses up.

        Raises:
            InvalidRequest: A host to remove is not of the job, one to add already is, or the
                degrees do
                not fit.
            PreconditionFailed: A host is in use or reserved; the message says by whom.
        """

        def change(spec: placement_pb2.JobSpec) -> placement_pb2.JobSpec:
            return revise.resized(spec, add=add, remove=remove, gpus=gpus, dp=dp)

        return await self._revise(job, change, reservation)

    async def suspend_job(self, job: str) -> placement_pb2.Job:
        """Suspend a job: its flows leave the plan, but it keeps its hosts."""
        return await self._revise(job, lambda spec: revise.suspended(spec, rests=True))

    async def resume_job(self, job: str) -> placement_pb2.Job:
        """Resume a suspended job."""
        return await self._revise(job, lambda spec: revise.suspended(spec, rests=False))

    async def correct_job(
        self,
        job: str,
        before: Sequence[placement_pb2.Collective],
        after: Sequence[placement_pb2.Collective],
    ) -> placement_pb2.Job:
        """Replace a job's collectives, for example with the byte counts that were measured.

        Args:
            job: The job's short name.
            before: Its current collectives; empty if its parallelism implies them.
            after: The new collectives.

        Raises:
            InvalidRequest: The job's collectives are no longer ``before``.
        """
        return await self._revise(job, lambda spec: revise.corrected(spec, before, after))

    async def tell_drift(self, job: str, seconds: float) -> placement_pb2.Job:
        """Report that a job's iterations take so many seconds longer than it says.

        The difference is added to its computing time. The controller then plans its turns anew.

        Args:
            job: The job's short name.
            seconds: How much longer; negative if iterations are shorter.

        Raises:
            InvalidRequest: The job gives no ``compute_seconds``, or nothing of them would be left.
        """
        return await self._revise(job, lambda spec: revise.drifted(spec, seconds))

    async def _revise(
        self,
        job: str,
        change: Callable[[placement_pb2.JobSpec], placement_pb2.JobSpec],
        reservation: str = "",
    ) -> placement_pb2.Job:
        """Change a job's current specification; start again if somebody else just changed it."""
        for attempt in range(REVISIONS):
            found = await self.get_job(job)
            request = placement_pb2.UpdateJobRequest(
                name=found.name, spec=change(found.spec), etag=found.etag, reservation=reservation
            )
            try:
                return await self._jobs.UpdateJob(request)
            except Conflict:
                if attempt == REVISIONS - 1:
                    raise
        raise AssertionError("the last attempt answers or raises")

    async def get_job(self, job: str) -> placement_pb2.Job:
        """Return one job."""
        name = f"{await self.fabric()}/jobs/{job}"
        return await self._jobs.GetJob(placement_pb2.GetJobRequest(name=name))

    async def delete_job(self, job: str, *, request_id: str = "") -> int:
        """Delete a job and return the intent version to pass to ``wait_until_gone``."""
        name = f"{await self.fabric()}/jobs/{job}"
        request = placement_pb2.DeleteJobRequest(name=name, request_id=request_id)
        return (await self._jobs.DeleteJob(request)).intent_version

    async def delete_fabric(self, fabric: str, *, etag: str = "", request_id: str = "") -> None:
        """Delete a fabric, by its short name, with all its plans.

        Raises:
            PreconditionFailed: It still has jobs, demand sets or reservations; the message names
                them.
            Conflict: ``etag`` is given and is not that of the fabric.
        """
        request = fabric_pb2.DeleteFabricRequest(
            name=f"fabrics/{fabric.removeprefix('fabrics/')}", etag=etag, request_id=request_id
        )
        await self._fabrics.DeleteFabric(request)

    async def list_jobs(self) -> list[placement_pb2.Job]:
        """Return all jobs, sorted by name."""
        request = placement_pb2.ListJobsRequest(parent=await self.fabric(), page_size=PAGE)
        pages = _pages(self._jobs.ListJobs, request)
        return [job async for page in pages for job in page.jobs]

    async def order_ranks(
        self, spec: placement_pb2.JobSpec, *, replaces: str = ""
    ) -> placement_pb2.OrderRanksResponse:
        """Return a job's hosts in the rank order that suits the fabric best; changes nothing.

        Args:
            spec: The job; the order of its hosts does not matter.
            replaces: Name of a job whose hosts count as free.
        """
        return await self._jobs.OrderRanks(
            placement_pb2.OrderRanksRequest(
                parent=await self.fabric(), spec=spec, replaces=replaces
            )
        )

    async def recommend_placement(
        self,
        spec: placement_pb2.JobSpec,
        host_count: int,
        *,
        same_zone: bool = False,
        max_hosts_per_leaf: int = 0,
        isolated: bool = False,
        exclude: Sequence[str] = (),
        count: int = 0,
        replaces: str = "",
        reservation: str = "",
    ) -> placement_pb2.RecommendPlacementResponse:
        """Return free hosts for a job in rank order, best choice first, and what each is worth.

        Changes nothing: reserve the hosts you want, or another caller may take them.

        Args:
            spec: The job. Its hosts are the candidates; empty means all hosts of the fabric. With
                ``gpus``, only these GPUs of each host are candidates, and the job takes
                ``gpus_per_host`` of them.
            host_count: How many hosts the job takes.
            same_zone: Whether all must be in one zone.
            max_hosts_per_leaf: Most hosts under one leaf; 0 means no limit.
            isolated: Whether no link may be shared with another job.
            exclude: Hosts not to use.
            count: Most choices to return; 0 means five.
            replaces: Name of a job whose hosts count as free.
            reservation: Name of a reservation whose hosts count as free.
        """
        return await self._jobs.RecommendPlacement(
            placement_pb2.RecommendPlacementRequest(
                parent=await self.fabric(),
                spec=spec,
                host_count=host_count,
                constraints=placement_pb2.PlacementConstraints(
                    same_zone=same_zone,
                    max_hosts_per_leaf=max_hosts_per_leaf,
                    isolated=isolated,
                    exclude=exclude,
                ),
                count=count,
                replaces=replaces,
                reservation=reservation,
            )
        )

    async def reserve_placement(
        self,
        reservation: str,
        hosts: Sequence[str],
        seconds: int,
        *,
        gpus: Sequence[placement_pb2.HostGpus] = (),
        request_id: str = "",
    ) -> placement_pb2.Reservation:
        """Keep free hosts for a future job for some time; ``submit_job`` uses up the reservation.

        Args:
            reservation: The reservation's short name.
            hosts: Hosts to keep.
            seconds: How long to keep them.
            gpus: The GPUs to keep of each host, or one item for all; empty means whole hosts.
            request_id: See ``submit_job``.

        Raises:
            PreconditionFailed: A host is in use or reserved; the message says by whom.
        """
        return await self._jobs.ReservePlacement(
            placement_pb2.ReservePlacementRequest(
                parent=await self.fabric(),
                reservation_id=reservation,
                hosts=hosts,
                seconds=seconds,
                gpus=gpus,
                request_id=request_id,
            )
        )

    async def list_reservations(self) -> list[placement_pb2.Reservation]:
        """Return the reservations that have not ended, sorted by name."""
        request = placement_pb2.ListReservationsRequest(parent=await self.fabric())
        return list((await self._jobs.ListReservations(request)).reservations)

    async def release_placement(self, reservation: str, *, request_id: str = "") -> None:
        """End a reservation early."""
        name = f"{await self.fabric()}/reservations/{reservation}"
        await self._jobs.ReleasePlacement(
            placement_pb2.ReleasePlacementRequest(name=name, request_id=request_id)
        )

    async def list_fabrics(self, timeout: float | None = None) -> list[fabric_pb2.Fabric]:  # noqa: ASYNC109 - of each call
        """Return all fabrics, sorted by name, without nodes and links."""
        call = partial(self._fabrics.ListFabrics, timeout=timeout)
        pages = _pages(call, fabric_pb2.ListFabricsRequest(page_size=PAGE))
        return [fabric async for page in pages for fabric in page.fabrics]

    async def list_links(self, *, not_up_only: bool = False) -> list[fabric_pb2.Link]:
        """Return the links with their states; with ``not_up_only``, only those that are not up."""
        request = fabric_pb2.ListLinksRequest(
            parent=await self.fabric(), page_size=LARGE_PAGE, not_up_only=not_up_only
        )
        pages = _pages(self._fabrics.ListLinks, request)
        return [link async for page in pages for link in page.links]

    async def list_demand_sets(self) -> list[demand_pb2.DemandSet]:
        """Return the sets of demands, sorted by name."""
        request = demand_pb2.ListDemandSetsRequest(parent=await self.fabric(), page_size=PAGE)
        pages = _pages(self._demands.ListDemandSets, request)
        return [found async for page in pages for found in page.demand_sets]

    async def list_demands(self, name: str) -> list[demand_pb2.FlowDemand]:
        """Return the flows of a set of demands."""
        full = f"{await self.fabric()}/demands/{name}"
        request = demand_pb2.ListDemandsRequest(name=full, page_size=LARGE_PAGE)
        pages = _pages(self._demands.ListDemands, request)
        return [demand async for page in pages for demand in page.demands]

    async def list_routes(
        self, job: str = "", link: common_pb2.LinkRef | None = None
    ) -> tuple[int, list[plan_pb2.Route]]:
        """Return generation and routes of the newest plan; read again if it changes meanwhile."""
        while True:
            request = plan_pb2.ListRoutesRequest(
                parent=f"{await self.fabric()}/plan", page_size=LARGE_PAGE, job=job, link=link
            )
            found: list[plan_pb2.Route] = []
            generation = 0
            try:
                async for page in _pages(self._plans.ListRoutes, request):
                    generation = page.generation
                    found += page.routes
            except Conflict:
                continue  # read again, once for each new plan
            return generation, found

    async def list_plans(self, *, since: float = 0.0) -> list[plan_pb2.PlanSummary]:
        """Return the plans committed since a time (Unix seconds), newest first."""
        request = plan_pb2.ListPlansRequest(parent=f"{await self.fabric()}/plan", page_size=PAGE)
        found: list[plan_pb2.PlanSummary] = []
        async for page in _pages(self._plans.ListPlans, request):
            for plan in page.plans:
                if plan.commit_time.ToNanoseconds() * 1e-9 < since:
                    return found
                found.append(plan)
        return found

    async def list_job_fares(self, job: str = "") -> dict[str, plan_pb2.JobFare]:
        """Return by name how jobs, or one, fare in the newest plan; empty without a plan."""
        request = plan_pb2.ListJobFaresRequest(
            parent=f"{await self.fabric()}/plan", page_size=LARGE_PAGE, job=job
        )
        return {
            fare.job: fare
            for fare in await self._of_newest_plan(
                self._plans.ListJobFares, request, lambda page: page.fares, 0
            )
        }

    async def list_link_loads(self, count: int = 20) -> list[plan_pb2.LinkLoad]:
        """Return the hottest links of the newest plan and their users; 0: all with traffic."""
        request = plan_pb2.ListLinkLoadsRequest(
            parent=f"{await self.fabric()}/plan", page_size=min(count, PAGE) or PAGE
        )
        return await self._of_newest_plan(
            self._plans.ListLinkLoads, request, lambda page: page.links, count
        )

    async def _of_newest_plan(
        self,
        method: Callable[..., Any],
        request: Any,  # noqa: ANN401 - of any list of a plan
        items: Callable[[Any], Iterable[Item]],
        count: int,
    ) -> list[Item]:
        """Return the first ``count`` items of a list, 0 for all; read again if the plan changes."""
        while True:
            found: list[Item] = []
            request.page_token = ""
            try:
                async for page in _pages(method, request):
                    found += items(page)
                    if count and len(found) >= count:
                        return found[:count]
            except Conflict:
                continue  # read again, once for each new plan
            except NotFound as error:
                if error.reason == "NO_PLAN":
                    return []
                raise
            return found

    async def watch_jobs(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the end of a watch
    ) -> AsyncGenerator[placement_pb2.JobEvent]:
        """Yield all jobs, then ``synced``, then each change; goes on after controllers restart."""

        def request(fabric: str) -> placement_pb2.WatchJobsRequest:
            return placement_pb2.WatchJobsRequest(parent=fabric)

        async with aclosing(
            self._watch(self._jobs.WatchJobs, request, merge.Jobs(), timeout)
        ) as events:
            async for event in events:
                yield event

    async def watch_fabric(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the end of a watch
    ) -> AsyncGenerator[fabric_pb2.FabricEvent]:
        """Yield what is not up, then ``synced``, then all changes of links and switches.

        See ``watch_jobs``. The event of a fabric comes first, and again when nodes or links may be
        others: forget what was told before. All that is not up follows.
        """

        def request(fabric: str) -> fabric_pb2.WatchFabricRequest:
            return fabric_pb2.WatchFabricRequest(name=fabric)

        async with aclosing(
            self._watch(self._fabrics.WatchFabric, request, merge.Fabric(), timeout)
        ) as events:
            async for event in events:
                yield event

    async def watch_plans(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the end of a watch
    ) -> AsyncGenerator[plan_pb2.Plan]:
        """Yield the newest plan, then each one when committed or programmed; see ``watch_jobs``."""

        def request(fabric: str) -> plan_pb2.WatchPlanRequest:
            return plan_pb2.WatchPlanRequest(name=f"{fabric}/plan")

        async with aclosing(
            self._watch(self._plans.WatchPlan, request, merge.Plans(), timeout)
        ) as plans:
            async for plan in plans:
                yield plan

    async def watch_drain(
        self,
        links: Sequence[common_pb2.LinkRef] = (),
        switches: Sequence[str] = (),
        timeout: float | None = None,  # noqa: ASYNC109 - the end of a watch
    ) -> AsyncGenerator[plan_pb2.DrainProgress]:
        """Yield how far links and switches are from being idle; see ``watch_jobs``."""

        def request(fabric: str) -> plan_pb2.WatchDrainRequest:
            return plan_pb2.WatchDrainRequest(fabric=fabric, links=links, switches=switches)

        whole: merge.Merge[plan_pb2.DrainProgress] = merge.Merge()
        async with aclosing(self._watch(self._plans.WatchDrain, request, whole, timeout)) as steps:
            async for step in steps:
                yield step

    async def watch_rates(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the end of a watch
    ) -> AsyncGenerator[demand_pb2.RateBatch]:
        """Yield measured rates as they arrive; see ``watch_jobs``."""

        def request(fabric: str) -> demand_pb2.WatchRatesRequest:
            return demand_pb2.WatchRatesRequest(fabric=fabric)

        async with aclosing(
            self._watch(self._demands.WatchRates, request, merge.Rates(), timeout)
        ) as batches:
            async for batch in batches:
                yield batch

    async def wait_until(
        self,
        state: placement_pb2.JobState.ValueType,
        jobs: Sequence[str | placement_pb2.Job],
        timeout: float | None = None,  # noqa: ASYNC109 - None waits for ever
        *,
        degraded_ok: bool = True,
    ) -> list[placement_pb2.Job]:
        """Wait until jobs are PLANNED, PROGRAMMED or SUSPENDED, and return the jobs in that state.

        Args:
            state: The state to wait for. A job that is PROGRAMMED counts as PLANNED too.
            jobs: Names, to accept any specification, or answers of ``submit_job``, to accept only
                the
                specification that was submitted.
            timeout: Seconds to wait.
            degraded_ok: Keep waiting while a job is degraded, as it is while an agent is away.

        Raises:
            TimedOut: The jobs did not get there in time.
            NotFound: A job is gone, or never existed.
            Degraded: A job is degraded, and ``degraded_ok`` is false.
        """
        waiting, search = Waiting(state, jobs), Search(self.calls, timeout)
        async with aclosing(self.watch_jobs(timeout)) as events:
            async for event in events:
                waiting.take(event, degraded_ok=degraded_ok)
                if event.HasField("synced"):
                    await self._check_known(waiting.unknown, search)
                if waiting.done:
                    return waiting.found
        raise timed_out(f"after {round(timeout or 0.0, 1):g} s {waiting.why_not()}", self.calls)

    async def _check_known(self, jobs: Iterable[str], search: Search) -> None:
        """Raise ``NotFound`` if one of these jobs is gone.

        A controller that cannot reach its store may not know a job that another one has stored.
        """
        for job in jobs:
            name = f"{await self.fabric()}/jobs/{job}"
            try:
                await self._jobs.GetJob(placement_pb2.GetJobRequest(name=name), timeout=search.left)
            except NotFound as error:
                if not error.stale:
                    raise

    async def wait_until_gone(
        self,
        version: int,
        timeout: float | None = None,  # noqa: ASYNC109 - None waits for ever
    ) -> None:
        """Wait until no switch holds an entry of what was deleted.

        Args:
            version: Version of the intent without it, as returned by the call that deleted it.
            timeout: Seconds to wait.

        Raises:
            TimedOut: The message names the switches that are waited for.
            Unavailable: The version is 0: the controller that deleted it lost its store right then.
        """
        if not version:
            why = "the controller could not tell when its entries are gone"
            raise Unavailable(why, code=grpc.StatusCode.UNAVAILABLE)
        await self._wait_for(Withdrawal(version), timeout)

    async def _wait_for(self, withdrawal: Withdrawal, timeout: float | None) -> None:  # noqa: ASYNC109 - as above
        async with aclosing(self.watch_plans(timeout)) as plans:
            async for plan in plans:
                if withdrawal.done(plan):
                    return
        raise timed_out(f"after {timeout:g} s {withdrawal.why_not()}", self.calls)

    async def wait_until_settled(
        self,
        generation: int,
        timeout: float | None = None,  # noqa: ASYNC109 - None waits for ever
    ) -> None:
        """Wait until every switch has reached a plan, or a later one.

        Args:
            generation: Generation of the plan, such as ``generation`` of a job that is SUSPENDED.
                If there is no such plan yet, it is waited for.
            timeout: Seconds to wait.

        Raises:
            TimedOut: The message names the switches that are waited for.
        """
        await self._wait_for(Withdrawal(0, generation), timeout)

    async def close(self) -> None:
        """End all calls and connections."""
        await self.calls.close()

    async def _watch(
        self,
        method: Callable[..., Any],
        request: Callable[[str], Any],
        merged: merge.Merge[_Event],
        timeout: float | None,  # noqa: ASYNC109 - the end of a watch
    ) -> AsyncGenerator[_Event]:
        """Yield events of one stream after another, until the time is up.

        ``request`` returns the request for a fabric, given its full name.
        """
        search = Search(self.calls, timeout)
        while search.left is None or search.left > 0:
            merged.begin()
            used = self.calls.contents
            try:
                asked = request(await self.fabric(search.left))
                stream: AsyncGenerator[_Event] = method(asked, timeout=search.left)
                async with aclosing(stream):
                    async for event in stream:
                        for told in merged.take(event):
                            yield told
            except HeddleError as error:
                late = not error.told and error.code is grpc.StatusCode.DEADLINE_EXCEEDED
                if late and search.left is not None:  # else it is the limit of the call for a name
                    return
                renewed = await self.calls.renewed(error, used)
                if not self.calls.reached or not (renewed or may_pass(error)):
                    raise
                if isinstance(error, Unreachable):
                    self.calls.note("lost", f"{error.message}: it is asked again and again")
            await self.calls.wire.sleep(min(PAUSE, search.left or PAUSE))


async def _pages(method: Callable[..., Any], request: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - of any list
    """Yield the pages of a list."""
    while True:
        page = await method(request)
        yield page
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


class Waiting:
    """Tells which jobs have not yet reached the wanted state."""

    def __init__(
        self, state: placement_pb2.JobState.ValueType, jobs: Sequence[str | placement_pb2.Job]
    ) -> None:
        self._enough = (PLANNED, PROGRAMMED) if state == PLANNED else (state,)
        self._etags = {
            job.name.rpartition("/")[2]: job.etag for job in jobs if not isinstance(job, str)
        }
        self._names = [job if isinstance(job, str) else job.name.rpartition("/")[2] for job in jobs]
        self._jobs: dict[str, placement_pb2.Job] = {}

    def take(self, event: placement_pb2.JobEvent, *, degraded_ok: bool) -> None:
        """Take in a change of a job. Raises ``NotFound`` and ``Degraded``."""
        name = (event.job.name or event.deleted).rpartition("/")[2]
        if name not in self._names:
            return
        if event.HasField("deleted"):
            raise NotFound(f"job {name!r} was deleted", code=grpc.StatusCode.NOT_FOUND)
        self._jobs[name] = event.job
        if self._is_meant(event.job) and not degraded_ok:
            self._check(event.job)

    @property
    def unknown(self) -> list[str]:
        """The names of jobs that no event was about."""
        return [name for name in self._names if name not in self._jobs]

    @property
    def done(self) -> bool:
        """Whether all jobs have reached the state."""
        return not self._behind()

    @property
    def found(self) -> list[placement_pb2.Job]:
        """The jobs, in the order in which they were named."""
        return [self._jobs[name] for name in self._names]

    def why_not(self) -> str:
        """Say in words which jobs are waited for."""
        behind = self._behind()
        told = ", ".join(f"{name} {self._word(name)}" for name in behind[:3])
        more = f" and {len(behind) - 3} more" if behind[3:] else ""
        return f"jobs are not there yet: {told}{more}" if told else "nothing was told of the jobs"

    def _word(self, name: str) -> str:
        job = self._jobs.get(name)
        if job is None:
            return "has not been heard of yet"
        if not self._is_meant(job):
            return "has another specification now"
        if job.state == placement_pb2.JOB_STATE_DEGRADED:
            return f"is degraded: {job.reason}"
        return (
            "is " + value_name(placement_pb2.JobState.DESCRIPTOR, job.state, "JOB_STATE_").lower()
        )

    def _behind(self) -> list[str]:
        return [
            name
            for name in self._names
            if name not in self._jobs
            or not self._is_meant(self._jobs[name])
            or self._jobs[name].state not in self._enough
        ]

    def _is_meant(self, job: placement_pb2.Job) -> bool:
        """Return whether a job has the submitted specification; true if none was given."""
        name = job.name.rpartition("/")[2]
        return self._etags.get(name, job.etag) == job.etag

    def _check(self, job: placement_pb2.Job) -> None:
        if job.state == placement_pb2.JOB_STATE_DEGRADED:
            name = job.name.rpartition("/")[2]
            raise Degraded(f"job {name!r} is degraded: {job.reason}")
