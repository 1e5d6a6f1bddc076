"""Jobs in the embedded store.

That a host has one job at a time is held by a table with a row a host, in the
transaction that writes the job: between a check and a write nobody can come.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from heddle_controller.model.errors import Problem
from heddle_controller.model.job import Job
from heddle_controller.state.audit_texts import Change, job_text
from heddle_controller.state.codec.jobs import job_json, parse_job, parse_record, record_json
from heddle_controller.state.errors import (
    AlreadyExists,
    Conflict,
    FailedPrecondition,
    NotFound,
)
from heddle_controller.state.ids import check_job_ids
from heddle_controller.state.records import (
    JobFacts,
    JobRecord,
    JobState,
    Request,
)
from heddle_controller.store.common.requests import fingerprint
from heddle_controller.store.embedded.demands import sets_of
from heddle_controller.store.embedded.part import NOBODY, Part, new_etag
from heddle_controller.store.embedded.requests import nothing, once
from heddle_controller.store.embedded.rows import bump_intent, check_revision, revision_of

MAX_PROBLEMS = 20

_JOB_COLUMNS = (
    "spec, etag, create_time, state, reason, flow_count, unrouted_count, generation, state_time"
)


class JobTables(Part):
    """The jobs of ``WorkStore``."""

    async def submit_job(
        self, fabric: str, job: Job, *, checked_revision: int, request: Request = NOBODY
    ) -> JobRecord:
        """See ``WorkStore``."""

        def submit(connection: sqlite3.Connection) -> JobRecord:
            check_revision(connection, fabric, checked_revision)
            if find_job(connection, fabric, job.name) is not None:
                raise AlreadyExists(_name(fabric, job.name))
            sets = sets_of(connection, fabric, self._shared.demands)
            check_job_ids(job.name, ((name, one.jobs) for name, one in sets.items()))
            return self._save(connection, fabric, job, None, request)

        print_ = fingerprint("submit_job", fabric, job_json(job))
        return await self._record_once(fabric, request, print_, submit)

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

        def update(connection: sqlite3.Connection) -> JobRecord:
            check_revision(connection, fabric, checked_revision)
            old = _job_with(connection, fabric, job.name, etag)
            if old.job == job:
                return old
            return self._save(connection, fabric, job, old, request)

        print_ = fingerprint("update_job", fabric, job_json(job), etag)
        return await self._record_once(fabric, request, print_, update)

    async def _record_once(
        self,
        fabric: str,
        request: Request,
        print_: str,
        do: Callable[[sqlite3.Connection], JobRecord],
    ) -> JobRecord:
        codec = (record_json, parse_record)
        return await self._write(fabric, lambda c: once(c, request, print_, lambda: do(c), codec))

    def _save(
        self,
        connection: sqlite3.Connection,
        fabric: str,
        job: Job,
        old: JobRecord | None,
        request: Request,
    ) -> JobRecord:
        """Write a specification, ACCEPTED; its hosts, if no other job has them."""
        now = self._shared.now()
        etag = new_etag(bump_intent(connection, fabric, now))
        facts = JobFacts(etag, JobState.ACCEPTED, state_time=now)
        record = JobRecord(job, etag, old.create_time if old else now, facts)
        connection.execute(
            f"INSERT INTO jobs (fabric, name, {_JOB_COLUMNS}) "  # noqa: S608 - our own names
            "VALUES (?, ?, ?, ?, ?, ?, '', 0, 0, 0, ?) ON CONFLICT (fabric, name) DO UPDATE SET "
            "spec = excluded.spec, etag = excluded.etag, state = excluded.state, reason = '', "
            "flow_count = 0, unrouted_count = 0, generation = 0, state_time = excluded.state_time",
            (fabric, job.name, job_json(job), etag, record.create_time, int(facts.state), now),
        )
        _take_hosts(connection, fabric, job)
        action, before = ("update_job", job_text(old.job)) if old else ("submit_job", "")
        change = Change(action, _name(fabric, job.name), before, job_text(job))
        self._note(connection, request, change)
        return record

    async def get_job(self, fabric: str, job: str) -> JobRecord:
        """See ``WorkStore``."""
        return await self._read(lambda c: _job_with(c, fabric, job, ""))

    async def list_jobs(
        self, fabric: str, *, after: str = "", limit: int = 0
    ) -> Sequence[JobRecord]:
        """See ``WorkStore``."""

        def work(connection: sqlite3.Connection) -> list[JobRecord]:
            revision_of(connection, fabric)
            return jobs_of(connection, fabric, after, limit)

        return await self._read(work)

    async def delete_job(
        self, fabric: str, job: str, *, etag: str = "", request: Request = NOBODY
    ) -> None:
        """See ``WorkStore``."""
        print_ = fingerprint("delete_job", fabric, job, etag)

        def delete(connection: sqlite3.Connection) -> None:
            old = _job_with(connection, fabric, job, etag)
            connection.execute("DELETE FROM jobs WHERE fabric = ? AND name = ?", (fabric, job))
            bump_intent(connection, fabric, self._shared.now())
            change = Change("delete_job", _name(fabric, job), before=job_text(old.job))
            self._note(connection, request, change)

        codec = (nothing, lambda _: None)
        await self._write(fabric, lambda c: once(c, request, print_, lambda: delete(c), codec))


def find_job(connection: sqlite3.Connection, fabric: str, name: str) -> JobRecord | None:
    """A job's record, None if there is none."""
    row = connection.execute(
        f"SELECT {_JOB_COLUMNS} FROM jobs WHERE fabric = ? AND name = ?",  # noqa: S608 - our own
        (fabric, name),
    ).fetchone()
    return _record(row) if row else None


def jobs_of(
    connection: sqlite3.Connection, fabric: str, after: str = "", limit: int = 0
) -> list[JobRecord]:
    """Jobs by name, those greater than ``after``, at most ``limit`` (0: all)."""
    rows = connection.execute(
        f"SELECT {_JOB_COLUMNS} FROM jobs "  # noqa: S608 - our own names
        "WHERE fabric = ? AND name > ? ORDER BY name LIMIT ?",
        (fabric, after, limit or -1),
    )
    return [_record(row) for row in rows]


def _record(row: tuple[bytes, str, float, int, str, int, int, int, float]) -> JobRecord:
    spec, etag, create_time, state, reason, flows, unrouted, generation, state_time = row
    facts = JobFacts(etag, JobState(state), reason, flows, unrouted, generation, state_time)
    return JobRecord(parse_job(spec), etag, create_time, facts)


def _job_with(connection: sqlite3.Connection, fabric: str, name: str, etag: str) -> JobRecord:
    """A job's record. Raises ``NotFound``, or ``Conflict`` where an etag is given and another."""
    record = find_job(connection, fabric, name)
    if record is None:
        raise NotFound(_name(fabric, name))
    if etag and etag != record.etag:
        raise Conflict(_name(fabric, name))
    return record


def _take_hosts(connection: sqlite3.Connection, fabric: str, job: Job) -> None:
    """Give a job its hosts, and free those it had. Raises ``FailedPrecondition``."""
    connection.execute("DELETE FROM hosts WHERE fabric = ? AND job = ?", (fabric, job.name))
    problems = []
    for host in job.hosts:
        row = connection.execute(
            "SELECT job FROM hosts WHERE fabric = ? AND host = ?", (fabric, host)
        ).fetchone()
        if row is None:
            connection.execute("INSERT INTO hosts VALUES (?, ?, ?)", (fabric, host, job.name))
        elif row[0] != job.name:
            problems.append(
                Problem(
                    f"host {host!r}", f"is in use by job {row[0]!r}; delete it, or choose others"
                )
            )
    if problems:
        raise FailedPrecondition(f"job {job.name!r}", *problems[:MAX_PROBLEMS])


def _name(fabric: str, job: str) -> str:
    return f"fabrics/{fabric}/jobs/{job}"
