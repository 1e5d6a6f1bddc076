"""What a client does beyond single calls, written once for both faces."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar, cast

import grpc

from heddle.client import merge, revise
from heddle.client.calls import PAUSE, Calls, Search, may_pass, timed_out
from heddle.client.errors import Conflict, Degraded, HeddleError, NotFound, Unreachable
from heddle.client.withdrawal import Withdrawal
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
"""So often in a row nobody else changes the same job by chance."""
PAGE = 1000
LARGE_PAGE = 10_000


class Operations:
    """Each takes its time limit in seconds; None: as long as it takes, or the client's own."""

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

    async def fabric(self) -> str:
        """Full name of the fabric meant: the one named, or the only one there is.

        Raises:
            NotFound: there is none. Conflict: there are several, and none was named.
        """
        if self._fabric:
            return self._fabric
        found = [fabric.name for fabric in await self.list_fabrics()]
        if not found:
            raise NotFound("the controller has no fabric", code=grpc.StatusCode.NOT_FOUND)
        if len(found) > 1:
            told = ", ".join(name.rpartition("/")[2] for name in found)
            raise Conflict(f"there are several fabrics ({told}): name one")
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
        """Submit a job; the answer says that it is durably stored, no more.

        Args:
            job: Its name, the last part.
            spec: What is asked for.
            replace: Give a job of that name this specification, instead of refusing.
            reservation: Name of the one that the job redeems; it ends.
            request_id: Makes a repeated call answer as the first did, also after this program was
                started anew. Without one, the attempts of this call share one.
        """
        parent = await self.fabric()
        try:
            return await self._jobs.SubmitJob(
                placement_pb2.SubmitJobRequest(
                    parent=parent,
                    job_id=job,
                    spec=spec,
                    request_id=request_id,
                    reservation=reservation,
                )
            )
        except HeddleError as error:
            if not replace or error.code is not grpc.StatusCode.ALREADY_EXISTS:
                raise
        return await self._jobs.UpdateJob(
            placement_pb2.UpdateJobRequest(
                name=f"{parent}/jobs/{job}",
                spec=spec,
                request_id=request_id and f"{request_id}-replace",
                reservation=reservation,
            )
        )

    async def replace_hosts(
        self, job: str, hosts: Mapping[str, str], *, reservation: str = ""
    ) -> placement_pb2.Job:
        """Give a job other hosts in the place of some, in one step; all else of it stays.

        Args:
            job: Its name, the last part.
            hosts: The new host of each that goes. It gives the GPUs that the old one gave.
            reservation: Name of the one that the job redeems; it ends.

        Raises:
            InvalidRequest: a host that goes is not of the job, or one that comes is.
            PreconditionFailed: a host is in use or reserved; says by whom.
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
        """Grow or shrink a job, in one step: hosts come behind its own, and go.

        Args:
            job: Its name, the last part.
            add: Hosts that come.
            remove: Hosts that go.
            gpus: Those of each host that comes, or one for all; none: as its own hosts give.
            dp: Replicas; 0: as many as the ranks then make.
            reservation: Name of the one that the job redeems; it ends.

        Raises:
            InvalidRequest: hosts that are not of the job, or already; degrees that do not fit.
            PreconditionFailed: a host is in use or reserved; says by whom.
        """

        def change(spec: placement_pb2.JobSpec) -> placement_pb2.JobSpec:
            return revise.resized(spec, add=add, remove=remove, gpus=gpus, dp=dp)

        return await self._revise(job, change, reservation)

    async def suspend_job(self, job: str) -> placement_pb2.Job:
        """Let a job rest: its flows leave the plan, its hosts stay its own."""
        return await self._revise(job, lambda spec: revise.suspended(spec, rests=True))

    async def resume_job(self, job: str) -> placement_pb2.Job:
        """Let a job go on that was suspended."""
        return await self._revise(job, lambda spec: revise.suspended(spec, rests=False))

    async def correct_job(
        self,
        job: str,
        before: Sequence[placement_pb2.Collective],
        after: Sequence[placement_pb2.Collective],
    ) -> placement_pb2.Job:
        """Give a job other collectives, such as with the bytes that were measured.

        Args:
            job: Its name, the last part.
            before: Those that it has; none where its parallelism implies them.
            after: What takes their place.

        Raises:
            InvalidRequest: it has others than ``before`` by now.
        """
        return await self._revise(job, lambda spec: revise.corrected(spec, before, after))

    async def tell_drift(self, job: str, seconds: float) -> placement_pb2.Job:
        """Say that an iteration of a job takes longer than told, by so many seconds.

        What drifts is taken for computing. Turns are worked out anew for it.

        Args:
            job: Its name, the last part.
            seconds: Below 0: it takes less.

        Raises:
            InvalidRequest: it tells no ``compute_seconds``, or none would be left.
        """
        return await self._revise(job, lambda spec: revise.drifted(spec, seconds))

    async def _revise(
        self,
        job: str,
        change: Callable[[placement_pb2.JobSpec], placement_pb2.JobSpec],
        reservation: str = "",
    ) -> placement_pb2.Job:
        """Change what a job's specification is now; anew where somebody else was faster."""
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
        """One job."""
        name = f"{await self.fabric()}/jobs/{job}"
        return await self._jobs.GetJob(placement_pb2.GetJobRequest(name=name))

    async def delete_job(self, job: str, *, request_id: str = "") -> int:
        """End a job; the version to give to ``wait_until_gone``."""
        name = f"{await self.fabric()}/jobs/{job}"
        request = placement_pb2.DeleteJobRequest(name=name, request_id=request_id)
        return (await self._jobs.DeleteJob(request)).intent_version

    async def list_jobs(self) -> list[placement_pb2.Job]:
        """All jobs by name."""
        request = placement_pb2.ListJobsRequest(parent=await self.fabric(), page_size=PAGE)
        pages = _pages(self._jobs.ListJobs, request)
        return [job async for page in pages for job in page.jobs]

    async def order_ranks(
        self, spec: placement_pb2.JobSpec, *, replaces: str = ""
    ) -> placement_pb2.OrderRanksResponse:
        """The hosts of a job in the rank order that suits the fabric best; changes nothing.

        Args:
            spec: The job; the order of its hosts means nothing.
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
        """Free hosts for a job in rank order, best first, and what each choice is worth.

        Changes nothing: reserve what you take, or another may be quicker.

        Args:
            spec: The job; its hosts are those that it may have, none: all of the fabric. With
                ``gpus``, it may have just these of each, and takes ``gpus_per_host`` of them.
            host_count: How many it takes.
            same_zone: Whether all have to be in one zone.
            max_hosts_per_leaf: At most so many below one leaf; 0: no limit.
            isolated: Whether no link may be shared with another job.
            exclude: Hosts that are not to be taken.
            count: How many choices to answer at most; 0: five.
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
        """Keep free hosts for a job to come, for so long; ``submit_job`` redeems it.

        Args:
            reservation: Its name, the last part.
            hosts: Those that are kept.
            seconds: How long.
            gpus: Those of each host that are kept, or one for all; none: whole hosts.
            request_id: As ``submit_job`` has it.

        Raises:
            PreconditionFailed: a host is in use or reserved; says by whom.
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
        """Reservations that are not over, by name."""
        request = placement_pb2.ListReservationsRequest(parent=await self.fabric())
        return list((await self._jobs.ListReservations(request)).reservations)

    async def release_placement(self, reservation: str, *, request_id: str = "") -> None:
        """End a reservation before its time."""
        name = f"{await self.fabric()}/reservations/{reservation}"
        await self._jobs.ReleasePlacement(
            placement_pb2.ReleasePlacementRequest(name=name, request_id=request_id)
        )

    async def list_fabrics(self) -> list[fabric_pb2.Fabric]:
        """All fabrics by name, without nodes and links."""
        pages = _pages(self._fabrics.ListFabrics, fabric_pb2.ListFabricsRequest(page_size=PAGE))
        return [fabric async for page in pages for fabric in page.fabrics]

    async def list_links(self, *, not_up_only: bool = False) -> list[fabric_pb2.Link]:
        """Links and their states."""
        request = fabric_pb2.ListLinksRequest(
            parent=await self.fabric(), page_size=LARGE_PAGE, not_up_only=not_up_only
        )
        pages = _pages(self._fabrics.ListLinks, request)
        return [link async for page in pages for link in page.links]

    async def list_demand_sets(self) -> list[demand_pb2.DemandSet]:
        """Sets of demands by name."""
        request = demand_pb2.ListDemandSetsRequest(parent=await self.fabric(), page_size=PAGE)
        pages = _pages(self._demands.ListDemandSets, request)
        return [found async for page in pages for found in page.demand_sets]

    async def list_demands(self, name: str) -> list[demand_pb2.FlowDemand]:
        """The flows of a set."""
        full = f"{await self.fabric()}/demands/{name}"
        request = demand_pb2.ListDemandsRequest(name=full, page_size=LARGE_PAGE)
        pages = _pages(self._demands.ListDemands, request)
        return [demand async for page in pages for demand in page.demands]

    async def list_routes(
        self, job: str = "", link: common_pb2.LinkRef | None = None
    ) -> tuple[int, list[plan_pb2.Route]]:
        """Generation and routes of the newest plan, read anew where it changes meanwhile."""
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
                continue  # each plan that comes is a reason for one more reading, and for no more
            return generation, found

    async def list_plans(self, *, since: float = 0.0) -> list[plan_pb2.PlanSummary]:
        """Plans that were committed since then (Unix seconds), the newest first."""
        request = plan_pb2.ListPlansRequest(parent=f"{await self.fabric()}/plan", page_size=PAGE)
        found: list[plan_pb2.PlanSummary] = []
        async for page in _pages(self._plans.ListPlans, request):
            for plan in page.plans:
                if plan.commit_time.ToNanoseconds() * 1e-9 < since:
                    return found
                found.append(plan)
        return found

    async def list_job_fares(self, job: str = "") -> dict[str, plan_pb2.JobFare]:
        """How jobs fare in the newest plan, by name, or one job; none where there is no plan."""
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
        """The hottest links of the newest plan, and who uses them; 0: all that carry something."""
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
        """So many items of a list, 0: all, read anew where the plan changes meanwhile."""
        while True:
            found: list[Item] = []
            request.page_token = ""
            try:
                async for page in _pages(method, request):
                    found += items(page)
                    if count and len(found) >= count:
                        return found[:count]
            except Conflict:
                continue  # as above
            except NotFound as error:
                if error.reason == "NO_PLAN":
                    return []
                raise
            return found

    async def watch_jobs(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the end of a watch
    ) -> AsyncGenerator[placement_pb2.JobEvent]:
        """Jobs as they stand, ``synced``, then each change, through restarts of controllers."""
        request = placement_pb2.WatchJobsRequest(parent=await self.fabric())
        async with aclosing(
            self._watch(self._jobs.WatchJobs, request, merge.Jobs(), timeout)
        ) as events:
            async for event in events:
                yield event

    async def watch_fabric(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the end of a watch
    ) -> AsyncGenerator[fabric_pb2.FabricEvent]:
        """Links and switches that are not up, ``synced``, then each change, as ``watch_jobs``."""
        request = fabric_pb2.WatchFabricRequest(name=await self.fabric())
        async with aclosing(
            self._watch(self._fabrics.WatchFabric, request, merge.Fabric(), timeout)
        ) as events:
            async for event in events:
                yield event

    async def watch_plans(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the end of a watch
    ) -> AsyncGenerator[plan_pb2.Plan]:
        """The newest plan, then each as it is committed and programmed, as ``watch_jobs``."""
        request = plan_pb2.WatchPlanRequest(name=f"{await self.fabric()}/plan")
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
        """How far links and switches are from being idle, as ``watch_jobs``."""
        request = plan_pb2.WatchDrainRequest(
            fabric=await self.fabric(), links=links, switches=switches
        )
        whole: merge.Merge[plan_pb2.DrainProgress] = merge.Merge()
        async with aclosing(self._watch(self._plans.WatchDrain, request, whole, timeout)) as steps:
            async for step in steps:
                yield step

    async def watch_rates(
        self,
        timeout: float | None = None,  # noqa: ASYNC109 - the end of a watch
    ) -> AsyncGenerator[demand_pb2.RateBatch]:
        """Measured rates as they come, as ``watch_jobs``."""
        request = demand_pb2.WatchRatesRequest(fabric=await self.fabric())
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
        """Wait until jobs are PLANNED, PROGRAMMED or SUSPENDED; the jobs as they stand then.

        Args:
            state: How far.
            jobs: Names, for jobs as they stand; or what ``submit_job`` answered, for jobs with just
                that specification.
            timeout: Seconds to wait.
            degraded_ok: Go on waiting where a job is degraded, as it is while an agent is away.

        Raises:
            TimedOut: not in that time. NotFound: a job is gone, or was never there.
            Degraded: a job is, and that was not to be waited out.
        """
        waiting = Waiting(state, jobs)
        async with aclosing(self.watch_jobs(timeout)) as events:
            async for event in events:
                waiting.take(event, degraded_ok=degraded_ok)
                if waiting.done:
                    return waiting.found
        raise timed_out(f"after {timeout:g} s {waiting.why_not()}", self.calls)

    async def wait_until_gone(
        self,
        version: int,
        timeout: float | None = None,  # noqa: ASYNC109 - None waits for ever
    ) -> None:
        """Wait until no switch holds an entry of what was deleted.

        Args:
            version: Of the intent without it, as the call that deleted it answered.
            timeout: Seconds to wait.

        Raises:
            TimedOut: the message names the switches that are waited for.
        """
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
        """Wait until every switch has come to a plan, or a later one.

        Args:
            generation: Of the plan, such as the ``generation`` of a job that is SUSPENDED.
            timeout: Seconds to wait.

        Raises:
            TimedOut: the message names the switches that are waited for.
        """
        await self._wait_for(Withdrawal(0, generation), timeout)

    async def close(self) -> None:
        """End all calls and connections."""
        await self.calls.close()

    async def _watch(
        self,
        method: Callable[..., Any],
        request: object,
        merged: merge.Merge[_Event],
        timeout: float | None,  # noqa: ASYNC109 - the end of a watch
    ) -> AsyncGenerator[_Event]:
        """Events of streams that follow each other, until the time is up."""
        search = Search(self.calls, timeout)
        while search.left is None or search.left > 0:
            stream: AsyncGenerator[_Event] = method(request, timeout=search.left)
            merged.begin()
            try:
                async with aclosing(stream):
                    async for event in stream:
                        for told in merged.take(event):
                            yield told
            except HeddleError as error:
                if not error.told and error.code is grpc.StatusCode.DEADLINE_EXCEEDED:
                    return
                if not self.calls.reached or not may_pass(error):
                    raise
                if isinstance(error, Unreachable):
                    self.calls.note("lost", f"{error.message}: it is asked again and again")
            await self.calls.wire.sleep(min(PAUSE, search.left or PAUSE))


async def _pages(method: Callable[..., Any], request: Any) -> AsyncIterator[Any]:  # noqa: ANN401 - of any list
    """The pages of a list."""
    while True:
        page = await method(request)
        yield page
        if not page.next_page_token:
            return
        request.page_token = page.next_page_token


class Waiting:
    """Which jobs have yet to come as far as is wanted."""

    def __init__(
        self, state: placement_pb2.JobState.ValueType, jobs: Sequence[str | placement_pb2.Job]
    ) -> None:
        self._enough = (PLANNED, PROGRAMMED) if state == PLANNED else (state,)
        self._etags = {
            job.name.rpartition("/")[2]: job.etag for job in jobs if not isinstance(job, str)
        }
        self._names = [job if isinstance(job, str) else job.name.rpartition("/")[2] for job in jobs]
        self._jobs: dict[str, placement_pb2.Job] = {}
        self._synced = False

    def take(self, event: placement_pb2.JobEvent, *, degraded_ok: bool) -> None:
        """A job changed. Raises ``NotFound`` and ``Degraded``."""
        name = (event.job.name or event.deleted).rpartition("/")[2]
        if event.HasField("synced"):
            self._synced = True
        elif name not in self._names:
            return
        elif event.HasField("deleted"):
            raise NotFound(f"job {name!r} was deleted", code=grpc.StatusCode.NOT_FOUND)
        else:
            self._jobs[name] = event.job
            if self._is_meant(event.job) and not degraded_ok:
                self._check(event.job)
        for missing in self._names if self._synced else ():
            if missing not in self._jobs and missing not in self._etags:
                raise NotFound(f"there is no job {missing!r}", code=grpc.StatusCode.NOT_FOUND)

    @property
    def done(self) -> bool:
        """Whether all have come so far."""
        return not self._behind()

    @property
    def found(self) -> list[placement_pb2.Job]:
        """The jobs, in the order in which they were named."""
        return [self._jobs[name] for name in self._names]

    def why_not(self) -> str:
        """Which jobs are waited for, in words."""
        behind = self._behind()
        told = ", ".join(f"{name} {self._word(name)}" for name in behind[:3])
        more = f" and {len(behind) - 3} more" if behind[3:] else ""
        return f"jobs are not there yet: {told}{more}" if told else "nothing was told of the jobs"

    def _word(self, name: str) -> str:
        job = self._jobs.get(name)
        if job is None:
            return "is not known"
        if job.state == placement_pb2.JOB_STATE_DEGRADED:
            return f"is degraded: {job.reason}"
        return "is " + placement_pb2.JobState.Name(job.state).rpartition("_")[2].lower()

    def _behind(self) -> list[str]:
        return [
            name
            for name in self._names
            if name not in self._jobs
            or not self._is_meant(self._jobs[name])
            or self._jobs[name].state not in self._enough
        ]

    def _is_meant(self, job: placement_pb2.Job) -> bool:
        """Whether a job has the specification that was submitted, as far as that is known."""
        name = job.name.rpartition("/")[2]
        return self._etags.get(name, job.etag) == job.etag

    def _check(self, job: placement_pb2.Job) -> None:
        if job.state == placement_pb2.JOB_STATE_DEGRADED:
            name = job.name.rpartition("/")[2]
            raise Degraded(f"job {name!r} is degraded: {job.reason}")
