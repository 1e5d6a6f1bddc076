"""PlacementService: jobs and their states, recommended placements, and reservations."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from grpc import aio
from typing_extensions import override

from heddle.v1 import placement_pb2 as pb
from heddle.v1.placement_pb2_grpc import PlacementServiceServicer
from heddle_controller.model.errors import Problem
from heddle_controller.model.job import SUPPOSED
from heddle_controller.planner.advice import order_ranks, recommend
from heddle_controller.planner.port import Advisor
from heddle_controller.reconcile.observations import Observations
from heddle_controller.serve.codec import job as codec
from heddle_controller.serve.codec import names
from heddle_controller.serve.codec import placement as placements
from heddle_controller.serve.request import page, request_of, version_without
from heddle_controller.serve.watch import Changes
from heddle_controller.serve.what_if import check_free
from heddle_controller.state.admission import admit_job
from heddle_controller.state.errors import FailedPrecondition
from heddle_controller.state.records import Intent, JobRecord
from heddle_controller.store.store import Store

_Context = aio.ServicerContext[Any, Any]
_COMPARING_SECONDS = 30.0
"""Most seconds for plans to compare orders of ranks by; half of what a call may take."""


class PlacementService(PlacementServiceServicer):
    """Serves jobs, placements and reservations from the store; see placement.proto."""

    def __init__(
        self,
        store: Store,
        changes: Changes,
        advisor: Advisor,
        observations: Observations,
    ) -> None:
        """``advisor`` computes the plans that jobs would have."""
        self._observations = observations
        self._store = store
        self._changes = changes
        self._advisor = advisor

    @override
    async def SubmitJob(self, request: pb.SubmitJobRequest, context: _Context) -> pb.Job:
        """Add a job; it is durable before the answer."""
        fabric = names.fabric_name.fabric(request.parent, "parent")
        asked = request_of(request.request_id)
        job = codec.job_from_pb(names.check_id(request.job_id, "job_id"), request.spec)
        return codec.job_record_to_pb(
            fabric,
            await self._store.submit_job(
                fabric, job, reservation=request.reservation, request=asked
            ),
        )

    @override
    async def GetJob(self, request: pb.GetJobRequest, context: _Context) -> pb.Job:
        """Get one job."""
        fabric, job = names.job_name.parse(request.name, "name")
        return codec.job_record_to_pb(fabric, await self._store.get_job(fabric, job))

    @override
    async def ListJobs(self, request: pb.ListJobsRequest, context: _Context) -> pb.ListJobsResponse:
        """List jobs by name."""
        fabric = names.fabric_name.fabric(request.parent, "parent")
        collection = f"jobs/{fabric}"
        part = page(collection, request, default=100, ceiling=1000)
        found = await self._store.list_jobs(fabric, after=part.after, limit=part.size + 1)
        more = len(found) > part.size
        return pb.ListJobsResponse(
            jobs=await asyncio.to_thread(_jobs, fabric, found[: part.size]),
            next_page_token=part.token(found[part.size - 1].job.name) if more else "",
        )

    @override
    async def UpdateJob(self, request: pb.UpdateJobRequest, context: _Context) -> pb.Job:
        """Replace a job's specification, or submit it; its state becomes ACCEPTED."""
        fabric, name = names.job_name.parse(request.name, "name")
        asked = request_of(request.request_id)
        job = codec.job_from_pb(name, request.spec)
        record = await self._store.update_job(
            fabric,
            job,
            etag=request.etag,
            reservation=request.reservation,
            allow_missing=request.allow_missing,
            request=asked,
        )
        return codec.job_record_to_pb(fabric, record)

    @override
    async def DeleteJob(
        self, request: pb.DeleteJobRequest, context: _Context
    ) -> pb.DeleteJobResponse:
        """Delete a job and free its hosts; its routes stay until the next plan."""
        fabric, name = names.job_name.parse(request.name, "name")
        asked = request_of(request.request_id)
        await self._store.delete_job(fabric, name, etag=request.etag, request=asked)
        version = await version_without(self._store, fabric)
        return pb.DeleteJobResponse(intent_version=version)

    @override
    async def WatchJobs(
        self, request: pb.WatchJobsRequest, context: _Context
    ) -> AsyncIterator[pb.JobEvent]:
        """Yield every job, ``synced``, and then each job that changes or is deleted."""
        fabric = names.fabric_name.fabric(request.parent, "parent")
        before: dict[str, JobRecord] | None = None
        async with aclosing(self._changes.watch(fabric)) as changes:
            async for _ in changes:
                records = await self._store.list_jobs(fabric)
                known = before or {}
                for event in await asyncio.to_thread(_difference, fabric, known, records):
                    yield event
                if before is None:
                    yield pb.JobEvent(synced=True)
                before = {record.job.name: record for record in records}

    async def _intent(self, fabric: str) -> Intent:
        """Return the intent, with the flows that counters found and nobody announced."""
        intent = await self._store.intent(fabric)
        return self._observations.of(fabric).with_unannounced(intent)

    @override
    async def OrderRanks(
        self, request: pb.OrderRanksRequest, context: _Context
    ) -> pb.OrderRanksResponse:
        """Find the best order of a job's ranks by computing plans; nothing is committed."""
        fabric = names.fabric_name.fabric(request.parent, "parent")
        name = names.check_id(request.replaces, "replaces") if request.replaces else SUPPOSED
        job = replace(codec.job_from_pb(name, request.spec), suspended=False)
        intent = await self._intent(fabric)
        await asyncio.to_thread(admit_job, intent.fabric, job)
        check_free(job, intent.jobs, "give other hosts, or say that it is replaced")
        committed = await self._store.committed(fabric)
        standing = committed.plan if committed is not None else None
        seconds = min((context.time_remaining() or math.inf) / 2, _COMPARING_SECONDS)
        found = await order_ranks(self._advisor, intent, job, standing, seconds)
        return pb.OrderRanksResponse(
            hosts=found.hosts,
            score=placements.score_to_pb(found.score),
            alphabetical=placements.score_to_pb(found.alphabetical),
            gpus=codec.gpus_to_pb(job.on(found.hosts).gpus),
        )

    @override
    async def RecommendPlacement(
        self, request: pb.RecommendPlacementRequest, context: _Context
    ) -> pb.RecommendPlacementResponse:
        """Recommend hosts for a job by computing plans; cancelling the call stops the work."""
        fabric = names.fabric_name.fabric(request.parent, "parent")
        intent = await self._intent(fabric)
        reserved = await self._store.list_reservations(fabric)
        ask = await asyncio.to_thread(placements.ask_from_pb, request, intent, reserved)
        await asyncio.to_thread(admit_job, intent.fabric, ask.job)
        committed = await self._store.committed(fabric)
        standing = committed.plan if committed is not None else None
        found = await recommend(self._advisor, intent, ask, standing)
        if found.refused:
            raise FailedPrecondition("request", Problem("host_count", found.refused))
        return await asyncio.to_thread(placements.recommendation_to_pb, found, intent.fabric)

    @override
    async def ReservePlacement(
        self, request: pb.ReservePlacementRequest, context: _Context
    ) -> pb.Reservation:
        """Reserve hosts; the reservation is durable before the answer."""
        fabric = names.fabric_name.fabric(request.parent, "parent")
        asked = request_of(request.request_id)
        name = names.check_id(request.reservation_id, "reservation_id")
        found = await self._store.reserve(
            fabric,
            name,
            tuple(request.hosts),
            request.seconds,
            gpus=codec.gpus_from_pb(request.gpus, len(request.hosts)),
            request=asked,
        )
        return placements.reservation_to_pb(fabric, found)

    @override
    async def ListReservations(
        self, request: pb.ListReservationsRequest, context: _Context
    ) -> pb.ListReservationsResponse:
        """List reservations by name."""
        fabric = names.fabric_name.fabric(request.parent, "parent")
        found = await self._store.list_reservations(fabric)
        return pb.ListReservationsResponse(
            reservations=[placements.reservation_to_pb(fabric, one) for one in found]
        )

    @override
    async def ReleasePlacement(
        self, request: pb.ReleasePlacementRequest, context: _Context
    ) -> pb.ReleasePlacementResponse:
        """End a reservation; its hosts are free before the answer."""
        fabric, name = names.reservation_name.parse(request.name, "name")
        await self._store.release(fabric, name, request=request_of(request.request_id))
        return pb.ReleasePlacementResponse()


def _jobs(fabric: str, records: Sequence[JobRecord]) -> list[pb.Job]:
    return [codec.job_record_to_pb(fabric, record) for record in records]


def _difference(
    fabric: str, before: dict[str, JobRecord], records: Sequence[JobRecord]
) -> list[pb.JobEvent]:
    """Return the events for a watcher that has seen ``before``."""
    now = {record.job.name for record in records}
    gone = [pb.JobEvent(deleted=names.job_name(fabric, name)) for name in before if name not in now]
    return gone + [
        pb.JobEvent(job=codec.job_record_to_pb(fabric, record))
        for record in records
        if before.get(record.job.name) != record
    ]
