"""The store: the rules of ``state``, applied by whichever database there is.

A write is decided on what is known here, applied, and decided anew if that had moved. A
refusal ("there is no such job") is believed only when it was decided on what the database
has now; until then it may just be that this controller is behind.

- *Leadership* covers the whole store. It is waited for, has an epoch that only grows, and may
  be lost; every write of the leader carries the epoch and is refused with ``StaleEpoch`` once
  it is not the newest.
- *Changes* are names of fabrics, coalesced, possibly repeated, never the event: who hears one
  reads what is there now.
- *Writes of intent* take a ``Request``. Where its id has been seen for the same request, the
  first answer comes back and nothing is written. The same id with a different request raises
  ``RequestReused``. Each change adds one record to the audit trail, in its own transaction.
- A job, a reservation or a demand set has to fit its fabric, and a new fabric what runs. That
  may take long to find out, so it is found out before a write is decided, and the write holds
  only if what was looked at is still there.
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
from heddle_controller.state import fabrics, jobs, plans, reservations
from heddle_controller.state.admission import admit_fabric, admit_job, admit_reservation
from heddle_controller.state.audit import AuditPage
from heddle_controller.state.codec.deltas import Whole, pack_delta
from heddle_controller.state.codec.fabrics import pack_structure, parse_link, parse_summary
from heddle_controller.state.codec.jobs import job_json, parse_record
from heddle_controller.state.codec.plans import PlanPacker
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
"""Brings into memory what a decision looks at, and checks what takes long to check: a guard that
what it looked at is still there."""
SMALL = 32
"""Ranks, and collectives, up to which a job is checked at once: that takes less than a turn in a
thread, for which others would have to wait too."""

NO_ASK = Ask()
_TRIES = 50
"""Of one write; others have to come between as often for it to fail."""
PATIENT = 3
"""Tries that follow one another at once; later ones step aside for a moment."""


class Store:
    """All that must survive the controller, on a database of some kind."""

    def __init__(self, applier: Applier, now: Callable[[], float] = time.time) -> None:
        self.applier = applier
        self._now = now
        self._new_token = Tokens()
        self._large = LargeValues(applier)
        self._packer = PlanPacker()
        self._noting: dict[str, asyncio.Lock] = {}
        """Held by who writes facts, by fabric: of our own one at a time, as they would only come
        between each other."""

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
        """Create a fabric, or replace it whole; its states become the administrative ones.

        Args:
            name: Last part of "fabrics/f1".
            fabric: With its administrative states.
            title: Free text for people.
            etag: If not empty, must be that of the stored fabric.
            request: Who asks.

        Raises:
            Conflict: the etag is another, or there is no fabric to have it.
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
        self._large.forget_structures()
        return record

    async def get_fabric(self, name: str) -> FabricRecord:
        """Raises ``NotFound``. Cheap: structures are kept in memory."""
        return await self._record(await self._view(name))

    async def _record(self, view: View) -> FabricRecord:
        while True:
            await self._large.structure_of(view)
            with self._large.sound():
                if fabrics.meta_of(view).digest in self._large.structures:
                    return fabrics.record_of(view, self._large.structures)

    async def list_fabrics(self, *, after: str = "", limit: int = 0) -> Sequence[FabricSummary]:
        """Fabrics by name, those greater than ``after``, at most ``limit`` (0: all)."""
        await self.applier.fresh()
        names = [name for name in self.applier.fabrics() if name > after]
        views = [self.applier.view(name) for name in names[: limit or None]]
        return [(await self._record(view)).summary() for view in views]

    async def set_link_state(
        self, fabric: str, link: LinkName, state: State, *, request: Request = NOBODY
    ) -> LinkRecord:
        """Set the administrative state. Raises ``NotFound`` for fabric or link."""
        ask = Ask(request, fingerprint("set_link_state", fabric, str(link), state.name))
        structures = self._large.structures
        return await self._write(
            fabric,
            ask,
            lambda view, stamp: fabrics.set_link_state(view, structures, link, state, stamp),
            parse_link,
        )

    async def set_switch_state(
        self, fabric: str, node: str, state: State, *, request: Request = NOBODY
    ) -> SwitchRecord:
        """Set the administrative state. Raises ``NotFound`` for a fabric, an id, or a NIC's id."""
        ask = Ask(request, fingerprint("set_switch_state", fabric, node, state.name))
        answer, structures = SwitchRecord(node, state), self._large.structures

        def decide(view: View, stamp: Stamp) -> tuple[Change, SwitchRecord]:
            return fabrics.set_switch_state(view, structures, node, state, stamp), answer

        return await self._write(fabric, ask, decide, lambda _: answer)

    async def set_overlay(
        self, fabric: str, *, withdrawn: bool, request: Request = NOBODY
    ) -> FabricSummary:
        """Put the whole fabric on the underlay, or back on its entries.

        Kept when the fabric is put again. Asking for what is there already writes
        nothing. Raises ``NotFound``.
        """
        ask = Ask(request, fingerprint("set_overlay", fabric, str(withdrawn)))
        structures = self._large.structures

        def decide(view: View, stamp: Stamp) -> tuple[Change, FabricSummary]:
            return fabrics.set_overlay(view, structures, stamp, withdrawn=withdrawn)

        return await self._write(fabric, ask, decide, parse_summary)

    async def roll_back(
        self, fabric: str, generation: int, seconds: float, *, request: Request = NOBODY
    ) -> Rollback:
        """Keep to an earlier plan for so long.

        Raises:
            NotFound: there is no such fabric, or no such plan (any more).
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
        """Plan freely again. Raises ``NotFound``, also where there is no rollback (any more)."""
        ask = Ask(request, fingerprint("end_rollback", fabric))
        await self._change(fabric, ask, plans.end_rollback)

    async def rollback(self, fabric: str) -> Rollback | None:
        """The one that is not over."""
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
        """Add a job, ACCEPTED and durable on return.

        Args:
            fabric: Which fabric.
            job: Its specification.
            reservation: Name of one that the job redeems, and that ends with this; empty: none.
            request: Who asks.

        Raises:
            NotFound: there is no such fabric.
            AlreadyExists: a job has the name.
            FailedPrecondition: hosts are in use or reserved; names each, and by whom. Or the
                reservation is over, or a demand set has ids of its flows.
        """
        return await self._write(
            fabric,
            Ask(request, fingerprint("submit_job", fabric, job_json(job), reservation)),
            lambda view, stamp: jobs.submit_job(view, job, stamp, redeems=reservation),
            parse_record,
            self._job_fits(job),
        )

    async def get_job(self, fabric: str, job: str) -> JobRecord:
        """Raises ``NotFound``."""
        return await self._read(fabric, lambda view: jobs.job_record(view, job))

    async def list_jobs(
        self, fabric: str, *, after: str = "", limit: int = 0
    ) -> Sequence[JobRecord]:
        """Jobs by name, those greater than ``after``, at most ``limit`` (0: all).

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
        request: Request = NOBODY,
    ) -> JobRecord:
        """Replace a job's specification; it is ACCEPTED again, under a new etag.

        With the specification that it has, and no reservation to redeem, the job is answered as it
        stands, and nothing is written.

        Raises:
            NotFound: there is no such fabric or job.
            Conflict: the etag is another.
            FailedPrecondition: hosts are in use by other jobs or reserved, or the reservation is
                over.
        """
        return await self._write(
            fabric,
            Ask(request, fingerprint("update_job", fabric, job_json(job), etag, reservation)),
            lambda view, stamp: jobs.update_job(view, job, etag, stamp, redeems=reservation),
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
        """Keep free hosts, or GPUs of them, for a job to come, for so long by this store's clock.

        Raises:
            NotFound: there is no such fabric.
            AlreadyExists: a reservation that is not over has the name.
            FailedPrecondition: hosts are in use or reserved; names each, and by whom.
        """

        def decide(view: View, stamp: Stamp) -> tuple[Change, Reservation]:
            end = stamp.now + seconds
            wanted = Reservation(name, tuple(hosts), stamp.now, end, tuple(gpus))
            return reservations.reserve_hosts(view, wanted, stamp)

        parts = [repr(part) for part in gpus]
        ask = Ask(request, fingerprint("reserve", fabric, name, repr(seconds), *hosts, *parts))
        fits = self._fits(lambda found: admit_reservation(found, name, hosts, gpus, seconds))
        return await self._write(fabric, ask, decide, reservations.parse_reservation, fits)

    async def list_reservations(self, fabric: str) -> Sequence[Reservation]:
        """Those that are not over, by name. Raises ``NotFound``."""
        return await self._read(
            fabric, lambda view: reservations.reservations_of(view, self._now())
        )

    async def release(self, fabric: str, name: str, *, request: Request = NOBODY) -> None:
        """End a reservation. Raises ``NotFound``, also for one that is over."""
        ask = Ask(request, fingerprint("release", fabric, name))
        await self._change(
            fabric, ask, lambda view, now: reservations.release_hosts(view, name, now)
        )

    async def delete_job(
        self, fabric: str, job: str, *, etag: str = "", request: Request = NOBODY
    ) -> None:
        """Take a job away, and free its hosts. Raises ``NotFound``, ``Conflict``."""
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
        """Set a demand set whole; what it is already is answered as it stands.

        Raises:
            NotFound: there is no such fabric.
            FailedPrecondition: flows of another set have its ids, or a job's may; see
                ``ids.id_problems``.
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
        """Bring all sets that a fabric has now into memory."""
        while not await self._large.load_demands(view) or self._large.demands_of(view) is None:
            self.applier.check()
            await self.applier.fresh()  # one was put again, and the old one dropped

    async def get_demands(self, fabric: str, name: str) -> DemandRecord:
        """Raises ``NotFound``."""
        while True:
            view = await self._view(fabric)
            with self._large.sound():
                wanted = demand_rules.demand_set(view, name)
            if await self._large.load_set(wanted.blob):
                demands = self._large.demands[wanted.blob]
                return DemandRecord(name, demands, wanted.etag, wanted.update_time)

    async def delete_demands(self, fabric: str, name: str, *, request: Request = NOBODY) -> None:
        """Take a set away. Raises ``NotFound``."""
        ask = Ask(request, fingerprint("delete_demands", fabric, name))
        await self._change(
            fabric, ask, lambda view, now: demand_rules.delete_demands(view, name, now)
        )

    # What the loop reads and writes

    async def intent(self, fabric: str) -> Intent:
        """One consistent snapshot. Raises ``NotFound``."""
        while True:
            view = await self._view(fabric)
            await self._large.structure_of(view)
            await self._large.load_demands(view)
            with self._large.sound():  # nothing is awaited from here on: one moment
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
        """Cheap. Raises ``NotFound``."""
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
        """Make a plan the newest, in one step.

        ``program.generation`` is ``expected_generation + 1`` and ``program.epoch``
        is ``epoch``. A few older plans are kept, the rest is trimmed.

        Raises:
            NotFound: there is no such fabric.
            StaleEpoch: the epoch is not the newest.
            StaleGeneration: the newest plan is not ``expected_generation`` (0: none).
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
        """A plan as what it has otherwise than the newest, of a generation, and the row of that.

        None where it is to be written whole.
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
        """Write a plan, whole or as what it has otherwise than the one before."""
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
        """Switches that were not there in the plan before, and those that are there no more."""
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
        """The digest of a structure, by identity where it is known: hashing one takes long.

        And a blob of it, for where the fabric has another by now.
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
        """Give the newest plan a better certificate; nothing else of it changes.

        It is written whole, but in haste as what differs. Whether that was done: not if a plan of
        another generation is the newest.

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
        """Store the newest plan whole, where much was written since one was; for quiet times.

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
        """Put a plan in place of what is kept of the newest, unless another is that by now.

        Whole, or as what it has otherwise.
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
        """The newest plan, or that of a generation; None where there is none (any more)."""
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
        """Plans below a generation (0: all), newest first, as far as they are remembered."""
        return await self._read(
            fabric, lambda view: plans.plan_summaries(view, below, limit or plans.REMEMBERED)
        )

    async def record_programmed(self, fabric: str, *, epoch: int, programmed: Programmed) -> None:
        """Note which generation switches hold whole, by their FIB acks.

        Of a switch for which a newer one is noted that stays.

        Raises:
            StaleEpoch: the epoch is not the newest.
        """
        await self._note(
            fabric, lambda view, stamp: plans.record_programmed(view, epoch, programmed, stamp)
        )

    async def record_kept(self, fabric: str, *, epoch: int, version: int) -> None:
        """Note that the newest plan answers to this version of the intent as it stands.

        An older version than the one noted changes nothing.

        Raises:
            StaleEpoch: the epoch is not the newest.
        """
        await self._note(fabric, lambda view, stamp: plans.record_kept(view, epoch, version, stamp))

    async def record_jobs(self, fabric: str, *, epoch: int, facts: Mapping[str, JobFacts]) -> None:
        """Note how far jobs have come, by job name.

        Facts whose etag is not that of the stored specification, and facts of jobs
        that are gone, are dropped.

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
        """A fabric as it is now, or as it was known last. Raises ``NotFound``."""
        await self.applier.fresh()
        view = self.applier.view(fabric)
        check_known(view)
        return view

    async def _read(self, fabric: str, look: Callable[[View], _Answer]) -> _Answer:
        """What is found in a fabric. Raises ``NotFound``."""
        view = await self._view(fabric)
        with self._large.sound():
            return look(view)

    async def _change(self, fabric: str, ask: Ask, decide: Callable[[View, Stamp], Change]) -> None:
        """Make a change that needs no answer. Raises as ``_write``."""
        await self._write(fabric, ask, lambda view, now: (decide(view, now), None), lambda _: None)

    async def _write(
        self,
        fabric: str,
        ask: Ask,
        decide: Decide[_Answer],
        decode: Callable[[bytes], _Answer] | None = None,
        needs: Needs | None = None,
    ) -> _Answer:
        """Make the change that ``decide`` wants of a fabric.

        Args:
            fabric: Its name.
            ask: The request that it answers.
            decide: The change, and the answer once it is made; refuses by raising.
            decode: The answer, from what is remembered of a request that was done before.
            needs: Finds out what takes long, before ``decide``; see ``Needs``.

        Raises:
            StaleEpoch: the change is of a leader who is none any more.
            RequestReused: the id of the request stands for another.
            Unavailable: the database is away; then the change may have been made or not.
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
        await self._large.structure_of(view)
        grounds = [await needs(view)] if needs is not None else []
        with self._large.sound():  # nothing is awaited from here on: one moment
            change, answer = decide(view, Stamp(self._now(), self._new_token(), request))
        return replace(change, guards=(*grounds, *change.guards)), answer

    # Whether what is asked for fits

    def _job_fits(self, job: Job) -> Needs:
        most = max(job.rank_count, len(job.hosts), len(job.collectives))
        return self._fits(lambda fabric: admit_job(fabric, job), aside=most > SMALL)

    def _fits(self, check: Callable[[Fabric], object], *, aside: bool = False) -> Needs:
        """Checks a request against the fabric that there is, once for each revision of it.

        Args:
            check: Raises ``InputError``.
            aside: In a thread, as it may take long.
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
        """Checks a fabric against all that runs on the one before."""
        if view.known:
            await self._all_demands(view)
        ground = view.guard(INTENT_VERSION)
        with self._large.sound():
            wanted = jobs.jobs_of(view), self._large.demands_of(view) or ()
        await asyncio.to_thread(admit_fabric, view.name, fabric, *wanted)
        return ground

    # What the applier does by itself

    async def changes(self, *, facts: bool = False) -> AsyncIterator[str]:
        """Names of fabrics whose intent (or also facts) may have changed.

        Yields every fabric once at the start, then a name after each write; names
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
        """Look at every fabric, and at each that may have changed, until the store is closed.

        It begins anew where the store cannot be reached; ``look`` may tell that too, by raising
        ``Unavailable``.
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
        """See ``Applier``."""
        with self._large.sound():
            return await self.applier.audit(after=after, limit=limit)

    async def acquire_leadership(
        self, holder: str, *, above: int = 0, following: Following = heed_nobody
    ) -> int:
        """See ``Applier``."""
        return await self.applier.acquire_leadership(holder, above=above, following=following)

    async def leadership_lost(self, epoch: int) -> None:
        """See ``Applier``."""
        await self.applier.leadership_lost(epoch)

    async def release_leadership(self, epoch: int) -> None:
        """See ``Applier``."""
        await self.applier.release_leadership(epoch)

    def leads(self, epoch: int) -> bool:
        """See ``Applier``."""
        return self.applier.leads(epoch)

    async def leader(self) -> Leader:
        """See ``Applier``."""
        return await self.applier.leader()

    def stale_for(self) -> float:
        """See ``Applier``."""
        return self.applier.stale_for()

    async def close(self) -> None:
        """Finish writes under way, wake every waiter, let go of the file or server."""
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
    """What was answered, if it was to this request. Raises ``RequestReused``."""
    if remembered[:FINGERPRINT].decode() != ask.fingerprint:
        raise RequestReused(ask.request.id)
    return remembered[FINGERPRINT:]
