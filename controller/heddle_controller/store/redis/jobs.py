"""Jobs in the Redis store.

That a host has one job at a time is held by a field a host, guarded by whoever takes
it. Facts are fields of their own: those of an earlier specification stay behind when
it is replaced, and are not looked at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heddle_controller.model.errors import Problem
from heddle_controller.model.job import Job
from heddle_controller.state.audit_texts import job_text
from heddle_controller.state.codec.jobs import job_json, parse_facts, parse_record, record_json
from heddle_controller.state.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    NotFound,
)
from heddle_controller.state.ids import check_job_ids
from heddle_controller.state.records import JobFacts, JobRecord, JobState, Request
from heddle_controller.store.common.requests import fingerprint
from heddle_controller.store.redis.change import (
    ABSENT,
    INTENT,
    NEITHER,
    Ask,
    Change,
    drop,
    new_token,
    put,
)
from heddle_controller.store.redis.demands import meant_by_sets
from heddle_controller.store.redis.fabric import JOB, SETS, at_revision, known
from heddle_controller.store.redis.part import NOBODY, Part, entry
from heddle_controller.store.redis.view import View

FACT, HOST = "fact", "host"
MAX_PROBLEMS = 20


class JobPart(Part):
    """The jobs of ``WorkStore``."""

    async def submit_job(
        self, fabric: str, job: Job, *, checked_revision: int, request: Request = NOBODY
    ) -> JobRecord:
        """See ``WorkStore``."""

        def decide(given: View | None) -> tuple[Change, JobRecord]:
            view, guard = at_revision(given, fabric, checked_revision)
            if view.raw(f"{JOB}/{job.name}") is not None:
                raise AlreadyExists(_name(fabric, job.name))
            check_job_ids(job.name, meant_by_sets(view))
            change, record = self._save(view, job, None, request)
            sets = (SETS, view.raw(SETS))
            return replace(change, guards=(guard, sets, *change.guards)), record

        ask = Ask(request, fingerprint("submit_job", fabric, job_json(job)))
        return await self._write(fabric, ask, decide, parse_record)

    async def update_job(
        self,
        fabric: str,
        job: Job,
        *,
        checked_revision: int,
        etag: str = "",
        request: Request = NOBODY,
    ) -> JobRecord:
        """See ``WorkStore``."""

        def decide(given: View | None) -> tuple[Change, JobRecord]:
            view, guard = at_revision(given, fabric, checked_revision)
            old = _job_with(view, job.name, etag)
            if old.job == job:
                return self._unchanged(view, old, guard), old
            change, record = self._save(view, job, old, request)
            return replace(change, guards=(guard, *change.guards)), record

        ask = Ask(request, fingerprint("update_job", fabric, job_json(job), etag))
        return await self._write(fabric, ask, decide, parse_record)

    def _unchanged(self, view: View, record: JobRecord, guard: tuple[str, bytes]) -> Change:
        """Nothing but the memory of the request: the specification is what is asked for."""
        field = f"{JOB}/{record.job.name}"
        guards = (guard, (field, view.raw(field)))
        answer, now = record_json(record), self._shared.now()
        return Change(view.name, NEITHER, guards=guards, answer=answer, time=now)

    def _save(
        self, view: View, job: Job, old: JobRecord | None, request: Request
    ) -> tuple[Change, JobRecord]:
        """Write a specification, ACCEPTED; its hosts, if no other job has them."""
        _check_hosts(view, job)
        now, etag, field = self._shared.now(), new_token(), f"{JOB}/{job.name}"
        facts = JobFacts(etag, JobState.ACCEPTED, state_time=now)
        record = JobRecord(job, etag, old.create_time if old else now, facts)
        raw = record_json(record)
        had = old.job.hosts if old else ()
        taken = [f"{HOST}/{host}" for host in dict.fromkeys(job.hosts) if host not in had]
        freed = [f"{HOST}/{host}" for host in dict.fromkeys(had) if host not in job.hosts]
        action, before = ("update_job", job_text(old.job)) if old else ("submit_job", "")
        change = Change(
            fabric=view.name,
            kind=INTENT,
            guards=((field, view.raw(field)), *((host, ABSENT) for host in taken)),
            ops=(
                put(field, raw),
                *([drop(f"{FACT}/{job.name}")] if old else []),
                *(drop(host) for host in freed),
                *(put(host, job.name) for host in taken),
            ),
            audit=entry(request, now, action, _name(view.name, job.name), (before, job_text(job))),
            answer=raw,
            time=now,
        )
        return change, record

    async def get_job(self, fabric: str, job: str) -> JobRecord:
        """See ``WorkStore``."""
        view = await self._view(fabric)
        with self._sound():
            return _job_with(view, job, "")

    async def list_jobs(
        self, fabric: str, *, after: str = "", limit: int = 0
    ) -> Sequence[JobRecord]:
        """See ``WorkStore``."""
        view = await self._view(fabric)
        with self._sound():
            return jobs_of(view, after, limit)

    async def delete_job(
        self, fabric: str, job: str, *, etag: str = "", request: Request = NOBODY
    ) -> None:
        """See ``WorkStore``."""

        def decide(view: View | None) -> tuple[Change, None]:
            return self._delete(known(view, fabric), job, etag, request), None

        ask = Ask(request, fingerprint("delete_job", fabric, job, etag))
        await self._write(fabric, ask, decide, lambda _: None)

    def _delete(self, view: View, job: str, etag: str, request: Request) -> Change:
        old, field, now = _job_with(view, job, etag), f"{JOB}/{job}", self._shared.now()
        gone = [field, f"{FACT}/{job}", *(f"{HOST}/{host}" for host in old.job.hosts)]
        text = job_text(old.job)
        return Change(
            fabric=view.name,
            kind=INTENT,
            guards=((field, view.raw(field)),),
            ops=tuple(drop(name) for name in gone),
            audit=entry(request, now, "delete_job", _name(view.name, job), (text, "")),
            time=now,
        )


def jobs_of(view: View, after: str = "", limit: int = 0) -> list[JobRecord]:
    """Jobs by name, those greater than ``after``, at most ``limit`` (0: all)."""
    names = [name for name in view.names(JOB) if name > after]
    found = (_record(view, name) for name in names[: limit or None])
    return [record for record in found if record is not None]


def _record(view: View, name: str) -> JobRecord | None:
    record = view.get(JOB, name, parse_record)
    facts = view.get(FACT, name, parse_facts)
    if record is None or facts is None or facts.etag != record.etag:
        return record
    return replace(record, facts=facts)


def _job_with(view: View, name: str, etag: str) -> JobRecord:
    """A job's record. Raises ``NotFound``, or ``Conflict`` where an etag is given and another."""
    record = _record(view, name)
    if record is None:
        raise NotFound(_name(view.name, name))
    if etag and etag != record.etag:
        raise Conflict(_name(view.name, name))
    return record


def _check_hosts(view: View, job: Job) -> None:
    """Nothing if no other job has the hosts. Raises ``FailedPrecondition``."""
    problems = []
    for host in job.hosts:
        owner = view.raw(f"{HOST}/{host}")
        if owner is not None and owner.decode() != job.name:
            text = f"is in use by job {owner.decode()!r}; delete it, or choose others"
            problems.append(Problem(f"host {host!r}", text))
    if problems:
        raise FailedPrecondition(f"job {job.name!r}", *problems[:MAX_PROBLEMS])


def _name(fabric: str, job: str) -> str:
    return f"fabrics/{fabric}/jobs/{job}"
