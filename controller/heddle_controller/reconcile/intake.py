"""The door for intent: check against what is stored, then write, as one step.

serve calls this instead of the store's writes wherever a check needs more than
the record itself. The check names the revision or version it was made against;
should the store say that it has moved, the check is made again on the new state.

A repeated request answers as the first did even where it would be refused today:
a refused one is still shown to the store, against a ground that cannot be the
present one, so that it can be replayed but never written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from heddle_controller.model.demand import Demands, resolve
from heddle_controller.model.errors import MAX_TITLE, InputError, refuse, too_long
from heddle_controller.model.fabric import Fabric
from heddle_controller.model.job import Gpus, Job
from heddle_controller.reconcile.admission import (
    JobFlows,
    admit_fabric,
    admit_job,
    admit_reservation,
    check_name,
    check_request,
)
from heddle_controller.state.errors import FailedPrecondition, NotFound, StaleIntent
from heddle_controller.state.records import (
    DemandRecord,
    FabricRecord,
    JobRecord,
    Request,
    Reservation,
)
from heddle_controller.store.store import Store

_TRIES = 5
"""A fabric that is put again between check and write five times in a row is a client's loop."""

NOWHERE = -1
"""No revision and no version: what was checked against it can only be replayed."""

_Answer = TypeVar("_Answer")
_NOBODY = Request()


SMALL = 32
"""Ranks, and collectives, up to which a job is checked at once: that takes less than a turn in a
thread, for which others would have to wait too."""


class Intake:
    """Checked writes of intent; every method may raise what the store's may, and ``InputError``."""

    def __init__(self, store: Store, flows_of_job: JobFlows) -> None:
        self._store = store
        self.flows_of_job = flows_of_job

    async def put_fabric(
        self,
        name: str,
        fabric: Fabric,
        *,
        title: str = "",
        etag: str = "",
        request: Request = _NOBODY,
    ) -> FabricRecord:
        """Create or replace a fabric.

        Raises:
            FailedPrecondition: a job or a demand set needs what the new fabric lacks.
        """
        check_name("fabric", name)
        if len(title) > MAX_TITLE:
            raise refuse(f"fabric {name!r}", "title", too_long("it", len(title), MAX_TITLE))

        async def check() -> int:
            try:
                intent = await self._store.intent(name)
            except NotFound:
                return 0
            wanted = (intent.jobs, intent.demands, self.flows_of_job)
            await asyncio.to_thread(admit_fabric, name, fabric, *wanted)
            return intent.version

        async def write(version: int) -> FabricRecord:
            return await self._store.put_fabric(
                name, fabric, title=title, etag=etag, checked_version=version, request=request
            )

        return await _checked(check, write, request)

    async def submit_job(
        self, fabric: str, job: Job, *, reservation: str = "", request: Request = _NOBODY
    ) -> JobRecord:
        """Add a job that fits, and redeem a reservation if one is named."""

        async def write(revision: int) -> JobRecord:
            return await self._store.submit_job(
                fabric,
                job,
                checked_revision=revision,
                reservation=reservation,
                request=request,
            )

        return await _checked(lambda: self._check_job(fabric, job), write, request)

    async def update_job(
        self,
        fabric: str,
        job: Job,
        *,
        etag: str = "",
        reservation: str = "",
        request: Request = _NOBODY,
    ) -> JobRecord:
        """Replace the specification of a job by one that fits."""

        async def write(revision: int) -> JobRecord:
            return await self._store.update_job(
                fabric,
                job,
                checked_revision=revision,
                etag=etag,
                reservation=reservation,
                request=request,
            )

        return await _checked(lambda: self._check_job(fabric, job), write, request)

    async def _check_job(self, fabric: str, job: Job) -> int:
        record = await self._store.get_fabric(fabric)
        ranks = max(job.rank_count, len(job.hosts))
        if max(ranks, len(job.collectives)) <= SMALL:
            admit_job(record.fabric, job, self.flows_of_job)
        else:
            await asyncio.to_thread(admit_job, record.fabric, job, self.flows_of_job)
        return record.revision

    async def reserve(
        self,
        fabric: str,
        name: str,
        hosts: Sequence[str],
        seconds: float,
        *,
        gpus: Sequence[Gpus] = (),
        request: Request = _NOBODY,
    ) -> Reservation:
        """Keep hosts, or GPUs of them, that the fabric has and nobody else wants."""
        check_name("reservation", name)

        async def check() -> int:
            record = await self._store.get_fabric(fabric)
            admit_reservation(record.fabric, name, hosts, gpus, seconds)
            return record.revision

        async def write(revision: int) -> Reservation:
            return await self._store.reserve(
                fabric,
                name,
                hosts,
                seconds,
                gpus=gpus,
                checked_revision=revision,
                request=request,
            )

        return await _checked(check, write, request)

    async def put_demands(
        self, fabric: str, name: str, demands: Demands, *, request: Request = _NOBODY
    ) -> DemandRecord:
        """Set a demand set whose flows the fabric can have, and nobody else has.

        Raises:
            FailedPrecondition: ids of its flows are those of another set's, or of a job's.
        """
        check_name("demand set", name)

        async def check() -> int:
            record = await self._store.get_fabric(fabric)
            origin = f"demands {name!r}"
            await asyncio.to_thread(resolve, demands, record.fabric, origin=origin)
            return record.revision

        async def write(revision: int) -> DemandRecord:
            return await self._store.put_demands(
                fabric, name, demands, checked_revision=revision, request=request
            )

        return await _checked(check, write, request)


async def _checked(
    check: Callable[[], Awaitable[int]],
    write: Callable[[int], Awaitable[_Answer]],
    request: Request,
) -> _Answer:
    check_request(request)
    for _ in range(_TRIES - 1):
        try:
            return await _once(check, write, request)
        except StaleIntent:
            continue
    return await _once(check, write, request)


async def _once(
    check: Callable[[], Awaitable[int]],
    write: Callable[[int], Awaitable[_Answer]],
    request: Request,
) -> _Answer:
    try:
        ground = await check()
    except (InputError, FailedPrecondition) as refusal:
        if not request.id:
            raise
        try:
            return await write(NOWHERE)
        except StaleIntent:
            raise refusal from None
    return await write(ground)
