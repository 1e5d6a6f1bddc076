"""The store: applies the rules of ``state`` to either kind of database.

A write is decided on what this controller knows and then applied. If the data it was decided on has
changed meanwhile, it is decided again. A refusal ("there is no such job") counts only if it was
decided on the current content of the database; before that, this controller may just be behind.

- *Leadership* covers the whole store. A controller waits for it, gets an epoch that only grows, and
  may lose it. Every write of the leader carries the epoch and is refused with ``StaleEpoch`` once
  there is a newer one.
- *Changes* are announced as names of fabrics. They are coalesced and may repeat, and never say what
  changed: a listener reads the current state.
- *Writes of intent* take a ``Request``. If the same request came before under the same id, the
  first answer is returned and nothing is written. The same id with a different request raises
  ``RequestReused``. Each change adds one record to the audit trail, in the same transaction.
- A job, a reservation or a demand set must fit its fabric, and a new fabric must fit all that
  runs. This may take long to check, so it is checked before a write is decided. The write takes
  effect only if what was checked has not changed since.
- Every method raises ``Unavailable`` when the database cannot be reached or written.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from heddle_controller.model.demand import Demands, resolve
from heddle_controller.model.errors import InputError
from heddle_controller.model.fabric import Fabric, State, Structure
from heddle_controller.model.job import Gpus, Job
from heddle_controller.model.plan import Certificate, Plan
from heddle_controller.model.program import Program
from heddle_controller.state import demands as demand_rules
from heddle_controller.state import fabrics, jobs, plans
from heddle_controller.state.admission import admit_fabric, admit_job, admit_reservation
from heddle_controller.state.audit import AuditPage
from heddle_controller.state.codec.intent import (
    job_json,
    pack_structure,
    parse_link,
    parse_record,
    parse_summary,
)
from heddle_controller.state.codec.plans import PlanPacker, Whole, pack_delta
from heddle_controller.state.deletion import delete_fabric
from heddle_controller.state.errors import PortError, RequestReused, StaleEpoch, Unavailable
from heddle_controller.state.records import (
    Committed,
    DemandRecord,
    FabricRecord,
    FabricSummary,
    Intent,
    JobFacts,
    JobRecord,
    LinkName,
    LinkRecord,
    PlanFacts,
    PlanSummary,
    Programmed,
    Request,
    Reservation,
    Rollback,
    SwitchRecord,
    Versions,
)
from heddle_controller.state.view import (
    CHANGE_TIME,
    FINGERPRINT,
    GENERATION,
    INTENT_VERSION,
    NEITHER,
    NOBODY,
    REVISION,
    Ask,
    Blob,
    Change,
    Guard,
    Stamp,
    View,
    check_known,
    fingerprint,
)
from heddle_controller.store.applier import (
    Applier,
    Following,
    Leader,
    Tokens,
    heed_nobody,
)
from heddle_controller.store.large import LargeValues

_Answer = TypeVar("_Answer")
Decide = Callable[[View, Stamp], tuple[Change, _Answer]]
Needs = Callable[[View], Awaitable[Guard]]
"""Loads what a decision needs into memory, and makes checks that take long. Returns a guard that
holds while the data it looked at is unchanged."""
SMALL = 32
"""A job with at most this many ranks, hosts and collectives is checked in the event loop, because
handing it to a thread would take longer."""

NO_ASK = Ask()
_TRIES = 50
"""Most attempts of one write. It fails only if another write comes first each time."""
PATIENT = 3
"""Retries made without a pause. Later ones wait for a short random time first."""


class Store:
    """All data that must survive the controller, independent of the kind of database."""

    def __init__(self, applier: Applier, now: Callable[[], float] = time.time) -> None:
        self.applier = applier
        self._now = now
        self._new_token = Tokens()
        self._large = LargeValues(applier)
        self._packer = PlanPacker()
        self._noting: dict[str, asyncio.Lock] = {}
        """Lock of each fabric for writing facts. Concurrent writes of facts would only make each
        other's guards fail."""

    # Fabrics

    async def put_fabric(
        self,
        name: str,
        fabric: Fabric,
        *,
        title: str = "",
        etag: str = "",
        request: Request = NOBODY,
    ) -> FabricRecord:
        """Create a fabric, or replace it as a whole. Its states become the administrative ones.

        Args:
            name: Last part of its full name, "f1" of "fabrics/f1".
            fabric: The fabric with its administrative states.
            title: Free text for people.
            etag: If not empty, it must be the etag of the stored fabric.
            request: The caller and the id of its request.

        Raises:
            InputError: the name, the title or the fabric is not valid.
            Conflict: the etag differs, or an etag is given and there is no such fabric.
            FailedPrecondition: a job or a demand set needs what the new fabric lacks.
        """
        put = await asyncio.to_thread(
            fabrics.fabric_put,
            name,
            fabric,
            title=title,
            etag=etag,
            token=self._new_token(),
        )
        structures = self._large.structures
        record = await self._write(
            name,
            Ask(request, put.fingerprint),
            lambda view, stamp: fabrics.put_fabric(view, structures, put, stamp),
            put.decode,
            lambda view: self._admit_fabric(view, fabric),
        )
        structures.setdefault(put.packed.digest, record.fabric.structure)
        self._large.forget()
        return record

    async def delete_fabric(self, name: str, *, etag: str = "", request: Request = NOBODY) -> None:
        """Delete a fabric with all its plans. Its numbers go on if the name is put again.

        Raises:
            NotFound: there is no such fabric.
            Conflict: ``etag`` is given and differs.
            FailedPrecondition: it still has jobs, demand sets or reservations; the error names
                them.
        """
        ask = Ask(request, fingerprint("delete_fabric", name, etag))
        structures = self._large.structures
        await self._change(
            name, ask, lambda view, stamp: delete_fabric(view, structures, etag, stamp)
        )
        self._large.forget()

    async def get_fabric(self, name: str) -> FabricRecord:
        """Return a fabric. Raises ``NotFound``. Cheap, because structures are kept in memory."""
        return await self._record(await self._view(name))

    async def _record(self, view: View) -> FabricRecord:
        while True:
            await self._large.structure_of(view)
            with self._large.sound():
                if fabrics.meta_of(view).digest in self._large.structures:
                    return fabrics.record_of(view, self._large.structures)

    async def list_fabrics(self, *, after: str = "", limit: int = 0) -> Sequence[FabricSummary]:
        """List fabrics in order of their names, from the first one greater than ``after``.

        At most ``limit`` of them, or all if ``limit`` is 0.
        """
        await self.applier.fresh()
        names = [name for name in self.applier.fabrics() if name > after]
        views = [self.applier.view(name) for name in names[: limit or None]]
        return [(await self._record(view)).summary() for view in views]

    async def set_link_state(
        self,
        fabric: str,
        link: LinkName,
        state: State,
        *,
        etag: str = "",
        request: Request = NOBODY,
    ) -> LinkRecord:
        """Set a link's administrative state.

        Raises:
            NotFound: there is no such fabric or link.
            InputError: the link has no key, and there are several between its ends.
            Conflict: ``etag`` is given and is not that of the fabric.
        """
        ask = Ask(request, fingerprint("set_link_state", fabric, str(link), state.name, etag))
        structures = self._large.structures
        return await self._write(
            fabric,
            ask,
            lambda view, stamp: fabrics.set_link_state(
                view, structures, link, state, stamp, etag=etag
            ),
            parse_link,
        )

    async def set_switch_state(
        self,
        fabric: str,
        node: str,
        state: State,
        *,
        etag: str = "",
        request: Request = NOBODY,
    ) -> SwitchRecord:
        """Set a switch's administrative state.

        Raises:
            NotFound: there is no such fabric, or ``node`` is not a switch of it.
            Conflict: ``etag`` is given and is not that of the fabric.
        """
        ask = Ask(request, fingerprint("set_switch_state", fabric, node, state.name, etag))
        answer, structures = SwitchRecord(node, state), self._large.structures

        def decide(view: View, stamp: Stamp) -> tuple[Change, SwitchRecord]:
            return fabrics.set_switch_state(view, structures, node, state, stamp, etag=etag), answer

        return await self._write(fabric, ask, decide, lambda _: answer)

    async def set_overlay(
        self, fabric: str, *, withdrawn: bool, request: Request = NOBODY
    ) -> FabricSummary:
        """Make all switches of a fabric use only the underlay (``withdrawn``), or entries again.

        The setting stays when the fabric is replaced. If it is set already, nothing is written.
        Raises ``NotFound``.
        """
        ask = Ask(request, fingerprint("set_overlay", fabric, str(withdrawn)))
        structures = self._large.structures

        def decide(view: View, stamp: Stamp) -> tuple[Change, FabricSummary]:
            return fabrics.set_overlay(view, structures, stamp, withdrawn=withdrawn)

        return await self._write(fabric, ask, decide, parse_summary)

    async def roll_back(
        self, fabric: str, generation: int, seconds: float, *, request: Request = NOBODY
    ) -> Rollback:
        """Go back to an earlier plan and keep to it for some seconds.

        Raises:
            NotFound: the fabric does not exist, or the plan does not exist or is not kept any more.
            FailedPrecondition: the plan was made for other nodes or links.
        """
        ask = Ask(request, fingerprint("roll_back", fabric, str(generation), repr(seconds)))
        return await self._write(
            fabric,
            ask,
            lambda view, stamp: plans.roll_back(view, generation, seconds, stamp),
            plans.parse_rollback,
        )

    async def end_rollback(self, fabric: str, *, request: Request = NOBODY) -> None:
        """End a rollback. Raises ``NotFound``, also if there is none or it is over."""
        ask = Ask(request, fingerprint("end_rollback", fabric))
        await self._change(fabric, ask, plans.end_rollback)

    async def rollback(self, fabric: str) -> Rollback | None:
        """Return the current rollback of a fabric, or None. Raises ``NotFound``."""
        return await self._read(fabric, lambda view: plans.rollback_of(view, self._now()))

    # Jobs and demand sets

    async def submit_job(
        self,
        fabric: str,
        job: Job,
        *,
        reservation: str = "",
        request: Request = NOBODY,
    ) -> JobRecord:
        """Add a job. When this returns, it is ACCEPTED and stored durably.

        Args:
            fabric: Name of the fabric.
            job: The job's specification.
            reservation: Name of a reservation that the job redeems, which ends it. Empty for none.
            request: The caller and the id of its request.

        Raises:
            InputError: the job is not valid or does not fit the fabric.
            NotFound: there is no such fabric.
            AlreadyExists: a job has the name.
            FailedPrecondition: hosts are in use or reserved (the error names each, and by whom),
                the reservation is over, or a demand set has ids of the job's flows.
        """
        return await self._write(
            fabric,
            Ask(request, fingerprint("submit_job", fabric, job_json(job), reservation)),
            lambda view, stamp: jobs.submit_job(view, job, stamp, redeems=reservation),
            parse_record,
            self._job_fits(job),
        )

    async def get_job(self, fabric: str, job: str) -> JobRecord:
        """Return a job. Raises ``NotFound``."""
        return await self._read(fabric, lambda view: jobs.job_record(view, job))

    async def list_jobs(
        self, fabric: str, *, after: str = "", limit: int = 0
    ) -> Sequence[JobRecord]:
        """List jobs in order of their names, from the first one greater than ``after``.

        At most ``limit`` of them, or all if ``limit`` is 0.

        Raises:
            NotFound: there is no such fabric.
        """
        return await self._read(fabric, lambda view: jobs.jobs_of(view, after, limit))

    async def update_job(
        self,
        fabric: str,
        job: Job,
        *,
        etag: str = "",
        reservation: str = "",
        allow_missing: bool = False,
        request: Request = NOBODY,
    ) -> JobRecord:
        """Replace a job's specification. The job is ACCEPTED again and gets a new etag.

        If the specification is unchanged and no reservation is redeemed, the job is returned as
        it is, and nothing is written. With ``allow_missing`` and without ``etag``, a job that does
        not exist is submitted; see ``submit_job``.

        Raises:
            InputError: the job is not valid or does not fit the fabric.
            NotFound: there is no such fabric or job.
            Conflict: ``etag`` is given and differs.
            FailedPrecondition: hosts are in use by other jobs or reserved, or the reservation is
                over.
        """
        return await self._write(
            fabric,
            Ask(
                request,
                fingerprint(
                    "update_job", fabric, job_json(job), etag, reservation, str(allow_missing)
                ),
            ),
            lambda view, stamp: jobs.update_job(
                view, job, etag, stamp, redeems=reservation, allow_missing=allow_missing
            ),
            parse_record,
            self._job_fits(job),
        )

    async def reserve(
        self,
        fabric: str,
        name: str,
        hosts: Sequence[str],
        seconds: float,
        *,
        gpus: Sequence[Gpus] = (),
        request: Request = NOBODY,
    ) -> Reservation:
        """Reserve free hosts, or GPUs of them (``gpus``), for a future job.

        The reservation lasts for ``seconds`` by the clock of this controller.

        Raises:
            InputError: hosts, GPUs or seconds are not valid.
            NotFound: there is no such fabric.
            AlreadyExists: a reservation that is not over has the name.
            FailedPrecondition: hosts are in use or reserved; the error names each, and by whom.
        """

        def decide(view: View, stamp: Stamp) -> tuple[Change, Reservation]:
            end = stamp.now + seconds
            wanted = Reservation(name, tuple(hosts), stamp.now, end, tuple(gpus))
            return jobs.reserve_hosts(view, wanted, stamp)

        parts = [repr(part) for part in gpus]
        ask = Ask(request, fingerprint("reserve", fabric, name, repr(seconds), *hosts, *parts))
        fits = self._fits(lambda found: admit_reservation(found, name, hosts, gpus, seconds))
        return await self._write(fabric, ask, decide, jobs.parse_reservation, fits)

    async def list_reservations(self, fabric: str) -> Sequence[Reservation]:
        """List the reservations that are not over, by name. Raises ``NotFound``."""
        return await self._read(fabric, lambda view: jobs.reservations_of(view, self._now()))

    async def release(self, fabric: str, name: str, *, request: Request = NOBODY) -> None:
        """End a reservation. Raises ``NotFound``, also if it is already over."""
        ask = Ask(request, fingerprint("release", fabric, name))
        await self._change(fabric, ask, lambda view, now: jobs.release_hosts(view, name, now))

    async def delete_job(
        self, fabric: str, job: str, *, etag: str = "", request: Request = NOBODY
    ) -> None:
        """Delete a job, which frees its hosts. Raises ``NotFound``, ``Conflict``."""
        ask = Ask(request, fingerprint("delete_job", fabric, job, etag))
        await self._change(fabric, ask, lambda view, now: jobs.delete_job(view, job, etag, now))

    async def put_demands(
        self,
        fabric: str,
        name: str,
        demands: Demands,
        *,
        request: Request = NOBODY,
    ) -> DemandRecord:
        """Create a demand set, or replace it as a whole.

        If it is the same already, it is returned as it is, and nothing is written.

        Raises:
            InputError: the demands do not fit the fabric.
            NotFound: there is no such fabric.
            FailedPrecondition: the name is reserved, or ids of its flows belong to another set or
                to a job; see ``state.demands.id_problems``.
        """
        put = await asyncio.to_thread(
            demand_rules.demands_put, fabric, name, demands, self._new_token()
        )

        def decide(view: View, stamp: Stamp) -> tuple[Change, DemandRecord]:
            others = self._large.demands_of(view) or ()
            sets = [(one.name, one.demands) for one in others if one.name != name]
            return demand_rules.put_demands(view, sets, put, stamp)

        origin = f"demands {name!r}"
        fits = self._fits(lambda found: resolve(demands, found, origin=origin), aside=True)

        async def needs(view: View) -> Guard:
            ground = await fits(view)
            await self._all_demands(view)
            return ground

        ask = Ask(request, put.fingerprint)
        return await self._write(fabric, ask, decide, put.decode, needs)

    async def _all_demands(self, view: View) -> None:
        """Load all demand sets that a fabric has now into memory."""
        while not await self._large.load_demands(view) or self._large.demands_of(view) is None:
            self.applier.check()
            await self.applier.fresh()  # a set was replaced, and its old blob is gone

    async def get_demands(self, fabric: str, name: str) -> DemandRecord:
        """Return a demand set. Raises ``NotFound``."""
        while True:
            view = await self._view(fabric)
            with self._large.sound():
                wanted = demand_rules.demand_set(view, name)
            if await self._large.load_set(wanted.blob):
                demands = self._large.demands[wanted.blob]
                return DemandRecord(name, demands, wanted.etag, wanted.update_time)

    async def delete_demands(self, fabric: str, name: str, *, request: Request = NOBODY) -> None:
        """Delete a demand set. Raises ``NotFound``."""
        ask = Ask(request, fingerprint("delete_demands", fabric, name))
        await self._change(
            fabric, ask, lambda view, now: demand_rules.delete_demands(view, name, now)
        )

    # What the loop reads and writes

    async def intent(self, fabric: str) -> Intent:
        """Return a consistent snapshot of all that is wanted of a fabric. Raises ``NotFound``."""
        while True:
            view = await self._view(fabric)
            await self._large.structure_of(view)
            await self._large.load_demands(view)
            with self._large.sound():  # no await from here on, so all is of one moment
                sets = self._large.demands_of(view)
                if sets is None or fabrics.meta_of(view).digest not in self._large.structures:
                    continue
                record = fabrics.record_of(view, self._large.structures)
                return Intent(
                    name=fabric,
                    version=view.number(INTENT_VERSION),
                    change_time=float(view.raw(CHANGE_TIME) or 0.0),
                    revision=record.revision,
                    fabric=record.fabric,
                    jobs=tuple(jobs.jobs_of(view)),
                    demands=sets,
                    overlay=record.overlay,
                    rollback=plans.rollback_of(view, self._now()),
                )

    async def versions(self, fabric: str) -> Versions:
        """Return the version numbers of a fabric, which is cheap. Raises ``NotFound``."""
        return (await self._view(fabric)).versions()

    async def commit(
        self,
        fabric: str,
        *,
        epoch: int,
        expected_generation: int,
        plan: Plan,
        program: Program,
        facts: PlanFacts,
    ) -> Committed:
        """Make a plan and its program the newest of the fabric, in one step.

        ``program.generation`` must be ``expected_generation + 1``, and ``program.epoch`` must be
        ``epoch``. The store keeps some older plans (``state.plans.KEPT``) and drops the rest.

        Raises:
            ValueError: epoch or generation of the program are not as above.
            NotFound: there is no such fabric.
            StaleEpoch: the epoch is not the newest.
            StaleGeneration: the newest plan is not ``expected_generation`` (0 means no plan).
        """
        if (program.epoch, program.generation) != (epoch, expected_generation + 1):
            raise ValueError(
                f"program of epoch {program.epoch}, generation {program.generation} committed "
                f"with epoch {epoch} after generation {expected_generation}"
            )
        made = Committed(plan, program, facts, Programmed())
        delta = await self._delta(fabric, (plan, program), expected_generation)
        try:
            return await self._commit(fabric, made, delta)
        except plans.UnknownBaseError:
            return await self._commit(fabric, made, None)

    async def _delta(
        self, fabric: str, made: Whole, generation: int
    ) -> tuple[bytes, plans.PlanRow] | None:
        """Return the plan as a delta to the newest plan, and the newest plan's row.

        ``generation`` is that of the newest plan. None if the plan must be written whole.
        """
        held = self._large.plans.get(fabric)
        with self._large.sound():
            row = plans.plan_row(self.applier.view(fabric), generation)
        if held is None or row is None or row.is_full or row.blobs != held[0]:
            return None
        body = await asyncio.to_thread(pack_delta, made, held[1])
        return None if body is None else (body, row)

    async def _commit(
        self, fabric: str, made: Committed, delta: tuple[bytes, plans.PlanRow] | None
    ) -> Committed:
        """Write a plan as a delta to the one before, or whole if there is no delta."""
        plan, program = made.plan, made.program
        body = delta[0] if delta else await asyncio.to_thread(self._packer.pack, plan, program)
        blob = Blob(f"plan-{self._new_token()}", body)
        digest, structure = await self._named(plan.fabric.structure, fabric)
        switches = await self._come_and_gone(fabric, plan)
        before = delta[1].blobs if delta else ()

        def decide(view: View, stamp: Stamp) -> tuple[Change, PlanFacts]:
            check_known(view)
            self._check_epoch(program.epoch)
            meta, facts = fabrics.meta_of(view), replace(made.facts, commit_time=stamp.now)
            on = Blob(meta.blob, None) if meta.digest == digest else structure
            row = plans.PlanRow((blob.id,), on.id, digest, len(body))
            if delta is not None:
                row = replace(delta[1].with_delta(blob.id, len(body)), structure=on.id)
            keep = (blob, on, *(Blob(one, None) for one in before))
            summary = _summary(plan, program, facts)
            return plans.commit(view, row, summary, keep, stamp, switches=switches), facts

        facts = await self._write(fabric, NO_ASK, decide)
        self._large.keep_plan(fabric, (*before, blob.id), (plan, program))
        return self._as_committed(self.applier.view(fabric), (plan, program), facts)

    async def _come_and_gone(self, fabric: str, plan: Plan) -> tuple[list[str], list[str]]:
        """Return the programmed switches that are new since the last plan, and those now gone."""
        held = self._large.plans.get(fabric)
        newest = None if held else await self.committed(fabric)
        before = held[1][0] if held else newest.plan if newest else None
        if before is None or before.fabric.structure is plan.fabric.structure:
            return [], []
        old, new = (
            {
                one.fabric.structure.nodes.ids[row]
                for row in one.fabric.structure.programmed.tolist()
            }
            for one in (before, plan)
        )
        return sorted(new - old), sorted(old - new)

    async def _named(self, structure: Structure, fabric: str) -> tuple[str, Blob]:
        """Return the digest of a structure, and a blob with it.

        If it is the very structure that the fabric has, its digest is known. Hashing it would take
        long, so the blob then has no body.
        """
        view = self.applier.view(fabric)
        current = fabrics.meta_of(view).digest if view.known else ""
        if self._large.structures.get(current) is structure:
            return current, Blob(f"structure-{self._new_token()}", None)
        packed = await asyncio.to_thread(pack_structure, structure, f"fabric {fabric!r}")
        return packed.digest, Blob(f"structure-{self._new_token()}", packed.body)

    def _check_epoch(self, epoch: int) -> None:
        if self.applier.epoch != epoch:
            raise StaleEpoch(epoch, self.applier.epoch)

    def _as_committed(self, view: View, made: Whole, facts: PlanFacts) -> Committed:
        return Committed(*made, facts, plans.programmed(view), view.number(plans.KEPT_FOR))

    async def certify(
        self,
        fabric: str,
        *,
        epoch: int,
        generation: int,
        certificate: Certificate,
        in_haste: bool = False,
    ) -> bool:
        """Give the newest plan a better certificate, and change nothing else.

        The plan is stored whole again, or as a delta with ``in_haste``, which is faster.

        Returns:
            Whether it was done. It is not if the newest plan is of another generation.

        Raises:
            NotFound: there is no such fabric.
            StaleEpoch: the epoch is not the newest.
        """
        committed = await self.committed(fabric)
        if committed is None or committed.generation != generation:
            self.applier.check()
            self._check_epoch(epoch)
            return False
        made = replace(committed.plan, certificate=certificate), committed.program
        delta = await self._delta(fabric, made, generation) if in_haste else None
        try:
            return await self._rewrite(fabric, epoch, made, delta)
        except plans.UnknownBaseError:
            return await self._rewrite(fabric, epoch, made)

    async def compact(self, fabric: str, *, epoch: int) -> None:
        """Store the newest plan whole if many deltas have followed the last whole one.

        Meant for quiet times.

        Raises:
            NotFound: there is no such fabric.
            StaleEpoch: the epoch is not the newest.
        """
        committed = await self.committed(fabric)
        if committed is None:
            return
        with self._large.sound():
            row = plans.plan_row(self.applier.view(fabric), committed.generation)
        if row is not None and row.is_long:
            await self._rewrite(fabric, epoch, (committed.plan, committed.program))

    async def _rewrite(
        self,
        fabric: str,
        epoch: int,
        made: Whole,
        delta: tuple[bytes, plans.PlanRow] | None = None,
    ) -> bool:
        """Replace the stored newest plan by this one, whole or as a delta.

        Returns whether it was done. It is not if another plan is the newest by now.
        """
        plan, program = made
        self.applier.check()
        self._check_epoch(epoch)
        body = delta[0] if delta else await asyncio.to_thread(self._packer.pack, plan, program)
        blob, after = Blob(f"plan-{self._new_token()}", body), delta[1].blobs if delta else ()

        def decide(view: View, stamp: Stamp) -> tuple[Change, bool]:
            check_known(view)
            self._check_epoch(epoch)
            change = plans.replace_newest(
                view,
                blob,
                stamp,
                epoch=epoch,
                generation=program.generation,
                bound=plan.certificate.lower_bound,
                after=after,
            )
            if change is None:
                return Change(fabric, NEITHER, stamp.now, (view.guard(GENERATION),)), False
            return change, True

        done = await self._write(fabric, NO_ASK, decide)
        if done:
            self._large.keep_plan(fabric, (*after, blob.id), made)
        return done

    async def committed(self, fabric: str, generation: int = 0) -> Committed | None:
        """Return the newest plan, or that of a generation. None if there is none or no more.

        Raises ``NotFound`` for the fabric.
        """
        while True:
            view = await self._view(fabric)
            with self._large.sound():
                wanted = generation or view.number(GENERATION)
                row, summary = plans.plan_row(view, wanted), plans.plan_summary(view, wanted)
            if row is None or summary is None:
                return None
            found = await self._large.plan(fabric, row, newest=not generation)
            if found is not None:
                return self._as_committed(view, found, summary.facts)

    async def plan_summaries(
        self, fabric: str, *, below: int = 0, limit: int = 0
    ) -> Sequence[PlanSummary]:
        """Return summaries of plans below a generation (0: all), newest first.

        Only plans that the store remembers (``state.plans.REMEMBERED``), and at most ``limit`` of
        them if it is not 0.
        """
        return await self._read(
            fabric, lambda view: plans.plan_summaries(view, below, limit or plans.REMEMBERED)
        )

    async def record_programmed(self, fabric: str, *, epoch: int, programmed: Programmed) -> None:
        """Note which generation each switch holds completely, as its FIB acks say.

        If a newer generation is already noted for a switch, that one stays.

        Raises:
            StaleEpoch: the epoch is not the newest.
        """
        await self._note(
            fabric, lambda view, stamp: plans.record_programmed(view, epoch, programmed, stamp)
        )

    async def record_kept(self, fabric: str, *, epoch: int, version: int) -> None:
        """Note that the newest plan, unchanged, also serves this version of the intent.

        A version older than the one noted changes nothing.

        Raises:
            StaleEpoch: the epoch is not the newest.
        """
        await self._note(fabric, lambda view, stamp: plans.record_kept(view, epoch, version, stamp))

    async def record_jobs(self, fabric: str, *, epoch: int, facts: Mapping[str, JobFacts]) -> None:
        """Note how far jobs have come, by job name.

        Facts are dropped if their etag is not that of the stored specification, or if the job is
        gone.

        Raises:
            StaleEpoch: the epoch is not the newest.
        """
        await self._note(fabric, lambda view, stamp: plans.record_jobs(view, epoch, facts, stamp))

    async def _note(self, fabric: str, decide: Callable[[View, Stamp], Change]) -> None:
        """Write facts. Raises ``StaleEpoch``, ``NotFound``."""
        async with self._noting.setdefault(fabric, asyncio.Lock()):
            await self._change(fabric, NO_ASK, decide)

    # How a write is made

    async def _view(self, fabric: str) -> View:
        """Return a view of a fabric: current, or the last known one while the store is away.

        Raises ``NotFound``.
        """
        await self.applier.fresh()
        view = self.applier.view(fabric)
        check_known(view)
        return view

    async def _read(self, fabric: str, look: Callable[[View], _Answer]) -> _Answer:
        """Return what ``look`` finds in the view of a fabric. Raises ``NotFound``."""
        view = await self._view(fabric)
        with self._large.sound():
            return look(view)

    async def _change(self, fabric: str, ask: Ask, decide: Callable[[View, Stamp], Change]) -> None:
        """Make a change that has no answer. Raises like ``_write``."""
        await self._write(fabric, ask, lambda view, now: (decide(view, now), None), lambda _: None)

    async def _write(
        self,
        fabric: str,
        ask: Ask,
        decide: Decide[_Answer],
        decode: Callable[[bytes], _Answer] | None = None,
        needs: Needs | None = None,
    ) -> _Answer:
        """Make the change of a fabric that ``decide`` returns, and return its answer.

        Args:
            fabric: Name of the fabric.
            ask: The request that the change answers.
            decide: Returns the change and its answer, or raises a refusal.
            decode: Reads the stored answer, if the same request was done before.
            needs: Makes checks that take long, before ``decide``; see ``Needs``.

        Raises:
            StaleEpoch: the change is of a leader that has been replaced.
            RequestReused: the request's id was used for a different request.
            Unavailable: the database is away, and the change may or may not have been made; or
                other writes came first in every attempt.
        """
        current = False
        for turn in range(_TRIES):
            if turn > PATIENT:
                await asyncio.sleep(random.uniform(0, 0.002 * turn))  # noqa: S311 - no secret
            try:
                change, answer = await self._decided(fabric, ask.request, decide, needs)
            except (PortError, InputError):
                self.applier.check()
                if current:
                    raise
                await self.applier.fresh()
                current = True
                before = await self.applier.remembered(ask.request.id) if ask.request.id else None
                if before is not None and decode is not None:
                    return decode(_same(ask, before))
                continue
            outcome = await self.applier.apply(change, ask)
            if outcome.kind == "done":
                return answer
            if outcome.kind == "epoch":
                raise StaleEpoch(change.epoch or 0, outcome.number)
            if outcome.kind == "replay" and decode is not None:
                return decode(_same(ask, outcome.answer))
            await self.applier.fresh()
            current = True
        raise Unavailable(f"store {self.applier.name}: fabrics/{fabric} changes all the time")

    async def _decided(
        self,
        fabric: str,
        request: Request,
        decide: Decide[_Answer],
        needs: Needs | None,
    ) -> tuple[Change, _Answer]:
        view = self.applier.view(fabric)
        while True:
            await self._large.structure_of(view)
            grounds = [await needs(view)] if needs is not None else []
            with self._large.sound():  # no await from here on, so all is of one moment
                if view.known and fabrics.meta_of(view).digest not in self._large.structures:
                    continue
                change, answer = decide(view, Stamp(self._now(), self._new_token(), request))
                return replace(change, guards=(*grounds, *change.guards)), answer

    # Whether what is asked for fits

    def _job_fits(self, job: Job) -> Needs:
        most = max(job.rank_count, len(job.hosts), len(job.collectives))
        return self._fits(lambda fabric: admit_job(fabric, job), aside=most > SMALL)

    def _fits(self, check: Callable[[Fabric], object], *, aside: bool = False) -> Needs:
        """Return a ``Needs`` that checks a request against the fabric, once per revision of it.

        Args:
            check: Raises ``InputError`` if the request does not fit the fabric.
            aside: Whether to run the check in a thread, because it may take long.
        """
        checked = 0

        async def needs(view: View) -> Guard:
            nonlocal checked
            check_known(view)
            record = await self._record(view)
            if record.revision != checked:
                if aside:
                    await asyncio.to_thread(check, record.fabric)
                else:
                    check(record.fabric)
                checked = record.revision
            return REVISION, str(checked).encode()

        return needs

    async def _admit_fabric(self, view: View, fabric: Fabric) -> Guard:
        """Check that a new fabric fits the jobs and demand sets of the one that it replaces."""
        if view.known:
            await self._all_demands(view)
        ground = view.guard(INTENT_VERSION)
        with self._large.sound():
            wanted = jobs.jobs_of(view), self._large.demands_of(view) or ()
        await asyncio.to_thread(admit_fabric, view.name, fabric, *wanted)
        return ground

    # What the applier does by itself

    async def changes(self, *, facts: bool = False) -> AsyncIterator[str]:
        """Yield names of fabrics whose intent (with ``facts``, also facts) may have changed.

        Yields every fabric once at the start, and then a name after each write. Names that were
        not yet taken are coalesced. Ends when the store is closed.
        """
        feed = self.applier.feed
        inbox = feed.open(minor=facts)
        try:
            await self.applier.fresh()
            for fabric in self.applier.fabrics():
                inbox.tell(fabric, fabric)
            async for name in inbox.news():
                yield name
        finally:
            feed.shut(inbox)

    async def follow(self, look: Callable[[str], Awaitable[object]], *, facts: bool = True) -> None:
        """Call ``look`` with every fabric, and again when one may have changed, until closed.

        Starts over after a pause when the store cannot be reached. ``look`` may also raise
        ``Unavailable`` for that.
        """
        while True:
            try:
                async for fabric in self.changes(facts=facts):
                    await look(fabric)
            except Unavailable as error:
                await asyncio.sleep(error.retry_after)
            else:
                return

    async def audit(self, *, after: int = 0, limit: int = 0) -> AuditPage:
        """Delegate to ``Applier.audit``."""
        with self._large.sound():
            return await self.applier.audit(after=after, limit=limit)

    async def acquire_leadership(
        self, holder: str, *, above: int = 0, following: Following = heed_nobody
    ) -> int:
        """Delegate to ``Applier.acquire_leadership``."""
        return await self.applier.acquire_leadership(holder, above=above, following=following)

    async def leadership_lost(self, epoch: int) -> None:
        """Delegate to ``Applier.leadership_lost``."""
        await self.applier.leadership_lost(epoch)

    async def release_leadership(self, epoch: int) -> None:
        """Delegate to ``Applier.release_leadership``."""
        await self.applier.release_leadership(epoch)

    def leads(self, epoch: int) -> bool:
        """Delegate to ``Applier.leads``."""
        return self.applier.leads(epoch)

    async def leader(self) -> Leader:
        """Delegate to ``Applier.leader``."""
        return await self.applier.leader()

    def stale_for(self) -> float:
        """Delegate to ``Applier.stale_for``."""
        return self.applier.stale_for()

    def write_trouble(self) -> str:
        """Delegate to ``Applier.write_trouble``."""
        return self.applier.write_trouble()

    async def close(self) -> None:
        """Finish writes in progress, wake all waiters, and release the file or server."""
        await self.applier.close()


def _summary(plan: Plan, program: Program, facts: PlanFacts) -> PlanSummary:
    return PlanSummary(
        generation=program.generation,
        epoch=program.epoch,
        intent_version=program.intent_version,
        flow_count=len(plan.flows),
        unrouted_count=len(plan.unrouted),
        max_utilization=plan.certificate.max_utilization,
        lower_bound=plan.certificate.lower_bound,
        facts=facts,
    )


def _same(ask: Ask, remembered: bytes) -> bytes:
    """Return the remembered answer if it was given to the same request.

    Raises ``RequestReused`` otherwise.
    """
    if remembered[:FINGERPRINT].decode() != ask.fingerprint:
        raise RequestReused(ask.request.id)
    return remembered[FINGERPRINT:]
